// Multi-level attention over the words of a text: levels and scores of all pairs, their cost, and the key cache.

import { clamp, decimals, digits, dot, explorer, knob, label, make, number, tall, trace, widthOf, write } from "./base.js";
import { sign } from "./numbers.js";

const TRAITS = ["ranks", "length", "leaf", "seed", "pair"];
// MAX_LEVELS, MAX_RANK and MAX_LEAF come from score_explorer.py.
const [TITLE, CELL, LEFT, LANE, HIGH, FOOT] = [20, 40, 48, 13, 110, 24]; // pixels
const TALL = 0.33; // of the screen, a triangle
const OWN = "your own";

// ---- numbers ------------------------------------------------------------------------------------------------------

/** Block lengths that double from the finest level up, the first long enough for T tokens. */
export function blockLens(T, L, leaf) {
  if (L === 1) return [T];
  const finest = leaf || Math.ceil(T / 2 ** (L - 1));
  const lens = Array.from({ length: L }, (_, l) => finest * 2 ** (L - 1 - l));
  lens[0] = Math.max(2, Math.ceil(T / lens[1])) * lens[1];
  return lens;
}

/** Pairs j ≤ i of T tokens that are in a common block of b. */
export const pairs = (T, b) => (Math.floor(T / b) * b * (b + 1) + (T % b) * ((T % b) + 1)) / 2;

/** How many keys of a level with blocks of b are kept after t tokens. */
export const kept = (t, b) => ((t - 1) % b) + 1;

/** The same columns in another number of levels: a new one takes half of the last; one that ends leaves it its own. */
export function split(ranks, L) {
  const next = [...ranks];
  while (next.length > L) next.push(next.pop() + next.pop());
  while (next.length < L) next.push(...[next.pop()].flatMap((last) => [Math.ceil(last / 2), Math.floor(last / 2)]));
  return next;
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

/** A pair moved until it is one of T tokens. */
const within = ([i, j], T) => [Math.min(i, T - 1), Math.min(j, T - 1)];

/** The state of the model, or of a pair that is pointed at, and all that follows from it. */
export function read(view) {
  const [ranks, T, leaf, seed, chosen] = TRAITS.map((name) => view.get(name));
  const [r, lens, t] = [sum(ranks), blockLens(T, ranks.length, leaf), within(chosen, T)[0] + 1];
  const [names, words] = [[...new Set(view.get("_words"))], view.get("_words").slice(0, T)];
  const vectors = words.map((word) => view.get("_draws")[seed][names.indexOf(word)].slice(0, r));
  const columns = [0, ...ranks.keys()].map((_, d) => sum(ranks.slice(0, d))); // of the first d levels
  const d = (i, j) => lens.filter((b) => Math.floor(i / b) === Math.floor(j / b)).length;
  const score = (i, j, R) => dot(vectors[i].slice(0, R), vectors[j]) / Math.sqrt(r);
  const levels = words.map((_, i) => Array.from({ length: i + 1 }, (_, j) => d(i, j)));
  const scores = levels.map((row, i) => row.map((d, j) => score(i, j, columns[d])));
  return {
    ...{ ranks, T, leaf, words, pair: within(view.hover ?? chosen, T), r, lens, t, columns, levels, scores },
    standard: scores.map((row, i) => row.map((_, j) => score(i, j, r))),
    macs: ranks.map((rank, l) => rank * pairs(T, lens[l])),
    keys: ranks.map((rank, l) => rank * kept(t, lens[l])),
    room: sum(ranks.map((rank, l) => rank * Math.min(T, lens[l]))),
  };
}

/** The weight of a key among the scores of a row. */
export const weight = (row, j) => Math.exp(row[j]) / sum(row.map(Math.exp));

/** A part of a whole, three digits of it. */
const ratio = (part, whole) => digits(part / whole, 3);
const tokens = (count) => (count === 1 ? "token" : "tokens");

const percent = (part, whole) => `${Math.round((100 * part) / whole)}\u00a0%`;

/** The read-out: what it costs beside standard attention. */
function headline({ T, r, t, macs, keys }) {
  const cost = `${percent(sum(macs), r * pairs(T, T))} of the multiply-adds`;
  return `${cost}, ${percent(sum(keys), t * r)} of the keys after ${t} ${tokens(t)}`;
}

/** What a screen reader hears, and everyone can read. */
function describe({ ranks, T, words, pair: [i, j], r, lens, t, columns, levels, scores, standard, macs, keys, room }) {
  const [d, all, every] = [levels[i][j], sum(macs), ranks.length === 1 ? "the only level" : "all levels"];
  const share = d === ranks.length ? every : `${d} of ${ranks.length}\u00a0levels, blocks of ${lens[d - 1]}`;
  const seen = (rows) => `${decimals(rows[i][j])}, weight ${decimals(weight(rows[i], j))}`;
  const more = columns[d] === r ? "" : `; all ${r} would say ${seen(standard)}`;
  const who = `Words ${i} “${words[i]}” and ${j} “${words[j]}” share ${share}: ${columns[d]} of ${r} columns`;
  const cost = `All scores take ${number(all)} multiply-adds, ${ratio(all, r * pairs(T, T))} × standard attention's`;
  const cache = `${number(sum(keys))} of ${number(t * r)} key numbers are kept, with room for ${number(room)}`;
  return `${who}, score ${seen(scores)}${more}. ${cost}. After ${t} ${tokens(t)} ${cache}.`;
}

// ---- drawing ------------------------------------------------------------------------------------------------------

/** Colours of levels, from near the paper to far from it: the steps differ in lightness, which everyone can see. */
function shades(count, { colour }) {
  const mix = (a, b, x) => `color-mix(in srgb, ${a}, ${b} ${100 * x}%)`;
  const [paper, pale, full, ink] = ["paper", "first", "first-strong", "ink"].map(colour);
  const stops = [mix(paper, pale, 0.55), pale, full, mix(full, ink, 0.55)];
  return Array.from({ length: count }, (_, l) => {
    const place = (3 * l) / Math.max(count - 1, 1);
    const first = Math.min(Math.floor(place), 2);
    return mix(stops[first], stops[first + 1], place - first);
  });
}

const cellSize = (T, width) => Math.min(CELL, (tall(width, TALL) - 4) / T);

/** The triangle of all pairs, pale where the query is still to come: its name, its blocks, the pair with its row. */
function paintTriangle(pen, { T, t: arrived, lens, words, pair: [i, j] }, width, view, { name, fill }) {
  const { colour, font } = view;
  const cell = cellSize(T, width);
  const at = (token) => 2 + Math.round(token * cell);
  Object.assign(pen, { font: font(13, "bold"), fillStyle: colour("ink") });
  label(pen, name, [2, 9], { room: width - 4 });
  pen.fillStyle = colour("raised");
  pen.fillRect(2, TITLE + 2, at(T) - 2, at(T) - 2);
  for (const t of words.keys()) {
    for (let s = 0; s <= t; s++) {
      const [colour, full, value = 0] = fill(t, s);
      const box = [at(s), TITLE + at(t), at(s + 1) - at(s), at(t + 1) - at(t)];
      Object.assign(pen, { fillStyle: colour, globalAlpha: t < arrived ? full : 0.25 * full });
      pen.fillRect(...box);
      pen.globalAlpha = t < arrived ? 1 : 0.25;
      sign(pen, value, box, view);
    }
  }
  pen.globalAlpha = 1;
  for (const [l, b] of lens.entries()) {
    Object.assign(pen, { strokeStyle: colour("ink"), lineWidth: Math.max(2 - 0.5 * l, 0.5) });
    for (let start = 0; start < T; start += b) {
      const [low, high] = [at(start), at(Math.min(start + b, T))];
      trace(pen, [[low, TITLE + low], [low, TITLE + high], [high, TITLE + high]]);
    }
  }
  const [y, high] = [TITLE + at(i), at(i + 1) - at(i)];
  const frame = (from, to, line, lineWidth, more) => {
    Object.assign(pen, { strokeStyle: colour(line), lineWidth });
    pen.strokeRect(at(from) - more, y - more, at(to) - at(from) + 2 * more, high + 2 * more);
  };
  frame(0, i + 1, "second-strong", 1.5, 0);
  frame(j, j + 1, "paper", 6, 2);
  frame(j, j + 1, "second-strong", 3, 2);
}

/** d(i, j); its number stands in the lower left corner of a block, where there is room. */
function paintLevels(pen, shown, width, view) {
  const [{ T, lens, levels, pair: [i, j] }, fills] = [shown, shades(shown.ranks.length, view)];
  const name = `levels that a pair shares: d(${i}, ${j}) = ${levels[i][j]}`;
  paintTriangle(pen, shown, width, view, { name, fill: (i, j) => [fills[levels[i][j] - 1], 1] });
  const [cell, inks] = [cellSize(T, width), { ink: view.colour("ink"), halo: view.colour("paper") }];
  for (const [l, b] of lens.entries()) {
    const size = lens[l + 1] ?? (2 * b) / 3;
    for (let start = 0; start < T && size * cell >= 15; start += b) {
      const [x, y] = [start + size / 2, Math.min(start + b, T) - size / 2];
      if (levels[Math.floor(y)]?.[Math.floor(x)] !== l + 1) continue;
      write(pen, `${l + 1}`, [2 + x * cell, TITLE + 2 + y * cell], inks);
    }
  }
}

/** The scores, the fuller the larger. */
function paintScores(pen, shown, width, view) {
  const { words, scores, pair: [i, j] } = shown;
  const most = Math.max(...scores.flat().map(Math.abs)) || 1;
  const [above, below] = ["first-strong", "second-strong"].map(view.colour);
  const share = (score) => Math.sqrt(Math.abs(score) / most);
  const fill = (i, j) => [scores[i][j] < 0 ? below : above, share(scores[i][j]), scores[i][j]];
  const name = `scores: “${words[i]}”, “${words[j]}” ${decimals(scores[i][j])}`;
  paintTriangle(pen, shown, width, view, { name, fill });
}

/** Where the steps and the numbers of the cache are. */
function layOutCache({ T, r, ranks }, width) {
  const [wide, top] = [width - LEFT - 8, TITLE + ranks.length * LANE + 16];
  return { wide, top, x: (t) => LEFT + (t * wide) / T, y: (value) => top + HIGH * (1 - value / (T * r)) };
}

/** For each level the keys that are kept after t tokens, between the borders of its blocks. */
function paintLanes(pen, { T, t, ranks, lens }, { x, wide }, view) {
  const [fills, { colour, font }] = [shades(ranks.length, view), view];
  for (const [l, b] of lens.entries()) {
    const [low, high, first] = [TITLE + l * LANE, LANE - 2, x(t - kept(t, b))];
    Object.assign(pen, { font: font(12), fillStyle: colour("dim") });
    label(pen, `level ${l + 1}`, [LEFT - 6, low + LANE / 2], { align: "right" });
    pen.fillStyle = colour("raised");
    pen.fillRect(LEFT, low, wide, high);
    pen.fillStyle = fills[l];
    if (ranks[l]) pen.fillRect(first, low, x(t) - first, high);
    Object.assign(pen, { strokeStyle: colour("dim"), lineWidth: 1 });
    for (let edge = 0; edge < T; edge += b) trace(pen, [[x(edge), low], [x(edge), low + high]]);
  }
}

/** The keys of each level after t tokens; below, how many numbers they are at every step. */
function paintCache(pen, shown, width, view, hot) {
  const { T, t, r, ranks, lens, keys, room } = shown;
  const [place, { colour, font }] = [layOutCache(shown, width), view];
  const { x, y, top, wide } = place;
  Object.assign(pen, { font: font(13, "bold"), fillStyle: colour("ink") });
  label(pen, `Keys kept after t = ${t} ${tokens(t)}`, [2, 9], { room: width });
  paintLanes(pen, shown, place, view);
  Object.assign(pen, { strokeStyle: colour("line"), fillStyle: colour("dim") });
  for (const value of [0, (T * r) / 2, T * r]) {
    label(pen, number(value), [LEFT - 6, y(value)], { align: "right" });
    trace(pen, [[LEFT, y(value)], [LEFT + wide, y(value)]]);
  }
  for (const step of new Set([1, Math.ceil(T / 2), T])) {
    label(pen, step < T ? step : `t = ${T}`, [x(step), top + HIGH + 12], { align: step < T ? "center" : "right" });
  }
  const numbers = (t) => sum(ranks.map((rank, l) => rank * kept(t, lens[l])));
  const grown = (from, to) => Array.from({ length: to - from }, (_, i) => [from + i + 1, numbers(from + i + 1)]);
  for (const [line, thick, dash, points] of [
    ["dim", 1.5, [6, 4], [[0, 0], [T, T * r]]],
    ["limit", 1.5, [2, 3], [[0, room], [T, room]]],
    ["line", 2.5, [], [[t, numbers(t)], ...grown(t, T)]],
    ["first-strong", 3, [], [[0, 0], ...grown(0, t)]],
    ["focus", 1, [], [[t, 0], [t, T * r]]],
  ]) {
    Object.assign(pen, { strokeStyle: colour(line), lineWidth: thick });
    pen.setLineDash(dash);
    trace(pen, points.map(([t, value]) => [x(t), y(value)]));
  }
  knob(pen, [x(t), y(sum(keys))], hot, view);
  const inks = { ink: colour("ink"), halo: colour("paper") };
  write(pen, "standard: t · r", [x(0.7 * T) - 52, y(0.7 * T * r) - 8], inks);
  if (room < 0.95 * T * r) write(pen, `room: ${number(room)}`, [x(0) + 48, y(room) + 10], inks);
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

/** Move the row of the pair to the step t. */
function goTo(view, t) {
  const i = clamp(Math.round(t), 1, view.get("length")) - 1;
  view.set({ pair: [i, Math.min(view.get("pair")[1], i)] });
}

function controls(view, parent, now) {
  const sliders = make(parent, "div", { class: "sliders" });
  const [presets, text] = [view.get("_presets"), () => now().ranks.join("|")];
  const get = () => (presets.includes(text()) ? text() : OWN);
  const set = (value) => (value === OWN ? view.schedule() : view.set({ ranks: value.split("|").map(Number) }));
  view.choice(sliders, { symbol: "r₁|r₂|…", text: "split", values: [...presets, OWN], get, set });
  const range = (symbol, text, [min, max], get, set, says) =>
    view.range(sliders, { symbol, text, min, max, get, set, says });
  const fit = (length) => view.set({ length, pair: within(view.get("pair"), length) });
  const says = () => (now().leaf ? number(now().leaf) : "halving");
  range("L", "levels", [1, MAX_LEVELS], () => now().ranks.length, (L) => view.set({ ranks: split(now().ranks, L) }));
  range("T", "tokens", [1, view.get("_words").length], () => now().T, fit);
  range("b", "finest block", [0, MAX_LEAF], () => now().leaf, (leaf) => view.set({ leaf }), says);
  let input; // its end is T
  view.parts.push(() => (input.max = now().T));
  range("t", "tokens so far", [1, 1], () => now().t, (t) => goTo(view, t));
  input = sliders.lastElementChild.querySelector("input");
  const boxes = make(sliders, "div", { class: "boxes" });
  view.player(boxes, { text: "Play t", at: () => now().t, from: 1, to: () => now().T, set: (t) => goTo(view, t) });
  const seed = make(boxes, "button", { type: "button" });
  view.listen(seed, "click", () => view.set({ seed: (view.get("seed") + 1) % view.get("_draws").length }));
  view.parts.push(() => (seed.textContent = `Draw other vectors (seed ${view.get("seed")})`));
}

/** A triangle of pairs: one is looked at by pointing at it, chosen by a click. */
function trianglePart(view, parent, now, { what, paint }) {
  const canvas = view.canvas(parent, {
    label: `${what}; up and down arrow keys change the row i, left and right keys the column j`,
    height: (width) => TITLE + 4 + now().T * cellSize(now().T, width),
    paint: (pen, width) => paint(pen, now(), width, view),
  });
  const at = (x, y) => {
    const cell = cellSize(now().T, widthOf(canvas));
    const [i, j] = [y - TITLE, x].map((place) => Math.floor((place - 2) / cell));
    return 0 <= j && j <= i && i < now().T ? [i, j] : undefined;
  };
  const look = (hover) => view.schedule((view.hover = hover));
  view.pointed(canvas, at, look);
  view.drag(canvas, {
    near: () => false,
    move: (x, y) => view.set({ pair: at(x, y) ?? view.get("pair") }),
    cursor: (x, y) => (at(x, y) ? "crosshair" : "default"),
  });
  view.arrows(canvas, (dx, dy) => {
    look();
    const [i, j] = view.get("pair");
    const row = clamp(i - dy, 0, now().T - 1);
    view.set({ pair: [row, clamp(j + dx, 0, row)] });
  });
}

/** For each level its blocks and columns, which can be changed here, and what they cost. */
function tablePart(view, parent, now) {
  const table = make(make(parent, "div", { class: "scroll" }), "table");
  const names = ["level", "block", "columns", "multiply-adds", "kept at t"];
  make(table, "caption", {}, "Cost: pairs × columns. Kept: keys × columns");
  const [head, body] = [make(make(table, "thead"), "tr"), make(table, "tbody")];
  for (const name of names) make(head, "th", { scope: "col" }, name);
  for (let l = 0; l < MAX_LEVELS; l++) rowPart(view, make(body, "tr"), now, l);
  const [levels, standard] = ["all levels", "standard"].map((name, i) => {
    const line = make(body, "tr", i ? {} : { class: "mode" });
    make(line, "th", { scope: "row" }, name);
    return names.slice(1).map(() => make(line, "td"));
  });
  view.parts.push(() => {
    const { T, r, t, macs, keys } = now();
    const [all, most, own] = [sum(macs), r * pairs(T, T), sum(keys)];
    levels.forEach((cell, i) => (cell.textContent = ["", r, number(all), number(own)][i]));
    standard.forEach((cell, i) => (cell.textContent = [T, r, number(most), number(t * r)][i]));
  });
}

/** The row of a level; its bar is grey for all pairs, filled for those that are in a block of the level. */
function rowPart(view, line, now, l) {
  const name = make(line, "th", { scope: "row" });
  const swatch = make(name, "i");
  name.append(l + 1);
  const [block, columns, macs, keys] = [0, 1, 2, 3].map(() => make(line, "td"));
  const words = { style: "width: 3.4em", "aria-label": `columns of level ${l + 1}` };
  const input = make(columns, "input", { type: "number", min: 0, ...words });
  view.listen(input, "change", () => {
    const [ranks, others] = [view.get("ranks"), now().r - view.get("ranks")[l]];
    const rank = clamp(Math.floor(Number(input.value)), others ? 0 : 1, MAX_RANK - others);
    view.set({ ranks: ranks.map((old, k) => (k === l ? rank : old)) });
  });
  view.parts.push(() => {
    const { T, t, r, ranks, lens } = now();
    if ((line.hidden = l >= ranks.length)) return;
    const [rank, b, shade] = [ranks[l], lens[l], shades(ranks.length, view)[l]];
    Object.assign(input, { value: rank, max: MAX_RANK - r + rank });
    swatch.style.background = shade;
    block.textContent = b;
    macs.textContent = number(rank * pairs(T, b));
    keys.textContent = number(rank * kept(t, b));
    const [share, width] = [pairs(T, b) / pairs(T, T), rank / Math.max(...ranks)].map((part) => `${100 * part}%`);
    const look = `linear-gradient(to right, ${shade} ${share}, var(--line) ${share})`;
    make(macs, "div", { style: `height: 0.3125rem; margin-left: auto; width: ${width}; background: ${look}` });
  });
}

/** The key cache over the steps of decoding; the step is dragged. */
function cachePart(view, parent, now) {
  let canvas;
  canvas = view.canvas(parent, {
    label: "Keys kept after t tokens, and their numbers over t; left and right arrow keys change t",
    height: () => layOutCache(now(), 1).top + HIGH + FOOT,
    paint: (pen, width) => paintCache(pen, now(), width, view, canvas?.hot),
  });
  const place = () => layOutCache(now(), widthOf(canvas));
  const near = (x) => Math.abs(x - place().x(now().t)) < 24;
  const move = (x) => goTo(view, ((x - LEFT) / place().wide) * now().T);
  view.drag(canvas, { near, move, cursor: () => "ew-resize" });
  view.arrows(canvas, (dx) => goTo(view, now().t + dx));
}

export default explorer(TRAITS, (view) => {
  let shown;
  view.parts.push(() => (shown = read(view)));
  const now = () => shown;
  view.head({
    title: "Near pairs are compared by more columns; far keys keep only a few",
    headline: () => headline(shown),
    hint: "Play t: tokens arrive, and a block that ends drops its keys. Point at a pair, or drag t on the curve.",
  });
  controls(view, view.root, now);
  const [above, below] = ["pair", "parts"].map((name) => make(view.root, "div", { class: name }));
  const [left, right, cache, table] = [above, above, below, below].map((parent) => make(parent, "div"));
  trianglePart(view, left, now, { what: "Levels of all pairs", paint: paintLevels });
  trianglePart(view, right, now, { what: "Scores of all pairs", paint: paintScores });
  cachePart(view, cache, now);
  tablePart(view, table, now);
  const key = "Row: query i. Column: key j ≤ i. Scores: blue positive, orange negative, with a stroke where there is room; equal words have equal vectors.";
  make(view.root, "span", { class: "dim" }, key);
  view.describe(make(view.root, "div", { style: "overflow-wrap: anywhere" }), () => describe(shown));
  view.nudge(() => Array.from({ length: 24 }, (_, i) => ({ pair: [2 * i + 15, Math.min(now().pair[1], 2 * i + 15)] })).filter(({ pair }) => pair[0] < now().T));
});
