// The page: what the controls do, and who is behind them.

import { forgetAllChats, keptChats, readChat, watchChats } from "./chats.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { MemoryPanel } from "./memory.js";
import { Settings } from "./settings.js";
import { SlotList } from "./slots.js";
import { ServerStatus } from "./status.js";
import { Stored } from "./storage.js";
import { Summary } from "./summary.js";
import { Tabs } from "./tabs.js";

const selected = new Stored("sessionStorage", "h2o-selected"); // the id of the conversation in view

const memory = new MemoryPanel();
const summary = new Summary();
const settings = new Settings(() => status.look(), () => summary.show(settings.summary()));
const composer = new Composer(send, keepUnsent, { current: () => tabs.current, onElsewhere: attachElsewhere });
const tabs = new Tabs(makeConversation, switched);
const status = new ServerStatus(meet);
new SlotList();

/** onState: called when what its tab shows may have changed. */
function makeConversation(onState) {
  const conversation = new Conversation(settings, memory, {
    onState: () => {
      onState();
      if (conversation === tabs.current) showBusy(conversation);
      if (conversation.unreached) status.look();
    },
    onEdit: writeAgain,
    onKept: (before) => kept(conversation, before),
  });
  return conversation;
}

/** Another conversation is in view. Each keeps the message that is being written. */
function switched(conversation, before) {
  if (before) {
    before.unsent = composer.take();
    before.keepUnsent(before.unsent);
    memory.close();
  }
  composer.write(conversation.unsent);
  selected.set(conversation.id);
  showBusy(conversation);
}

function showBusy({ busy }) {
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
}

/** A message goes back to where messages are written, in front of what is there. */
function writeAgain({ text, files }) {
  const { message } = composer;
  composer.write({ text: [text, message.text].filter(Boolean).join("\n\n"), files: [...files, ...message.files] });
  keepUnsent();
  byId("prompt").focus();
}

function send() {
  const { text, files } = composer.message;
  if (tabs.current.busy || !(text || files.length)) return;
  tabs.current.send(composer.take());
  keepUnsent();
  composer.focus();
}

function keepUnsent() {
  tabs.current.keepUnsent(composer.message);
}

/** To the unsent message of a conversation that is not in view, unless it was deleted. */
function attachElsewhere(conversation, file) {
  if (!tabs.conversations.includes(conversation)) return;
  const { text, files } = conversation.unsent;
  conversation.unsent = { text, files: [...files, file] };
  conversation.keepUnsent(conversation.unsent);
}

/** What the browser does not keep is said. `before` is the id that the conversation had. */
function kept(conversation, before) {
  byId("not-kept").hidden = tabs.conversations.every((each) => each.kept);
  if (conversation === tabs.current) selected.set(conversation.id);
  if (conversation.id !== before) changedElsewhere(before); // the one of that id is another page's
}

/** Another page has changed or deleted a conversation; null: perhaps all of them. */
function changedElsewhere(id) {
  if (id === null) for (const conversation of tabs.conversations) changedElsewhere(conversation.id);
  else {
    const chat = readChat(id);
    const conversation = tabs.conversations.find((each) => each.id === id);
    if (chat && !conversation) tabs.restore([{ id, created: chat.created, chat, draft: null }]);
    else if (conversation && !conversation.busy) follow(conversation, chat); // a busy one is kept beside the other page's
  }
}

/** Show what another page made of a conversation. What is being written here stays. */
function follow(conversation, chat) {
  const { text, files } = conversation === tabs.current ? composer.message : conversation.unsent;
  if (chat) conversation.update(chat);
  else if (text || files.length || !conversation.name) conversation.update({ revision: null, name: "", turns: [] });
  else tabs.remove(conversation);
}

/** The page may not come back. */
function keepAll() {
  keepUnsent();
  for (const conversation of tabs.conversations) if (conversation.busy) conversation.keep();
}

function deleteAll() {
  if (!confirm("Delete all chats and unsent messages that this browser keeps?")) return;
  composer.take();
  for (const conversation of tabs.conversations) tabs.close(conversation);
  forgetAllChats(); // those too that this version of the page cannot read
}

function onKey(event) {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (tabs.current.busy) tabs.current.stop();
  else memory.close();
}

/** The server says what it is and does by default. */
function meet(props) {
  composer.mostBytes = props.limits.max_body_bytes;
  settings.begin(props);
}

document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => document.hidden && keepAll());
addEventListener("pagehide", keepAll);
byId("stop").onclick = () => {
  tabs.current.stop();
  composer.focus();
};
byId("new-chat").onclick = () => {
  tabs.add();
  composer.focus();
};
byId("open-settings").onclick = () => settings.open();
byId("summary").onclick = () => settings.open();
byId("delete-chats").onclick = deleteAll;

tabs.restore(keptChats());
tabs.open(selected.get());
watchChats(changedElsewhere);
composer.focus();
