// The marks inside one paragraph of Markdown, as DOM nodes. Time is linear in the text, whatever a model writes.

import { element } from "./dom.js";

const MARK = /\\[\\`*_~[\]#+\-.!|<>]|`+|\*+|_+|~~|!?\[|<?https?:\/\//g;
const LINK = /!?\[((?:\\.|[^[\]\\])*)\]\(([^\s()<>]{0,2000}(?:\([^\s()<>]{0,2000}\)[^\s()<>]{0,2000})?)(?: +"[^"\n]*")?\)/y;
const ADDRESS = /https?:\/\/[^\s<>"`]{1,2000}/y;
const AFTER_ADDRESS = /[.,;:!?'*_~\])}。，；：！？、）」』】》”’]/; // at its end they belong to the sentence
const HALF_LINK = /!?\[([^[\]\n]{1,200})\]\([^\s()]{0,2000}$/;
const MOST_OPEN = 8; // nested marks; more are text
const TAGS = { "*": "em", _: "em", "**": "strong", __: "strong", "~~": "del" };

/** Nodes for `text`. open: more of it may come, so a mark without its end counts as if the end were there. */
export function inline(text, open = false) {
  return new Inline(open ? withoutHalfLink(text) : text, open, true).nodes();
}

class Inline {
  constructor(text, open, links) {
    this._text = text;
    this._open = open;
    this._links = links; // none inside a link
    this._root = document.createDocumentFragment();
    this._stack = []; // {mark, node, sure}: what has begun
    this._endless = new Set(); // lengths of backtick runs that nothing ends
    this._read = 0; // up to here the text is in the nodes
  }

  nodes() {
    const marks = new RegExp(MARK);
    for (let found; (found = marks.exec(this._text)); marks.lastIndex = Math.max(this._read, marks.lastIndex)) {
      this._take(found[0], found.index);
    }
    this._write(this._open ? this._beforeHalfMarks() : this._text.length);
    while (this._stack.length) {
      const ended = this._stack.pop();
      if (!(this._open && ended.sure)) unwrap(ended);
    }
    this._root.normalize();
    return this._root;
  }

  get _node() {
    return this._stack.at(-1)?.node ?? this._root;
  }

  /** Marks at the end that the next text may complete are not shown yet. */
  _beforeHalfMarks() {
    let end = this._text.length;
    while (end > this._read && "*_`~".includes(this._text[end - 1])) end--;
    return end;
  }

  /** The text before `end` has no marks. next: where reading goes on. */
  _write(end, next = end) {
    if (end > this._read) this._node.append(this._text.slice(this._read, end));
    this._read = next;
  }

  _add(node, start, end) {
    this._write(start, end);
    this._node.append(node);
  }

  _take(mark, at) {
    if (mark[0] === "\\") this._add(mark[1], at, at + 2);
    else if (mark[0] === "`") this._code(mark, at);
    else if (mark.endsWith("[")) this._link(at);
    else if (mark.endsWith("//")) this._address(at);
    else if (mark.length <= 3) this._emphasis(mark, at);
  }

  _code(ticks, at) {
    const start = at + ticks.length;
    let end = this._endless.has(ticks.length) ? -1 : endOfCode(this._text, ticks.length, start);
    if (end < 0) {
      this._endless.add(ticks.length);
      if (!this._open || ticks.length > 1 || start === this._text.length || isWord(this._text[at - 1])) return;
      end = this._text.length;
    }
    const code = this._text.slice(start, end).replaceAll("\n", " ");
    const padded = code.length > 2 && code[0] === " " && code.at(-1) === " ";
    this._add(element("code", { dir: "ltr", textContent: padded ? code.slice(1, -1) : code }), at, end + ticks.length);
  }

  _link(at) {
    LINK.lastIndex = at;
    const [whole, label, address] = (this._links && LINK.exec(this._text)) || [];
    const link = whole && label && anchor(address);
    if (!link) return;
    link.append(new Inline(label, false, false).nodes());
    this._add(link, at, at + whole.length);
  }

  _address(at) {
    const start = at + (this._text[at] === "<" ? 1 : 0);
    ADDRESS.lastIndex = start;
    const [found] = (this._links && !isWord(this._text[at - 1]) && ADDRESS.exec(this._text)) || [];
    const address = found && (start === at ? withoutTail(found) : found);
    const link = address && anchor(address);
    if (!link) return;
    link.append(address);
    const end = start + address.length;
    if (start === at) this._add(link, at, end);
    else if (this._text[end] === ">") this._add(link, at, end + 1);
  }

  /** Stars, underscores or tildes: they end what they can, and what is left of them begins something. */
  _emphasis(run, at) {
    const before = this._text[at - 1];
    const after = this._text[at + run.length];
    const begins = !isSpace(after) && (isWord(after) || !isWord(before));
    const ends = !isSpace(before) && (isWord(before) || !isWord(after));
    if (run[0] === "_" && isWord(before) && isWord(after)) return;
    let left = run;
    this._write(at);
    while (ends && left) {
      const fits = ({ mark }) => (left.length === 3 ? left.startsWith(mark) : left === mark);
      const from = this._stack.findLastIndex(fits);
      if (from < 0) break;
      while (this._stack.length > from + 1) unwrap(this._stack.pop());
      left = left.slice(this._stack.pop().mark.length);
    }
    while (begins && left && this._stack.length < MOST_OPEN) {
      const mark = left.slice(0, 2);
      const node = element(TAGS[mark]);
      this._node.append(node);
      this._stack.push({ mark, node, sure: !isWord(before) });
      left = left.slice(mark.length);
    }
    this._read = at + run.length - left.length;
  }
}

/** A link to another site; null where the address is none of http or https. */
function anchor(address) {
  const url = URL.canParse(address) ? new URL(address) : null;
  if (!url || !["http:", "https:"].includes(url.protocol)) return null;
  return element("a", { href: url.href, title: url.href, target: "_blank", rel: "noopener noreferrer" });
}

/** Its mark is text after all. */
function unwrap({ mark, node }) {
  const inside = document.createDocumentFragment();
  inside.append(mark);
  while (node.firstChild) inside.append(node.firstChild);
  node.replaceWith(inside);
}

/** Where the run of exactly `length` backticks is that ends code; -1 if nowhere. */
function endOfCode(text, length, start) {
  const runs = /`+/g;
  runs.lastIndex = start;
  for (let run; (run = runs.exec(text)); ) if (run[0].length === length) return run.index;
  return -1;
}

function withoutTail(address) {
  const count = (bracket) => address.split(bracket).length;
  let unmatched = count(")") - count("(");
  let end = address.length;
  while (end && AFTER_ADDRESS.test(address[end - 1])) {
    if (address[end - 1] === ")" && unmatched-- <= 0) break;
    end--;
  }
  return address.slice(0, end);
}

/** A link at the end whose address is still coming is its label as yet. */
function withoutHalfLink(text) {
  const tail = text.slice(-2300);
  const link = HALF_LINK.exec(tail);
  return link ? text.slice(0, text.length - tail.length + link.index) + link[1] : text;
}

const isSpace = (character) => character === undefined || /\s/.test(character);
const isWord = (character) => character !== undefined && /[^\s!-/:-@[-`{-~]/.test(character);
