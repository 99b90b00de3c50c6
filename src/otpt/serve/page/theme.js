// Light or dark: as the system has it, until the reader switches. A classic script, so that it runs before the first paint.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let kept = null; // storage may be forbidden; the switch then lasts as long as the page
  try {
    kept = localStorage.getItem("otpt-theme");
  } catch {}

  const show = () => {
    root.dataset.theme = kept ?? (system.matches ? "dark" : "light");
    document.getElementById("theme")?.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
  };

  show();
  system.addEventListener("change", show);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      kept = root.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("otpt-theme", kept);
      } catch {}
      show();
    });
    show();
  });
})();
