// The settings in the address, so that a link leads to the same question. An image of the reader's own is not in it.

/** What the address holds: {example, list, labels, methods, options}; parts that are missing or broken are left out. */
export function readLink() {
  try {
    return JSON.parse(new URLSearchParams(location.hash.slice(1)).get("q")) ?? {};
  } catch {
    return {};
  }
}

/** An address of this page with these settings. */
export function linkTo(settings) {
  const address = new URL(location.href);
  address.hash = new URLSearchParams({ q: JSON.stringify(settings) }).toString();
  return address.href;
}
