// The blocks of Markdown as DOM nodes: paragraphs, headings, lists, quotes, tables, rules and code. HTML is text.

import { element } from "./dom.js";
import { inline } from "./markdown_inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^[ \t]*(?:[-*+]|(\d{1,9})[.)])(?:[ \t]+|$)/;
const DELIMITER = /^:?-+:?$/;
const DEEPEST = 8; // nested quotes and lists; what is deeper is text

/**
 * The blocks of some lines → [{at, node}]; `at` is the line that a block begins with.
 * open: more may come after the last line.
 */
export function blocks(lines, open = false, depth = 0) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at++;
      continue;
    }
    const { node, next } = block(lines, at, open, depth);
    if (depth === 0) node.dir ||= "auto"; // an item or a quote takes its own from the blocks inside it
    found.push({ at, node });
    at = next;
  }
  return found;
}

function block(lines, at, open, depth) {
  const line = lines[at];
  const nests = depth < DEEPEST;
  if (FENCE.test(line)) return fencedCode(lines, at, open);
  if (HEADING.test(line)) return heading(lines, at, open);
  if (RULE.test(line)) return { node: element("hr"), next: at + 1 };
  if (indent(line) >= 4) return indentedCode(lines, at);
  if (nests && QUOTE.test(line)) return quote(lines, at, open, depth);
  if (nests && ITEM.test(line)) return list(lines, at, open, depth);
  return table(lines, at) ?? paragraph(lines, at, open);
}

const nested = (lines, open, depth) => blocks(lines, open, depth + 1).map(({ node }) => node);

/** Code up to the fence that ends it, or to the end of the text. */
function fencedCode(lines, at, open) {
  const [, fence, info] = FENCE.exec(lines[at]);
  const margin = indent(lines[at]);
  let end = at + 1;
  while (end < lines.length && !closes(lines[end].trim(), fence)) end++;
  const code = lines.slice(at + 1, end).map((line) => outdent(line, margin));
  if (open && end === lines.length && fence.startsWith(code.at(-1)?.trim() || " ")) code.pop(); // half a fence
  return { node: codeBlock(code.join("\n"), info.trim().split(/\s/)[0]), next: end + 1 };
}

const closes = (line, fence) => line.length >= fence.length && line === fence[0].repeat(line.length);

function indentedCode(lines, at) {
  let end = at + 1;
  while (end < lines.length && (isBlank(lines[end]) || indent(lines[end]) >= 4)) end++;
  while (isBlank(lines[end - 1])) end--;
  return { node: codeBlock(lines.slice(at, end).map((line) => outdent(line, 4)).join("\n"), ""), next: end };
}

/** Whoever shows it makes the button work: see copyOnClick. */
function codeBlock(code, language) {
  return element(
    "div",
    { className: "code", dir: "ltr" },
    element(
      "div",
      { className: "code-head" },
      element("span", { className: "quiet", textContent: language.slice(0, 30) }),
      element("button", { type: "button", className: "plain copy", textContent: "Copy" }),
    ),
    element("pre", { tabIndex: 0 }, element("code", { textContent: code })),
  );
}

/** The page has headings of two levels above it. */
function heading(lines, at, open) {
  const [start, marks] = HEADING.exec(lines[at]);
  const text = lines[at].slice(start.length).trim().replace(/(^|\s)#+$/, "");
  const node = element(`h${Math.min(marks.length + 2, 6)}`, {}, inline(text, open && at === lines.length - 1));
  return { node, next: at + 1 };
}

function quote(lines, at, open, depth) {
  const body = [];
  let next = at;
  while (next < lines.length && (QUOTE.test(lines[next]) || (body.length && continues(lines[next], body.at(-1))))) {
    body.push(lines[next++].replace(QUOTE, ""));
  }
  return { node: element("blockquote", {}, ...nested(body, open && next === lines.length, depth)), next };
}

function list(lines, at, open, depth) {
  const [, number] = ITEM.exec(lines[at]);
  const node = number === undefined ? element("ul") : element("ol", { start: Number(number) });
  let next = at;
  while (next < lines.length && !RULE.test(lines[next])) {
    const item = ITEM.exec(lines[next]);
    if (!item || (item[1] === undefined) !== (number === undefined)) break;
    const { body, end } = itemBody(lines, next, item[0].length);
    node.append(element("li", { dir: "auto" }, ...nested(body, open && end === lines.length, depth)));
    next = skipBlank(lines, end);
  }
  return { node, next };
}

/** The lines of one item without its bullet: indented ones, and those that continue its paragraph. */
function itemBody(lines, at, width) {
  const least = indent(lines[at]) + 2;
  const body = [lines[at].slice(width)];
  let end = at + 1;
  while (end < lines.length) {
    const text = skipBlank(lines, end);
    const inside = text < lines.length && indent(lines[text]) >= least;
    const goesOn = text === end && continues(lines[end], body.at(-1)) && !ITEM.test(lines[end]);
    if (!inside && !goesOn) break;
    for (; end < text; end++) body.push("");
    body.push(outdent(lines[end++], inside ? width : 0));
  }
  return { body, end };
}

function table(lines, at) {
  const names = cells(lines[at]);
  const sides = cells(lines[at + 1] ?? "");
  if (!lines[at].includes("|") || names.length !== sides.length) return null;
  if (!sides.every((side) => DELIMITER.test(side))) return null;
  const row = (tag, texts) =>
    element("tr", {}, ...texts.slice(0, sides.length).map((text, column) => cell(tag, text, sides[column])));
  let next = at + 2;
  const body = element("tbody");
  for (; next < lines.length && !isBlank(lines[next]) && !begins(lines[next]); next++) {
    body.append(row("td", cells(lines[next])));
  }
  const grid = element("table", {}, element("thead", {}, row("th", names)), body);
  return { node: element("div", { className: "table", tabIndex: 0 }, grid), next };
}

function cell(tag, text, side) {
  const className = side.endsWith(":") ? (side[0] === ":" ? "center" : "right") : "";
  return element(tag, { className, dir: "auto" }, inline(text));
}

function cells(line) {
  const parts = line.trim().split(/(?<!\\)\|/);
  if (parts[0] === "") parts.shift();
  if (parts.at(-1) === "") parts.pop();
  return parts.map((part) => part.trim());
}

/** Lines as they stand: a model's line breaks mean something. */
function paragraph(lines, at, open) {
  let next = at + 1;
  while (next < lines.length && continues(lines[next], lines[next - 1]) && !table(lines, next)) next++;
  const text = lines.slice(at, next).join("\n").trimEnd();
  return { node: element("p", {}, inline(text, open && next === lines.length)), next };
}

/** Whether `line` goes on with the paragraph that `before` is part of. */
const continues = (line, before) => !isBlank(line) && !isBlank(before) && !begins(line);

/** Whether a block begins here even right after a paragraph. */
function begins(line) {
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const item = ITEM.exec(line);
  return item !== null && item[0].length < line.length && (item[1] === undefined || item[1] === "1");
}

const isBlank = (line) => !/\S/.test(line);

function skipBlank(lines, at) {
  while (at < lines.length && isBlank(lines[at])) at++;
  return at;
}

/** Columns of white space that a line begins with. */
function indent(line) {
  let columns = 0;
  for (const character of line) {
    if (character !== " " && character !== "\t") break;
    columns += character === "\t" ? 4 : 1;
  }
  return columns;
}

/** The line without up to `columns` of them. */
function outdent(line, columns) {
  let at = 0;
  for (let left = columns; left > 0 && (line[at] === " " || line[at] === "\t"); at++) {
    left -= line[at] === "\t" ? 4 : 1;
  }
  return line.slice(at);
}
