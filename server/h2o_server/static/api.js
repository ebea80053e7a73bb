// Requests to the server that this page came from.

import { askForKey, storedKey } from "./key.js";
import { events } from "./sse.js";

/** What the server, or the way to it, refused. `message` is the server's own sentence where there is one. */
export class ServerError extends Error {
  constructor(message, { status = 0, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter; // seconds
  }

  static async of(response) {
    const body = await response.json().catch(() => null);
    const message = body?.error?.message ?? `the server answered ${response.status} ${response.statusText}`;
    const seconds = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
    return new ServerError(message, {
      status: response.status,
      retryAfter: Number.isNaN(seconds) ? null : seconds,
    });
  }
}

/** `error` where it is a ServerError; throws any other. */
export function serverError(error) {
  if (error instanceof ServerError) return error;
  throw error;
}

/** A GET's JSON value. Asks the person for an API key when the server wants one. Throws ServerError. */
export async function get(path, signal) {
  return json(await call(path, { signal }), signal);
}

/** A POST's JSON value. Otherwise as `get`. */
export async function post(path, body) {
  return json(await call(path, posting(body)));
}

/** The chunks of a streamed chat answer. Throws ServerError, and AbortError when the signal says so. */
export async function* chat(body, signal) {
  const response = await call("v1/chat/completions", { ...posting(body), signal });
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (!chunk.choices) throw new ServerError(chunk.error?.message ?? "the server sent what is no part of an answer");
      yield chunk;
    }
  } catch (error) {
    throw signal.aborted ? signal.reason : broken(error);
  }
  throw broken();
}

/** What `promise` brings. Throws AbortError when the signal says so. */
export function unlessAborted(promise, signal) {
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    promise.then(resolve, reject);
  });
}

const posting = (body) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

async function json(response, signal) {
  try {
    return await response.json();
  } catch (error) {
    throw signal?.aborted ? signal.reason : broken(error);
  }
}

const broken = (error) =>
  error instanceof ServerError ? error : new ServerError("the connection was lost before the answer was complete");

async function call(path, options) {
  for (;;) {
    const key = storedKey();
    const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
    const response = await reach(path, { ...options, headers });
    if (response.ok) return response;
    const again = response.status === 401 && (await askForKey(key));
    if (!again) throw await ServerError.of(response);
    options.signal?.throwIfAborted();
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (options.signal?.aborted) throw options.signal.reason;
    throw new ServerError("the server cannot be reached: is it running?");
  }
}
