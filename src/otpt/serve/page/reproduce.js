// Commands that reproduce the answer, in tabs, each with a button that copies it; and a link with the settings.

import { make } from "./dom.js";

let shown = 0;

/** `snippets`: {title: text}; `link` leads back here with the same settings. */
export function showReproduce(place, snippets, link, note) {
  const titles = Object.keys(snippets);
  shown = Math.min(shown, titles.length - 1);
  const tabs = titles.map((title, at) => make("button", { type: "button", role: "tab", id: `tab-${at}`, "aria-controls": "snippet" }, title));
  const code = make("pre", { id: "snippet", role: "tabpanel", tabindex: "0" });
  const choose = (at) => {
    shown = at;
    tabs.forEach((tab, k) => {
      tab.setAttribute("aria-selected", String(k === at));
      tab.tabIndex = k === at ? 0 : -1;
    });
    code.setAttribute("aria-labelledby", `tab-${at}`);
    code.textContent = snippets[titles[at]];
  };
  const step = { ArrowRight: 1, ArrowLeft: -1 };
  const list = make("div", {
    role: "tablist",
    "aria-label": "Reproduce with",
    onkeydown: (event) => {
      if (!(event.key in step)) return;
      choose((shown + step[event.key] + tabs.length) % tabs.length);
      tabs[shown].focus();
    },
  });
  tabs.forEach((tab, at) => tab.addEventListener("click", () => choose(at)));
  list.append(...tabs);
  choose(shown);
  place.replaceChildren(
    make("div", { class: "row" }, list, copier("Copy", () => code.textContent), copier("Copy link", () => link)),
    code,
    make("p", { class: "small" }, note),
  );
}

function copier(words, text) {
  const button = make("button", { type: "button", "aria-live": "polite" }, words);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text())) ? "Copied" : "Select and copy by hand";
    setTimeout(() => (button.textContent = words), 2000);
  });
  return button;
}

/** The clipboard's interface exists on secure origins and the loopback only; elsewhere the old way is tried. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", { class: "hidden", readonly: true });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
