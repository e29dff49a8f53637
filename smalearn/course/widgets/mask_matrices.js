// Where the mask explorer's matrices stand, and how they are painted: cells, the words along two edges, a row's numbers.

import { clamp, digits, label, tall, write } from "./base.js";
import { inks, paintCells } from "./numbers.js";

// DECADES of logarithmic colours comes from mask_explorer.py.
export const [TITLE, GAP] = [20, 26]; // pixels: a line of text, between matrices
const [KEY, EDGE, LINE] = [26, 18, 13]; // pixels: the key to colours, a name of an axis, a row with a word
const FEW = 16; // words, whose names stand along the edges

/** How far from paper a number is, by its share of the largest: in proportion, or by its digits. */
export const share = (scale) => (scale === "log" ? (size) => 1 + Math.log10(size) / DECADES : (size) => size);

export const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

/** Matrices side by side from y on: their places, whether words fit along their rows, and pixels for what is there. */
function layOutLine(words, count, y, width) {
  const side = (rim) => tall((width - rim - (count - 1) * GAP) / count);
  const extent = clamp(7 * Math.max(...words.map((word) => word.length)) + 10, 30, 90);
  const named = words.length <= FEW && side(extent) / words.length >= LINE;
  const [rim, top] = named ? [extent, y + TITLE + extent] : [EDGE, y + TITLE];
  const long = side(rim);
  const place = (_, i) => ({ x: rim + i * (long + GAP), y: top, long, named, rim, first: !i });
  const boxes = Array.from({ length: count }, place);
  return { boxes, end: top + long + KEY };
}

/** Where L, G and M stand: side by side, or, where there is little room, M below the others. */
export function layOutMatrices(words, width) {
  const line = layOutLine(words, width < 540 ? 2 : 3, 0, width);
  if (line.boxes.length === 3) return { boxes: line.boxes, height: line.end };
  const below = layOutLine(words, 1, line.end, width);
  return { boxes: [...line.boxes, ...below.boxes], height: below.end };
}

/** The words along two edges of a matrix, those that row t weighs in full ink, or, of many, the names of the axes. */
function paintEdges(pen, row, { words, t }, { x, y, long, named, rim, first }, view) {
  const each = long / words.length;
  const ink = (name, bold) => {
    Object.assign(pen, { fillStyle: view.colour(name), font: view.font(12, bold ? "bold" : "normal") });
  };
  if (!named) {
    ink("dim");
    label(pen, "source s", [x + long, y - TITLE + 9], { align: "right" });
    if (first) label(pen, "target t", [7, y + long / 2], { align: "center", upwards: true });
    return;
  }
  for (const [s, word] of words.entries()) {
    ink(row[s] ? "ink" : "dim", row[s]);
    label(pen, word, [x + (s + 0.5) * each, y - 4], { room: rim - 8, upwards: true });
    ink(s === t ? "focus" : "dim", s === t);
    if (first) label(pen, word, [x - 6, y + (s + 0.5) * each], { align: "right", room: rim - 8 });
  }
}

/** The numbers of row t, where there is room for all: in their cells, or on empty ones beside them. */
function paintNumbers(pen, row, t, { x, y, long }, view) {
  const each = long / row.length;
  pen.font = view.font(12);
  const texts = row.map((value) => (value ? digits(value) : ""));
  const room = (s) => (texts[s - 1] || texts[s + 1] ? each - 2 : 1.5 * each);
  if (texts.some((text, s) => pen.measureText(text).width > room(s))) return;
  const inks = { ink: view.colour("ink"), halo: view.colour("paper") };
  for (const [s, text] of texts.entries()) write(pen, text, [x + (s + 0.5) * each, y + (t + 0.5) * each], inks);
}

/** A matrix, its name above it, the key to its colours below, and its row t. */
export function paintMatrix(pen, entries, shown, box, view) {
  const [{ name, t, T, scale }, { x, y, long, named, rim }] = [shown, box];
  const row = [...entries.slice(t * T, (t + 1) * T)];
  const limit = largest(entries) || 1;
  const [ink, signed] = [inks(view, pen, limit, share(scale)), entries.some((entry) => entry < 0)];
  Object.assign(pen, { font: view.font(13, "bold"), fillStyle: view.colour("ink") });
  label(pen, name, [x, y - (named ? rim : 0) - TITLE + 9], { room: named ? long : long - 56 });
  paintEdges(pen, row, shown, box, view);
  paintCells(pen, entries, T, [x, y, long, long], ink, view);
  Object.assign(pen, { strokeStyle: view.colour("focus"), lineWidth: 2 });
  pen.strokeRect(x + 1, y + (t * long) / T - 1, long - 2, long / T + 2);
  if (T <= FEW) paintNumbers(pen, row, t, box, view);
  const steps = Array.from({ length: 48 }, (_, i) => limit * (signed ? (2 * i - 47) / 47 : (i + 1) / 48));
  const lowest = limit / 10 ** DECADES;
  const log = steps.map((step) => Math.sign(step) * lowest * (limit / lowest) ** (Math.abs(step) / limit));
  const ends = [signed ? -limit : scale === "log" ? lowest : 0, limit].map((end) => digits(end));
  Object.assign(pen, { font: view.font(12), fillStyle: view.colour("dim") });
  const [from, to] = ends.map((end) => pen.measureText(end).width + 6);
  label(pen, ends[0], [x, y + long + 13]);
  label(pen, ends[1], [x + long, y + long + 13], { align: "right" });
  paintCells(pen, scale === "log" ? log : steps, 48, [x + from, y + long + 8, long - from - to, 10], ink, view);
}
