// Everything else one may ask for. What is left empty is not sent: the service's own values then hold.

import { $, make } from "./dom.js";
import { addMethod } from "./methods.js";

const NUMBERS = ["coverage", "views", "seed", "threshold"];
const TEXTS = ["model", "prompt", "calibration"];

let service = null; // what it answered about its models

/** The options that were set, by the names of the service's fields. */
export function chosenOptions() {
  const found = {};
  for (const name of TEXTS) if ($(name).value.trim()) found[name] = $(name).value.trim();
  for (const name of NUMBERS) if ($(name).value !== "") found[name] = Number($(name).value);
  if (found.calibration) found.calibration = [found.calibration];
  else delete found.coverage; // sets are made by a calibration
  if ($("reject").checked) found.reject = true;
  if ($("several").checked) found.multi_label = true;
  const groups = chosenGroups();
  if (Object.keys(groups).length > 0) found.groups = groups;
  if (!found.groups && !found.multi_label) delete found.threshold;
  return found;
}

/** {dog: ["beagle", "pug"]} from lines such as "dog: beagle, pug". */
function chosenGroups() {
  const lines = $("groups").value.split("\n").map((line) => line.split(":"));
  const named = lines.filter(([name, members]) => name.trim() && members);
  return Object.fromEntries(named.map(([name, members]) => [name.trim(), members.split(",").map((each) => each.trim()).filter(Boolean)]));
}

/** What the service takes where nothing was chosen, with the model as the library and the command line name it. */
export function defaultsOf(model) {
  return { views: service.views, seed: service.seed, model: service.models.find((each) => each.name === model).backbone };
}

/** Sets fields to what `chosenOptions` once gave. */
export function setOptions(options) {
  for (const name of [...TEXTS, ...NUMBERS]) if (options[name] !== undefined) $(name).value = options[name];
  $("reject").checked = Boolean(options.reject);
  $("several").checked = Boolean(options.multi_label);
  $("groups").value = Object.entries(options.groups ?? {}).map(([name, members]) => `${name}: ${members.join(", ")}`).join("\n");
  tell();
}

/** Chooses a model, if it is served. */
export function setModel(name) {
  if (!service.models.some((model) => model.name === name)) return;
  $("model").value = name;
  tell();
}

/** Offers models and calibrations; `changed` is called when an option changes. */
export function listenForOptions(told, calibrations, changed) {
  service = told;
  const { models, default: usual } = service;
  for (const name of ["views", "seed"]) $(name).placeholder = service[name];
  $("model").append(...models.map((model) => make("option", { value: model.name, selected: model.name === usual }, model.name)));
  $("model-field").hidden = models.length < 2;
  $("calibration").append(...calibrations.map((each) => make("option", { value: each.name }, `${each.name} (${each.method})`)));
  $("calibration").addEventListener("change", () => {
    const own = calibrations.find((each) => each.name === $("calibration").value);
    if (own) addMethod(own.method); // a calibration belongs to a method, which then must be asked too
  });
  $("calibration-field").hidden = $("coverage").parentElement.hidden = calibrations.length === 0;
  for (const id of ["options", "several"])
    $(id).addEventListener("change", () => {
      tell();
      changed();
    });
  tell();
}

function tell() {
  const calibrated = $("calibration").value !== "";
  $("coverage").disabled = !calibrated;
  if (calibrated && $("coverage").value === "") $("coverage").value = "0.9";
  $("methods-block").hidden = $("several").checked; // one method predicts several labels
  const { model, multi_label, groups, ...set } = chosenOptions();
  if (groups) set.groups = Object.keys(groups).join(", ");
  $("options-facts").textContent = Object.entries(set)
    .map(([name, value]) => (value === true ? "none of these" : `${name} ${value}`))
    .join(" · ");
}
