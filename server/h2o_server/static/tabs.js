// Conversations side by side: one is in view, and the others go on behind it.

import { byId, element } from "./dom.js";

const TURNS = { ArrowLeft: -1, ArrowRight: 1 }; // keys, and how many tabs further they go

export class Tabs {
  /**
   * make: makes a conversation.
   * onSwitch: given the conversation that comes into view, and the one that was, if any.
   */
  constructor(make, onSwitch) {
    this._make = make;
    this._onSwitch = onSwitch;
    this._tabs = []; // {conversation, button}
    this._selected = null;
    this._made = 0;
    this._list = byId("tab-list");
    this._list.addEventListener("keydown", (event) => this._onKey(event));
    byId("delete-chat").onclick = () => this._closeCurrent();
  }

  /** The conversation in view. */
  get current() {
    return this._selected?.conversation;
  }

  get conversations() {
    return this._tabs.map(({ conversation }) => conversation);
  }

  /** Conversations that are kept, behind the others. */
  restore(kept) {
    for (const each of kept) this._append().conversation.restore(each);
    this._show();
  }

  /** Bring the conversation of this id into view; the last one where there is none. */
  open(id) {
    const last = this._tabs.at(-1) ?? this._append();
    this._select(this._tabs.find(({ conversation }) => conversation.id === id) ?? last);
  }

  /** Bring an empty conversation into view: the current one if it is that. */
  add() {
    if (this.current.name) this._select(this._append());
  }

  /** End a conversation and delete what is kept of it. */
  close(conversation) {
    conversation.delete();
    this.remove(conversation);
  }

  /** Its tab goes; the one beside it comes into view, or an empty one. */
  remove(conversation) {
    const at = this.conversations.indexOf(conversation);
    const [removed] = this._tabs.splice(at, 1);
    removed.button.remove();
    const last = this._tabs.at(-1) ?? this._append();
    if (removed === this._selected) this._select(this._tabs[at] ?? last);
    else this._show();
  }

  _closeCurrent() {
    this.close(this.current);
    if (this._tabs.length === 1) byId("prompt").focus(); // the tabs are gone
  }

  _append() {
    const button = element("button", { type: "button", role: "tab", id: `tab-${++this._made}` });
    button.setAttribute("aria-controls", "panel");
    const tab = { conversation: this._make(() => this._show()), button };
    button.onclick = () => this._select(tab);
    this._tabs.push(tab);
    this._list.append(button);
    return tab;
  }

  _select(tab) {
    if (tab === this._selected) return;
    const before = this._selected;
    before?.conversation.noteView(); // its last scroll event may still be on its way
    this._selected = tab;
    byId("panel").setAttribute("aria-labelledby", tab.button.id);
    byId("panel").replaceChildren(tab.conversation.root);
    tab.conversation.look();
    this._show();
    this._onSwitch(tab.conversation, before?.conversation);
  }

  /** The names, which one is selected, and which ones are being answered. One conversation needs no tabs. */
  _show() {
    byId("tabs").hidden = this._tabs.length < 2;
    for (const { conversation, button } of this._tabs) {
      const selected = button === this._selected?.button;
      button.ariaSelected = selected;
      button.tabIndex = selected ? 0 : -1;
      const state = conversation.busy ? element("span", { className: "busy", textContent: " (answering)" }) : "";
      button.replaceChildren(element("bdi", { textContent: conversation.name || "New chat" }), state);
    }
  }

  _onKey(event) {
    const at = this._tabs.indexOf(this._selected);
    const count = this._tabs.length;
    if (event.key in TURNS) this._select(this._tabs[(at + TURNS[event.key] + count) % count]);
    else if (event.key === "Home") this._select(this._tabs[0]);
    else if (event.key === "End") this._select(this._tabs[count - 1]);
    else if (event.key === "Delete") this._closeCurrent();
    else return;
    event.preventDefault();
    this._selected.button.focus();
  }
}
