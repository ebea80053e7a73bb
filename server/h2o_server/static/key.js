// The API key: asked for when the server wants one, kept for this tab only.

import { byId } from "./dom.js";
import { Stored } from "./storage.js";

const key = new Stored("sessionStorage", "h2o-api-key");

let asking = null; // the one question that all waiting requests share

export const storedKey = () => key.get();

/** Ask for another key than the `refused` one → whether there is one now. */
export function askForKey(refused) {
  if (storedKey() !== refused) return Promise.resolve(true); // another request asked meanwhile
  asking ??= ask(refused).finally(() => {
    asking = null;
  });
  return asking;
}

function ask(refused) {
  const dialog = byId("key");
  const field = byId("key-value");
  const problem = byId("key-problem");
  problem.hidden = !refused;
  problem.textContent = "The server does not know this key.";
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    byId("key-cancel").onclick = () => dialog.close("cancel");
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      key.set(field.value.trim());
      dialog.close("given");
    };
    dialog.addEventListener("close", () => resolve(storedKey() !== refused), { once: true });
  });
}
