// The line under the model's name: what the server is, or why it does not answer.

import { get, serverError, ServerError } from "./api.js";
import { byId } from "./dom.js";
import { counted } from "./format.js";

const POLL = 5000; // milliseconds
const LOADING_POLL = 500;
const PATIENCE = 10_000;

export class ServerStatus {
  /** onProps: given what the server is and does by default (GET /props), first and when it has come back. */
  constructor(onProps) {
    this._line = byId("status");
    this._onProps = onProps;
    this._unknown = true; // whether the server is to be asked what it is
    this._looking = null; // a promise while it looks
    this._timer = null;
    document.addEventListener("visibilitychange", () => this._poll());
    this._poll();
  }

  /** Something went wrong, or is wanted that was refused: look at once. → the ServerError that came instead, or null. */
  look() {
    this._unknown = true;
    return this._look();
  }

  /** As long as the page is in view. */
  _poll() {
    if (!document.hidden) this._look();
  }

  _look() {
    this._looking ??= this._lookOnce().finally(() => {
      this._looking = null;
    });
    return this._looking;
  }

  /** Now, and again later. */
  async _lookOnce() {
    clearTimeout(this._timer);
    const problem = await this._ask().then(() => null, problemOf);
    const loading = this._unknown && problem?.status === 503;
    this._timer = setTimeout(() => this._poll(), loading ? LOADING_POLL : POLL);
    if (!problem) return null;
    this._say(problem.message, true);
    this._unknown = problem.status !== 401; // a key that was not given is asked for when something is sent
    return problem;
  }

  async _ask() {
    await get("health", AbortSignal.timeout(PATIENCE));
    if (!this._unknown) return;
    const props = await get("props");
    this._unknown = false;
    byId("model").textContent = props.model_alias;
    document.title = `${props.model_alias} · h2o-serve`;
    this._say(`${counted(props.default_generation_settings.n_ctx, "token")} of context`, false);
    this._onProps(props);
  }

  _say(text, bad) {
    this._line.textContent = text;
    this._line.className = bad ? "problem" : "quiet";
  }
}

const problemOf = (error) =>
  error.name === "TimeoutError" ? new ServerError("the server does not answer") : serverError(error);
