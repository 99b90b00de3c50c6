// The image: dropped, pasted, chosen as a file, or one of the examples.

import { $, make } from "./dom.js";

let current = null;

/** {name, bytes, base64, url, example} of the image, or null. */
export const chosenImage = () => current;

/** Listens to all ways in which an image may come; `changed` is called when there is a new one. */
export function listenForImages(changed) {
  const take = async (file, example = null, quiet = false) => {
    await setImage(file, example);
    if (!quiet) changed();
  };
  $("file").addEventListener("change", () => $("file").files.length && take($("file").files[0]));
  addEventListener("paste", (event) => {
    const file = imageIn(event.clipboardData);
    if (!file) return; // a text: for the field that has the focus
    event.preventDefault();
    take(file);
  });
  const drop = $("drop");
  addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  addEventListener("dragleave", (event) => event.relatedTarget || drop.classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    const file = imageIn(event.dataTransfer);
    if (file) take(file);
    else $("image-facts").textContent = "That was not an image file.";
  });
  return take;
}

function imageIn(transfer) {
  return [...(transfer?.files ?? [])].find((file) => file.type.startsWith("image/") || file.type === "");
}

async function setImage(file, example) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const name = file.name || "pasted.png";
  current = { name, bytes, base64: base64(bytes), example };
  const preview = $("preview");
  if (preview.src) URL.revokeObjectURL(preview.src);
  preview.src = current.url = URL.createObjectURL(file);
  preview.alt = `The image ${name}`;
  preview.hidden = false;
  preview.onerror = () => (preview.hidden = true); // the service may read what a browser cannot, a TIFF say
  $("image-facts").replaceChildren(name, ` · ${size(bytes.length)} · `, make("a", { href: preview.src, download: name }, "save"));
  for (const button of $("examples").children) button.setAttribute("aria-pressed", String(button.dataset.name === example));
}

function size(count) {
  if (count < 1e3) return `${count} byte${count === 1 ? "" : "s"}`;
  return count < 1e5 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

/** Buttons of the service's own examples. */
export function showExamples(examples, choose) {
  $("examples").replaceChildren(
    ...examples.map((example) =>
      make(
        "button",
        { type: "button", "aria-pressed": "false", "data-name": example.label, title: example.label, onclick: () => choose(example) },
        make("img", { src: `data:${typeOf(example)};base64,${example.image}`, alt: example.label, width: 44, height: 44 }),
      ),
    ),
  );
  $("examples-block").hidden = examples.length === 0;
}

/** The example's image as a file. */
export function exampleFile(example) {
  const bytes = Uint8Array.from(atob(example.image), (letter) => letter.charCodeAt(0));
  const type = typeOf(example);
  const suffix = type === "image/png" ? "png" : "jpg";
  return new File([bytes], `${example.label.replace(/[^\w-]+/g, "-")}.${suffix}`, { type });
}

/** PNG or JPEG, by the first letters of its base64. */
const typeOf = (example) => (example.image.startsWith("iVBOR") ? "image/png" : "image/jpeg");

function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}
