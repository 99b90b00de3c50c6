// The methods to compare: a few at hand, any other by name.

import { $, listed, make } from "./dom.js";

// The methods at hand, in words for visitors.
const AT_HAND = {
  "zero-shot": "The unchanged model, on the plain image.",
  tpt: "Adapts the prompt until confident views of the image agree. Its confidence is often too high.",
  "c-tpt": "Like tpt, but keeps the texts of the labels spread out, for a more honest confidence.",
  "o-tpt": "Like tpt, but keeps the texts of the labels at right angles, for a more honest confidence.",
};
const PLAIN = { ...AT_HAND, "confident-half": "Averages the more confident half of the views. Nothing is adapted, so it is fast.", "multi-label": "Looks at the whole image and at 13 parts of it, and asks of each label whether it is in one of them." };

let usual = "";
let summaries = new Map();

/** Names of the methods that are switched on, in the order shown. */
export const chosenMethods = () => [...$("methods").querySelectorAll("input:checked")].map((box) => box.value);

/** What a method does, in a sentence; a composed name is told by its first part. */
export function summaryOf(name) {
  const [first, ...others] = name.split("+");
  if (PLAIN[first]) return others.length === 0 ? PLAIN[first] : `${PLAIN[first]} Combined with ${listed(others)}.`;
  return summaries.get(name) ?? "";
}

/** The service's default method, if it is among these names, else the last of them. */
export const mainOf = (names) => (names.includes(usual) ? usual : names.at(-1));

/** Offers the service's methods; `changed` is called when another set is chosen. */
export function listenForMethods({ methods, parts, default: byDefault }, changed) {
  usual = byDefault;
  const all = [...Object.values(parts).flat(), ...methods]; // a part alone is a method too
  summaries = new Map(all.map((each) => [each.name, each.summary]));
  $("known-methods").append(...methods.map((method) => make("option", { value: method.name }, method.summary)));
  for (const name of new Set([...Object.keys(AT_HAND).filter((each) => summaries.has(each)), usual])) addMethod(name);
  setMethods(["zero-shot", usual]); // two are quick, and show the difference
  $("methods").addEventListener("change", changed);
  const add = () => {
    const name = $("method").value.trim();
    if (!name) return;
    addMethod(name);
    $("method").value = "";
    changed();
  };
  $("add-method").addEventListener("click", add);
  $("method").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // Enter adds the method; it does not send the form
    add();
  });
}

/** Switches exactly these methods on. */
export function setMethods(names) {
  for (const box of $("methods").querySelectorAll("input")) box.checked = names.includes(box.value);
  for (const name of names) addMethod(name);
}

/** Switches a method on; one that is not offered yet is from now on. */
export function addMethod(name) {
  const there = [...$("methods").querySelectorAll("input")].find((box) => box.value === name);
  if (there) {
    there.checked = true;
    return;
  }
  const box = make("input", { type: "checkbox", value: name, class: "hidden" });
  box.checked = true;
  $("methods").append(make("label", { title: summaryOf(name) }, box, make("span", {}, name)));
}
