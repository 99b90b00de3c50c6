// Where the time went.

import { duration, make, sized } from "./dom.js";

const WORDS = {
  queue: "waiting for its turn",
  texts: "preparing the labels",
  decode: "decoding the image",
  views: "making the views",
  encode: "image tower",
  predict: "methods",
  elsewhere: "all the rest",
};

/** A bar of the parts, and the parts in numbers. `total` is what this page waited. */
export function showTimes(place, seconds, total) {
  const parts = Object.keys(WORDS)
    .filter((name) => seconds[name] !== undefined)
    .map((name) => [name, seconds[name]]);
  const known = parts.reduce((sum, [, part]) => sum + part, 0);
  if (total > known) parts.push(["elsewhere", total - known]);
  const whole = Math.max(total, known) || 1;
  place.replaceChildren(
    make("div", { class: "times", "aria-hidden": "true" }, parts.map(([name, part]) => sized(make("span", { class: `t-${name}` }), { width: part / whole }))),
    make(
      "dl",
      { class: "parts" },
      parts.map(([name, part]) =>
        make("div", {}, make("dt", {}, make("span", { class: `key t-${name}`, "aria-hidden": "true" }), WORDS[name]), make("dd", {}, duration(part))),
      ),
      make("div", { class: "sum" }, make("dt", {}, "all of it"), make("dd", {}, duration(whole))),
    ),
  );
}
