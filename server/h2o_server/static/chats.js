// The conversations that this browser keeps, and the messages that are being written. All pages of one server share
// them: what one page writes, the others are told.

import { storedNames, Stored } from "./storage.js";

const AREA = "localStorage";
const CHAT = "h2o-chat-"; // and an id: {revision, created, name, turns}
const DRAFT = "h2o-draft-"; // and an id: {created, text, files}

export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(3)), (part) => part.toString(36)).join("-");

/** All conversations by age, as {id, created, chat, draft}; chat or draft is null where there is none. */
export function keptChats() {
  const ids = new Set([CHAT, DRAFT].flatMap((prefix) => storedNames(AREA, prefix)));
  return [...ids]
    .map((id) => ({ id, chat: readChat(id), draft: readDraft(id) }))
    .filter(({ chat, draft }) => chat || draft)
    .map((kept) => ({ ...kept, created: (kept.chat ?? kept.draft).created }))
    .sort((first, second) => first.created - second.created);
}

export function readChat(id) {
  const chat = read(CHAT + id);
  return isChat(chat) ? chat : null;
}

/**
 * Keep a conversation → {id, revision, kept}: where it is now, and whether the browser took it.
 * revision: of what this page last read or wrote. Where another page has written since, both are kept: this one gets
 * an id of its own.
 */
export function keepChat(id, revision, chat) {
  const stored = readChat(id);
  const target = stored && stored.revision !== revision ? newId() : id;
  const next = newId();
  const kept = new Stored(AREA, CHAT + target).set(JSON.stringify({ ...chat, revision: next }));
  return kept ? { id: target, revision: next, kept } : { id, revision, kept };
}

/** → whether the browser took it. An empty message is none. */
export function keepDraft(id, created, { text, files }) {
  const draft = text || files.length ? JSON.stringify({ created, text, files }) : null;
  return new Stored(AREA, DRAFT + id).set(draft);
}

export function forgetChat(id) {
  for (const prefix of [CHAT, DRAFT]) new Stored(AREA, prefix + id).set(null);
}

export function forgetAllChats() {
  for (const prefix of [CHAT, DRAFT]) for (const id of storedNames(AREA, prefix)) forgetChat(id);
}

/** onChange: told the id of a conversation that another page has changed or deleted; null: perhaps all of them. */
export function watchChats(onChange) {
  addEventListener("storage", ({ key, storageArea }) => {
    if (storageArea !== window[AREA]) return;
    if (key === null) onChange(null);
    else if (key.startsWith(CHAT)) onChange(key.slice(CHAT.length));
  });
}

function readDraft(id) {
  const draft = read(DRAFT + id);
  return isMessage(draft) && Number.isFinite(draft.created) ? draft : null;
}

/** A record, or null where it cannot be read. */
function read(name) {
  try {
    return JSON.parse(new Stored(AREA, name).get());
  } catch {
    return null;
  }
}

const isText = (value) => typeof value === "string";
const isObject = (value) => typeof value === "object" && value !== null;

function isMessage(value) {
  const isFile = (file) => isObject(file) && isText(file.name) && isText(file.text);
  return isObject(value) && isText(value.text) && Array.isArray(value.files) && value.files.every(isFile);
}

/** Whether a record is one that this version of the page wrote. */
function isChat(value) {
  const isTurn = (turn) =>
    isObject(turn) && isMessage(turn.message) && isText(turn.answer) && isText(turn.problem) && isObject(turn.result);
  return (
    isObject(value) && isText(value.revision) && isText(value.name) && Number.isFinite(value.created) &&
    Array.isArray(value.turns) && value.turns.length > 0 && value.turns.every(isTurn)
  );
}
