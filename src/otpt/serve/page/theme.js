// Light or dark: as the system has it, until the reader switches. A classic script, so that it runs before the first paint.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = (() => {
    try {
      return localStorage.getItem("otpt-theme");
    } catch {
      return null; // storage may be forbidden; the switch then lasts as long as the page
    }
  })();
  if (kept) root.dataset.theme = kept;

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const tell = () => button.setAttribute("aria-pressed", String(isDark()));
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try {
        localStorage.setItem("otpt-theme", root.dataset.theme);
      } catch {
        // as above
      }
      tell();
    });
    system.addEventListener("change", tell);
    tell();
  });
})();
