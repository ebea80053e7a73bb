// The page: what the controls do, and who is behind them.

import { get } from "./api.js";
import { Attachments } from "./attachments.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { counted } from "./format.js";
import { MemoryPanel } from "./memory.js";
import { Settings } from "./settings.js";
import { SlotList } from "./slots.js";
import { Summary } from "./summary.js";
import { Tabs } from "./tabs.js";

const LOADING_POLL = 500; // milliseconds

const prompt = byId("prompt");
const memory = new MemoryPanel();
const summary = new Summary(byId("summary"));
const settings = new Settings(() => summary.show(settings.summary()));
const attachments = new Attachments(complain);
const tabs = new Tabs(makeConversation, switched);
new SlotList();

/** onState: called when what its tab shows may have changed. */
function makeConversation(onState) {
  const show = () => {
    onState();
    showBusy(tabs.current);
  };
  return new Conversation(settings, memory, { onState: show, onChange: writeAgain });
}

/** Another conversation is in view. Each keeps the message that is being written. */
function switched(conversation, before) {
  before.unsent = takeMessage();
  complain("");
  write(conversation.unsent);
  memory.close();
  showBusy(conversation);
}

function showBusy({ busy }) {
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
}

/** What is written, which is then no longer there. */
function takeMessage() {
  const message = { text: prompt.value.trim(), files: attachments.take() };
  prompt.value = "";
  fit();
  return message;
}

/** Put a message to where it is written. */
function write({ text, files }) {
  prompt.value = text;
  for (const file of files) attachments.add(file.name, file.text);
  fit();
}

function writeAgain(message) {
  write(message);
  prompt.focus();
}

function complain(sentence) {
  byId("composer-problem").textContent = sentence;
  byId("composer-problem").hidden = !sentence;
}

function send() {
  if (tabs.current.busy || !(prompt.value.trim() || attachments.texts.length)) return;
  const message = takeMessage();
  complain("");
  if (!settings.known) introduce(); // it could not be reached before, or had no key
  tabs.current.send(message);
  focusPrompt();
}

/** Not on a touch screen, whose keyboard would cover the answer. */
function focusPrompt() {
  if (matchMedia("(pointer: fine)").matches) prompt.focus();
  else prompt.blur();
}

/** As high as its text, up to what the style sheet allows. */
function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

function onKey(event) {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (tabs.current.busy) tabs.current.stop();
  else memory.close();
}

/** What the server is and does by default; waits until it has loaded its model. */
async function introduce() {
  const status = byId("status");
  for (;;) {
    try {
      const props = await get("props");
      byId("model").textContent = props.model_alias;
      document.title = `${props.model_alias} · h2o-serve`;
      status.textContent = `${counted(props.default_generation_settings.n_ctx, "token")} of context`;
      attachments.mostBytes = props.limits.max_body_bytes;
      settings.begin(props);
      return;
    } catch (error) {
      status.textContent = error.message;
      if (error.status !== 503) return;
    }
    await new Promise((resolve) => setTimeout(resolve, LOADING_POLL));
  }
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
prompt.addEventListener("input", fit);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", onKey);
byId("stop").onclick = () => {
  tabs.current.stop();
  focusPrompt();
};
byId("new-chat").onclick = () => {
  tabs.add();
  focusPrompt();
};
byId("open-settings").onclick = () => settings.open();
byId("summary").onclick = () => settings.open();

introduce();
focusPrompt();
