"use strict";
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const KEY = "otpt-report-theme";

  // A page opened from a disk may not be allowed to remember anything.
  const stored = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const store = (value) => { try { localStorage.setItem(KEY, value); } catch { /* then not */ } };

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const showTheme = () => {
    theme.setAttribute("aria-pressed", String(isDark()));
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
  };
  if (["dark", "light"].includes(stored())) root.dataset.theme = stored();
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    store(root.dataset.theme);
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);
  showTheme();

  const valueOf = (cell) => {
    const number = parseFloat((cell.dataset.value ?? cell.textContent).replace("−", "-"));
    return Number.isNaN(number) ? null : number;
  };
  const compare = (a, b, words) => {
    if (words) return a.textContent.trim().localeCompare(b.textContent.trim(), "en", { numeric: true });
    const [x, y] = [valueOf(a), valueOf(b)];
    return x === null || y === null ? Number(x === null) - Number(y === null) : x - y;
  };
  const sortBy = (table, heading) => {
    const headings = [...heading.parentElement.children];
    const column = headings.indexOf(heading);
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const each of headings) each.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const words = heading.classList.contains("text");
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], words) * (down ? -1 : 1));
    body.append(...rows);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const heading of table.tHead.rows[0].cells) {
      heading.querySelector("button").addEventListener("click", () => sortBy(table, heading));
    }
  }

  const metric = document.getElementById("metric");
  const showMetric = () => {
    for (const heading of document.querySelectorAll(".by-metric thead th")) heading.setAttribute("aria-sort", "none");
    for (const cell of document.querySelectorAll(".by-metric td[data-best]")) {
      cell.textContent = cell.dataset[metric.value];
      for (const mark of ["best", "tie"]) {
        cell.classList.toggle(mark, cell.dataset[mark].split(" ").includes(metric.value));
      }
    }
  };
  metric?.addEventListener("change", showMetric);
  if (metric && metric.value !== "ece") showMetric();

  const openTarget = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const each of closed) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of closed) each.open = false; });
})();
