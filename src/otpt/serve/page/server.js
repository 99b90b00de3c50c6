// The service behind this page: its lists, and one question at a time.

const BASE = new URL("v1/", document.baseURI);

let token = "";

/** The token of later requests. */
export function useToken(text) {
  token = text.trim();
}

/** An error answer of the service, or that it cannot be reached. */
class Refused extends Error {
  constructor(status, { message, given, expected, hint }) {
    super(message);
    Object.assign(this, { status, given, expected, hint });
  }
}

/** Whether requests carry a token. */
export const hasToken = () => token !== "";

/** A page of the service as a file, with the token. */
export async function get(address) {
  const answer = await fetch(address, { headers: { Authorization: `Bearer ${token}` } });
  return new Blob([await answer.text()], { type: answer.headers.get("Content-Type")?.includes("json") ? "application/json" : "text/plain" });
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
      message: "The service does not answer.",
      hint: `Start it again at ${BASE.origin}, or reload this page.`,
    });
  }
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  throw new Refused(answer.status, body.error ?? { message: `The service answered with status ${answer.status}.` });
}
