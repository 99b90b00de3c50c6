// What the methods say: the headline, and bars side by side.

import { $, listed, make, percent, sized } from "./dom.js";
import { mainOf, summaryOf } from "./methods.js";

const SHOWN = 5; // classes per method

/** The answer in one line, and what speaks for or against it. */
export function showHeadline(place, methods, threshold) {
  const entries = Object.entries(methods);
  const main = mainOf(Object.keys(methods));
  const answer = methods[main];
  if (answer.labels_above) return showSeveral(place, answer, threshold);
  const others = entries.filter(([name]) => name !== main);
  const against = others.filter(([, other]) => other.label !== answer.label);
  const unknown = entries.filter(([, each]) => each.rejected).map(([name]) => name);
  const verdict = unknown.includes(main)
    ? [make("p", { class: "verdict" }, "none of these"), make("p", { class: "sure" }, `nearest: ${answer.label}, ${percent(answer.confidence)} by ${main}`)]
    : [
        make("p", { class: "verdict" }, make("bdi", {}, answer.label)),
        make("p", { class: "sure" }, make("strong", {}, percent(answer.confidence)), ` by ${main}`),
      ];
  const notes = [];
  if (others.length > 0 && against.length === 0) notes.push(entries.length === 2 ? "Both methods agree." : `All ${entries.length} methods agree.`);
  else notes.push(...dissent(against));
  const elsewhere = unknown.filter((name) => name !== main);
  if (elsewhere.length > 0 && !unknown.includes(main)) notes.push(`By ${listed(elsewhere)} the image fits none of the labels.`);
  const wider = answer.back_off;
  if (wider === null) notes.push(`No label or group reaches ${percent(threshold)}.`);
  else if (wider && wider.name !== answer.label) notes.unshift(`More certain is the group “${wider.name}”: ${percent(wider.confidence)}.`);
  place.replaceChildren(...verdict, make("p", { class: "small" }, notes.join(" ")));
}

/** All labels that are probable enough. */
function showSeveral(place, { labels_above: labels, top }, threshold) {
  const best = top[0];
  const words = labels.length > 0 ? labels : ["none of these"];
  place.replaceChildren(
    make("p", { class: "verdict" }, make("bdi", {}, listed(words))),
    make("p", { class: "small" }, `${labels.length} of the labels ${labels.length === 1 ? "reaches" : "reach"} ${percent(threshold)}` +
      (labels.length > 0 ? ". The probabilities are independent: they need not add up to 100 %." : `; the nearest is ${best.label}, ${percent(best.score)}.`)),
  );
}

/** One sentence per other answer, with all methods that give it. */
function dissent(against) {
  const labels = [...new Set(against.map(([, other]) => other.label))];
  return labels.map((label) => {
    const names = against.filter(([, other]) => other.label === label).map(([name]) => name);
    return `${listed(names)} ${names.length === 1 ? "says" : "say"} ${label}.`;
  });
}

/** A card of bars per method, and which of them to trust. */
export function showBars(place, methods) {
  $("bars-title").textContent = Object.keys(methods).length > 1 ? "Methods side by side" : "Probabilities";
  $("trust").hidden = Object.keys(methods).length < 2;
  $("trust").textContent =
    `For one answer, take ${mainOf(Object.keys(methods))}. Confidences differ because each method weighs the views in another way; ` +
    "that methods agree says more than a high number.";
  place.replaceChildren(...Object.entries(methods).map(([name, answer]) => card(name, answer)));
}

function card(name, answer) {
  const members = new Set(answer.set ?? []);
  return make(
    "article",
    { class: "card method", "data-method": name },
    make("h3", {}, name),
    make("p", { class: "small what" }, summaryOf(name)),
    make("ol", { class: "bars" }, answer.top.slice(0, SHOWN).map((each, rank) => bar(each, rank, members.has(each.label)))),
    answer.groups && groups(answer.groups),
    answer.set && set(answer.set),
    answer.rejected !== undefined && fits(answer.rejected),
    answer.abstained && make("p", { class: "badge warn" }, "Abstains: not sure enough"),
    told(answer.flags) && make("p", { class: "small" }, told(answer.flags)),
  );
}

/** The flags that no badge shows. */
const told = (flags) => flags.filter((flag) => flag !== "rejected" && flag !== "abstained").join(", ");

function bar({ label, score }, rank, member) {
  return make(
    "li",
    { class: [rank === 0 && "first", member && "member"].filter(Boolean).join(" ") || null, "data-score": score },
    make("span", { class: "name", title: label }, make("bdi", {}, label), member && make("span", { class: "hidden" }, " (in the prediction set)")),
    make("span", { class: "value" }, percent(score)),
    make("span", { class: "track", "aria-hidden": "true" }, sized(make("span", { class: "fill" }), { width: score })),
  );
}

function set(labels) {
  const words = labels.length === 0 ? "empty" : labels.length > 6 ? `${labels.slice(0, 6).join(", ")} and ${labels.length - 6} more` : labels.join(", ");
  return make("p", { class: "set small" }, make("strong", {}, `Prediction set (${labels.length}): `), words);
}

function groups(probabilities) {
  const sorted = Object.entries(probabilities).sort((one, other) => other[1] - one[1]);
  return make("p", { class: "set small" }, make("strong", {}, "Groups: "), sorted.slice(0, SHOWN).map(([name, score]) => `${name} ${percent(score)}`).join(", "));
}

function fits(rejected) {
  return rejected ? make("p", { class: "badge warn" }, "None of these") : make("p", { class: "badge good" }, "Fits the labels");
}
