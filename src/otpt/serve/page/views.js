// The views the image was seen in, and which of them decided.

import { $, make } from "./dom.js";

/** Thumbnails; the selected ones are marked with their rank. */
export function showViews(views) {
  $("views-block").hidden = !views || views.images.length < 2;
  if ($("views-block").hidden) return;
  const { images, selected } = views;
  $("views-facts").textContent =
    `${images.length} views of the image: the clean one, then random crops mixed by AugMix. ` +
    (selected.length > 0 ? `Tuning listens to the ${selected.length === 1 ? "marked one" : `${selected.length} marked ones`}, in which zero-shot is most certain.` : "");
  $("thumbnails").replaceChildren(...images.map((source, at) => thumbnail(source, at, selected.indexOf(at))));
}

function thumbnail(source, at, rank) {
  const name = at === 0 ? "clean view" : `view ${at + 1}`;
  const words = rank < 0 ? name : `${name}, selected (${rank + 1})`;
  return make(
    "li",
    { class: rank < 0 ? null : "selected" },
    make("img", { src: source, alt: words, title: words, width: 56, height: 56, loading: "lazy" }),
    rank >= 0 && make("span", { class: "rank", "aria-hidden": "true" }, String(rank + 1)),
    at === 0 && make("span", { class: "clean", "aria-hidden": "true" }, "clean"),
  );
}
