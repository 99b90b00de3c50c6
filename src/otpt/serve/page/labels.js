// The labels: typed, or one of the service's lists.

import { $, make } from "./dom.js";

let lists = [];

/** {labels: [...]} or {classes: "name"}, as the service takes them. */
export function chosenLabels() {
  const list = $("list").value;
  return list ? { classes: list } : { labels: typed() };
}

/** Why these labels cannot be used, or nothing. */
export function labelFault() {
  if ($("list").value) return "";
  const labels = typed();
  if (labels.length === 0 || (labels.length === 1 && !$("several").checked)) return "Name two labels at least.";
  const twice = labels.find((label, at) => labels.indexOf(label) !== at);
  return twice ? `“${twice}” is there twice.` : "";
}

/** Shows labels as if they had been typed. */
export function setLabels(labels) {
  $("list").value = "";
  $("labels").value = labels.join("\n");
  tell();
}

/** Offers the service's lists; `changed` is called when other labels are chosen or typed. */
export function listenForLabels({ classes, default: usual }, changed) {
  lists = classes;
  $("list").append(...lists.map((list) => make("option", { value: list.name }, `${list.name} (${list.count})`)));
  $("list").addEventListener("change", () => {
    tell();
    changed();
  });
  $("labels").addEventListener("input", () => {
    tell();
    changed();
  });
  if (usual) $("list").value = usual; // what the service was started with
  tell();
}

/** Whether one of the service's lists is chosen. */
export const hasList = () => $("list").value !== "";

/** Chooses one of the lists, if there is one of that name. */
export function setList(name) {
  if (lists.some((list) => list.name === name)) $("list").value = name;
  tell();
}

function typed() {
  const text = $("labels").value;
  return text.split(text.includes("\n") ? "\n" : ",").map((label) => label.trim()).filter(Boolean);
}

function tell() {
  const list = lists.find((each) => each.name === $("list").value);
  $("labels").hidden = Boolean(list);
  const fault = labelFault();
  $("labels").setAttribute("aria-invalid", String(Boolean(fault) && typed().length > 0));
  $("labels-facts").textContent = list
    ? `${list.count} labels${list.labels ? `: ${list.labels.slice(0, 8).join(", ")}${list.count > 8 ? " …" : ""}` : ""}`
    : fault || `${typed().length} labels. One per line, or separated by commas.`;
}
