// A click on a column's title sorts a long table by it: numbers by their size, an interval by its middle, empty cells last.
const LONG = 10; // rows

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".md-typeset table")) {
    const body = table.tBodies[0];
    if (!body || body.rows.length < LONG) continue;
    [...table.tHead.rows[0].cells].forEach((title, column) => {
      title.style.cursor = "pointer";
      title.title = "Sort by this column";
      title.addEventListener("click", () => {
        const down = title.dataset.down !== "true";
        title.dataset.down = down;
        const value = (row) => row.cells[column].textContent.trim();
        const number = (row) => Number.parseFloat(value(row).replace("−", "-"));
        const compare = (a, b) => {
          if (!value(a) || !value(b)) return Boolean(value(b)) - Boolean(value(a));
          const order = Number.isNaN(number(a)) ? value(a).localeCompare(value(b)) : number(a) - number(b);
          return down ? order : -order;
        };
        body.append(...[...body.rows].sort(compare));
      });
    });
  }
});
