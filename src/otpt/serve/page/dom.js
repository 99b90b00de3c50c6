// Small helpers to build a page without markup in strings: nothing a server or a file says is ever read as HTML.

export const $ = (id) => document.getElementById(id);

/** An element with attributes, `on…` listeners and children (nodes or texts; null and false are left out). */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** Lengths as fractions of the parent's, {width: 0.5}; through the object model, as the page's policy forbids style attributes. */
export function sized(element, lengths) {
  for (const [name, fraction] of Object.entries(lengths)) element.style[name] = `${(100 * Math.min(1, Math.max(0, fraction))).toFixed(2)}%`;
  return element;
}

/** 0.9731 → "97.3 %"; what is not quite sure never reads as 100 %. */
export function percent(fraction) {
  const shown = 100 * fraction;
  if (shown >= 99.95 && fraction < 1) return "> 99.9 %";
  if (shown < 0.05 && fraction > 0) return "< 0.1 %";
  return `${shown.toFixed(1)} %`;
}

/** Seconds as people read them. */
export function duration(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return seconds >= 0.0995 ? `${Math.round(1000 * seconds)} ms` : `${(1000 * seconds).toFixed(1)} ms`;
}

/** "a", "a and b", "a, b and c". */
export function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}
