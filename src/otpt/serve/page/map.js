// The heat map of a label, over the image; asked for by the reader, because it costs as much as another image.

import { $, make, percent } from "./dom.js";
import { send } from "./server.js";

let running = null;

/** Offers the labels of an answer; `question` is what was asked, with the one method whose confidence is shown. */
export function offerMap(image, labels, question, failed) {
  running?.abort();
  $("map").replaceChildren();
  $("map-label").replaceChildren(...labels.map((label) => make("option", { value: label }, label)));
  const show = async () => {
    running?.abort();
    const controller = (running = new AbortController());
    $("map-go").disabled = true;
    try {
      const answer = await send("predict", { image: image.base64, ...question, explain: $("map-label").value }, controller.signal);
      $("map").replaceChildren(figure(image, answer.results[0].heat_map, question.method));
    } catch (error) {
      if (error.name !== "AbortError") failed(error, $("map-block"));
    } finally {
      if (running === controller) $("map-go").disabled = false;
    }
  };
  $("map-go").disabled = false;
  $("map-go").onclick = show;
  $("map-label").onchange = () => $("map").firstChild && show();
}

function figure(image, { label, confidence, image: layer }, method) {
  const words = `“${label}” has ${percent(confidence)} by ${method}.`;
  return make(
    "figure",
    { class: "map" },
    make("div", {}, make("img", { src: image.url, alt: `The image ${image.name}` }), make("img", { src: layer, alt: `Heat map of ${label}`, class: "layer" })),
    make("figcaption", { class: "small" }, words),
  );
}
