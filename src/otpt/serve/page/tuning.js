// What tuning did to the confidences: from zero-shot to the tuned method, class by class.

import { $, make, percent, sized } from "./dom.js";

const STILL = 0.0005; // a difference that would be shown as 0.0

/** Zero-shot beside a method that is chosen among the others; hidden where there is nothing to compare. */
export function showTuning(methods) {
  const names = Object.keys(methods).filter((name) => name !== "zero-shot");
  const before = methods["zero-shot"];
  $("tuning-block").hidden = !before || names.length === 0;
  if ($("tuning-block").hidden) return;
  const select = $("tuned");
  const chosen = names.includes(select.value) ? select.value : names.at(-1);
  select.replaceChildren(...names.map((name) => make("option", { value: name, selected: name === chosen }, name)));
  select.value = chosen;
  select.onchange = () => show(before, methods[select.value], select.value);
  show(before, methods[chosen], chosen);
}

function show(before, after, name) {
  const rows = pairs(before, after);
  const moved = after.confidence - (scores(before).get(after.label) ?? 0);
  const sentence =
    before.label === after.label
      ? `${name} ${Math.abs(moved) < STILL ? "leaves the confidence as it was" : `is ${points(Math.abs(moved))} ${moved > 0 ? "more" : "less"} confident than zero-shot`} that it is “${after.label}”.`
      : `${name} changes the answer from “${before.label}” to “${after.label}”.`;
  $("tuning").replaceChildren(make("p", { class: "small" }, sentence), chart(rows, name));
}

const scores = (answer) => new Map(answer.top.map(({ label, score }) => [label, score]));

/** [label, before, after] of the classes that both name among their best, the largest of either first. */
function pairs(before, after) {
  const [first, second] = [scores(before), scores(after)];
  return [...first.keys()]
    .filter((label) => second.has(label))
    .map((label) => [label, first.get(label), second.get(label)])
    .sort((one, other) => Math.max(other[1], other[2]) - Math.max(one[1], one[2]))
    .slice(0, 6);
}

function chart(rows, name) {
  const body = rows.map(([label, before, after]) => {
    const way = Math.abs(after - before) < STILL ? "still" : after > before ? "up" : "down";
    return make(
      "tr",
      {},
      make("th", { scope: "row", title: label }, make("bdi", {}, label)),
      make(
        "td",
        { class: "scale" },
        make("span", { class: "hidden" }, `${percent(before)}, then ${percent(after)}`),
        sized(make("span", { class: `move ${way}` }), { left: Math.min(before, after), width: Math.abs(after - before) }),
        sized(make("span", { class: "dot before" }), { left: before }),
        sized(make("span", { class: "dot after" }), { left: after }),
      ),
      make("td", { class: way }, signed(after - before)),
    );
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((at) => sized(make("span", {}, `${100 * at}`), { left: at }));
  return make(
    "table",
    { class: "dumbbells" },
    make("caption", {}, make("span", { class: "key before" }), "zero-shot", make("span", { class: "key after" }), name, " · confidence in %, change in points"),
    make("colgroup", {}, make("col"), make("col"), make("col")),
    make("thead", { class: "hidden" }, make("tr", {}, ["Label", `zero-shot, then ${name}`, "Change"].map((words) => make("th", { scope: "col" }, words)))),
    make("tbody", {}, body),
    make("tfoot", { "aria-hidden": "true" }, make("tr", {}, make("td"), make("td", { class: "ticks" }, ticks), make("td"))),
  );
}

const points = (difference) => `${(100 * difference).toFixed(1)} points`;
const signed = (difference) => (Math.abs(difference) < STILL ? "0.0" : `${difference < 0 ? "−" : "+"}${Math.abs(100 * difference).toFixed(1)}`);
