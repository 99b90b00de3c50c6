// The service behind this page: its lists, and one question at a time.

const BASE = new URL("v1/", document.baseURI);

let token = "";

/** The token of later requests. */
export function useToken(text) {
  token = text.trim();
}

/** What the service refused, or that it cannot be reached: what was wrong, what is expected, what to do. */
class Refused extends Error {
  constructor(status, { what, expected, do: advice }) {
    super(what);
    Object.assign(this, { status, what, expected, advice });
  }
}

/** GET v1/NAME. */
export const ask = (name) => request(name, {});

/** POST v1/NAME with a JSON body. */
export const send = (name, body, signal) =>
  request(name, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });

async function request(name, { headers = {}, ...options }) {
  const withToken = token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
  let answer;
  try {
    answer = await fetch(new URL(name, BASE), { ...options, headers: withToken });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, {
      what: "The service does not answer.",
      expected: `a running service at ${BASE.origin}`,
      do: "Start it again, or reload this page.",
    });
  }
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  throw new Refused(answer.status, body.error ?? { what: `The service answered with status ${answer.status}.` });
}
