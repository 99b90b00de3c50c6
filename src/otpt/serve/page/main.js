// Puts the page together: asks when something changes, shows what comes back.

import { showBars, showHeadline } from "./bars.js";
import { $, duration, make } from "./dom.js";
import { chosenImage, exampleFile, listenForImages, showExamples } from "./image.js";
import { chosenLabels, hasList, labelFault, listenForLabels, setLabels, setList } from "./labels.js";
import { linkTo, readLink } from "./link.js";
import { offerMap } from "./map.js";
import { chosenMethods, listenForMethods, mainOf, setMethods } from "./methods.js";
import { chosenOptions, defaultsOf, listenForOptions, setModel, setOptions } from "./options.js";
import { showReproduce } from "./reproduce.js";
import { ask, get, hasToken, send, useToken } from "./server.js";
import { asCommand, asCurl, asPython } from "./snippets.js";
import { showTimes } from "./times.js";
import { showTuning } from "./tuning.js";
import { showViews } from "./views.js";

const PAUSE = 500; // milliseconds of quiet after a keystroke before the service is asked
const TOP = 10; // classes per method: the bars show the first, the chart of tuning those that moved too

let running = null; // the request under way
let timer = 0;
let lists = {}; // class lists and calibrations of the service

/** Asks soon; a later change takes the place of an earlier one. */
function changed() {
  clearTimeout(timer);
  timer = setTimeout(() => missing() || classify(), PAUSE);
}

/** What is still needed before the service can be asked, in words. */
function missing() {
  if (!chosenImage()) return "Choose an image first.";
  return labelFault() || (chosenMethods().length === 0 && !chosenOptions().multi_label ? "Choose a method at least." : "");
}

/** Asks now; `pressed`: the reader waits for the answer and is led to it. */
async function classify(pressed = false) {
  clearTimeout(timer);
  running?.abort();
  const controller = (running = new AbortController());
  const image = chosenImage();
  const body = { ...chosenLabels(), top: TOP, ...chosenOptions() };
  body.methods = body.multi_label ? ["multi-label"] : chosenMethods();
  busy(true);
  const begun = performance.now();
  try {
    const answer = await send("compare", { image: image.base64, ...body, show_views: true }, controller.signal);
    const [result] = answer.results;
    show(answer, result, body, image, (performance.now() - begun) / 1000);
    if (pressed) $("found").firstElementChild.scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
  } finally {
    if (running === controller) busy(false);
  }
}

function show(answer, result, body, image, seconds) {
  const { methods } = result;
  $("error").hidden = $("empty").hidden = true;
  $("found").hidden = false;
  showHeadline($("headline"), methods, body.threshold ?? 0.5);
  showBars($("bars"), methods);
  const main = mainOf(Object.keys(methods));
  const { methods: _, ...question } = body;
  $("map-block").hidden = answer.labels.length < 2; // a map compares labels
  offerMap(image, methods[main].top.map((each) => each.label), { ...question, method: main }, showError);
  showTuning(methods);
  showViews(result.views);
  showTimes($("times"), answer.seconds, seconds);
  const settings = { example: image.example, list: body.classes, labels: body.labels, methods: body.methods, options: chosenOptions() };
  const link = linkTo(settings);
  history.replaceState(null, "", link);
  const defaults = defaultsOf(answer.model);
  const here = { ...defaults, ...questionOf(body), model: defaults.model };
  showReproduce(
    $("reproduce"),
    {
      curl: asCurl(body, image.name, { origin: document.baseURI, secret: hasToken() }),
      Python: asPython(here, image.name, answer.labels),
      "Command line": asCommand(here, image.name, answer.labels),
    },
    link,
    `The commands read ${image.name}; “save” under the image writes that file. The link holds the settings` +
      (image.example ? " and the example." : ", not the image."),
  );
  $("about").textContent = `otpt with the model ${answer.model}`;
  $("status").textContent = `Answered in ${duration(seconds)}: ${Object.entries(methods)
    .map(([name, each]) => `${name} ${each.label}`)
    .join(", ")}`;
}

/** The question without what only the service knows: names given at its start, and groups of these. */
function questionOf(body) {
  const { groups, default: usual } = lists;
  const { classes, ...rest } = body;
  const own = groups && classes === usual ? { groups, ...rest } : rest;
  return classes === "default" ? own : { ...own, ...(classes && { classes }) };
}

/** Shows why there is no answer, in the place of the answer, or next to the button that was pressed. */
function showError(error, place = $("answers")) {
  if (place.id === "answers") place.prepend($("error"));
  else if (place.id === "map-block") place.append($("error"));
  else place.before($("error"));
  const lines = [make("strong", {}, error.message)];
  if (error.expected) lines.push(make("span", {}, `Expected: ${error.expected}`));
  if (error.hint) lines.push(make("span", {}, error.hint));
  $("error").replaceChildren(...lines);
  $("error").hidden = false;
  if (place.id !== "map-block") $("found").hidden = true;
  $("error").scrollIntoView({ block: "nearest" });
}

/** Only the question for the token, until the service accepts one. */
function askForToken(refused) {
  for (const id of ["form", "answers"]) $(id).hidden = true;
  $("token-form").hidden = false;
  $("token-error").hidden = !refused;
  $("token-error").textContent = refused;
  $("token").focus({ preventScroll: true });
}

function busy(on) {
  $("answers").setAttribute("aria-busy", String(on));
  $("go").classList.toggle("busy", on);
  $("go-words").textContent = on ? "Classifying …" : "Classify";
  if (on) $("status").textContent = "Classifying";
}

/** An example brings its own labels, unless a list of the service is chosen, and the model that knows it, if served. */
function choose(example, take, { keepLabels = hasList(), keepModel = false, quiet = false } = {}) {
  if (!keepModel) setModel(example.model);
  if (!keepLabels && example.labels) setLabels(example.labels);
  return take(exampleFile(example), example.label, quiet);
}

async function start() {
  const [models, methods, classes, { examples }] = await Promise.all(["models", "methods", "classes", "examples"].map(ask));
  lists = classes;
  const take = listenForImages(changed);
  listenForLabels(lists, changed);
  listenForMethods(methods, changed);
  listenForOptions(models, lists.calibrations ?? [], changed);
  showExamples(examples, (example) => choose(example, take));
  const link = readLink();
  if (link.labels) setLabels(link.labels);
  if (link.list) setList(link.list);
  if (link.methods) setMethods(link.methods);
  if (link.options) setOptions(link.options);
  const first = examples.find((example) => example.label === link.example) ?? examples[0];
  // a link asks again; a first visit waits for the reader
  if (first) choose(first, take, { keepLabels: Boolean(link.labels || hasList()), keepModel: Boolean(link.options), quiet: !link.methods });
}

/** Begins, or asks for the token that the service wants. */
async function begin() {
  try {
    await start();
    $("token-form").hidden = true;
    for (const id of ["form", "answers"]) $(id).hidden = false;
  } catch (error) {
    if (error.status === 401) askForToken(hasToken() ? error.message : "");
    else showError(error);
  }
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token").value);
  begin();
});
for (const link of document.querySelectorAll("a.with-token"))
  link.addEventListener("click", async (event) => {
    if (!hasToken()) return; // an ordinary link
    event.preventDefault();
    location.href = URL.createObjectURL(await get(link.href).catch((error) => new Blob([error.message])));
  });
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const lack = missing();
  if (lack) showError(new Error(lack), event.submitter ?? $("go"));
  else classify(true);
});
begin();
