// One slider between attention and a recurrence: what every word reads, pair by pair inside a chunk or out of a state.

import { clamp, dot, explorer, label, make, number, power, snap, trace, widthOf } from "./base.js";

const TRAITS = ["text", "chunk"];
// MAX_WORDS, STATE, the numbers of a word's vector, DECAY, and OWN come from duality_explorer.py.
const [CELLS, GAP, LINE, NARROW] = [[8, 27], 14, 13, 560]; // pixels: a cell, beside the matrix, a line, a telephone
const RUN = 1500; // milliseconds in which a spark goes once along the states

// ---- numbers ------------------------------------------------------------------------------------------------------

/** The unit vector of the i-th different word: a feature of its own, or else two, as those of no other word. */
function wordVector(i) {
  const day = Math.floor((i - STATE) / 3);
  const pairs = [[(day + 1) % 5, (day + 4) % 5], [(day + 2) % 5, (day + 3) % 5], [5, day]];
  const features = i < STATE ? [i] : pairs[(i - STATE) % 3];
  return Array.from({ length: STATE }, (_, n) => (features.includes(n) ? 1 / Math.sqrt(features.length) : 0));
}

/** Values, keys and queries of words: each asks what came after it, and is written under the word before it. */
function sequences(words) {
  const names = [...new Set(words)];
  const C = words.map((word) => wordVector(names.indexOf(word)));
  const B = C.map((own, t) => own.map((value, n) => (t ? C[t - 1][n] : 0) + OWN * value));
  return { names, X: words.map((word) => names.map((name) => Number(name === word))), B, C };
}

/** M_ts for t and s of one chunk; those of two chunks the algorithm never forms. */
const pair = (t, s, { B, C }) => DECAY ** (t - s) * dot(C[t], B[s]);

/** The chunked algorithm: what each word reads inside its chunk and out of the state, and the state before each chunk. */
export function chunked(c, { X, B, C }) {
  const zero = () => X[0].map(() => B[0].map(() => 0)); // H (P, N)
  const [inside, outside, states] = [[], [], []];
  for (let from = 0, H = zero(); from < X.length; from += c) {
    const to = Math.min(from + c, X.length);
    states.push(H);
    for (let t = from; t < to; t++) {
      const row = X.slice(from, t + 1).map((_, i) => pair(t, from + i, { B, C }));
      inside.push(X[0].map((_, p) => row.reduce((sum, weight, i) => sum + weight * X[from + i][p], 0)));
      outside.push(H.map((h) => DECAY ** (t - from + 1) * dot(h, C[t])));
    }
    const next = H.map((h) => h.map((value) => DECAY ** (to - from) * value));
    for (let s = from; s < to; s++) {
      const left = DECAY ** (to - 1 - s);
      next.forEach((h, p) => B[s].forEach((value, n) => (h[n] += left * X[s][p] * value)));
    }
    H = next;
  }
  return { inside, outside, states };
}

/** Multiply-adds, numbers kept to read the next word, and chunks, each of which waits for the one before. */
function prices({ T, c, P }) {
  const [one, each] = [c === T, STATE + P];
  return {
    macs: T * c * each + (one ? 0 : (2 * T + T / c) * STATE * P),
    kept: one ? T * each : STATE * P + (c - 1) * each,
    steps: Math.ceil(T / c),
  };
}

/** Chunk lengths from attention to the recurrence: the shortest of each number of chunks. */
function stopsOf(T) {
  return [...new Set(Array.from({ length: T }, (_, i) => Math.ceil(T / (i + 1))))];
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

/** The state of the model, and all that follows from it. */
export function read(view) {
  const words = view.get("text").split(" ");
  const [T, given] = [words.length, sequences(words)];
  const [c, P] = [Math.min(view.get("chunk"), T), given.names.length];
  const [parts, whole] = [chunked(c, given), chunked(T, given).inside];
  const answers = parts.inside.map((y, t) => y.map((value, p) => value + parts.outside[t][p]));
  return {
    ...{ words, T, c, P, names: given.names, stops: stopsOf(T), ...parts, ...prices({ T, c, P }) },
    M: words.map((_, t) => words.map((_, s) => (s <= t ? pair(t, s, given) : 0))), // for the picture alone
    apart: Math.max(...answers.flatMap((y, t) => y.map((value, p) => Math.abs(value - whole[t][p])))),
    totals: whole.map(sum),
    best: whole.map((y) => y.indexOf(Math.max(...y))),
    share: sum(parts.outside.flat()) / sum(whole.flat()),
  };
}

// ---- what is said -------------------------------------------------------------------------------------------------

/** A small number: 2 · 10⁻¹⁶. */
function tiny(value) {
  if (!value) return "0";
  const [digit, exponent] = value.toExponential(0).split("e");
  return `${digit} · ${power(exponent)}`;
}

const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

/** The read-out: how much comes out of the state. */
function headline({ T, c, share }) {
  const name = c === T ? "attention" : c === 1 ? "recurrence" : "chunks";
  return `c = ${c}, ${name}: ${percent(share)} comes out of a state, every answer stays`;
}

/** What a screen reader hears, and everyone can read. */
function describe({ words, T, c, names, inside, totals, best, macs, kept, steps, apart }, row) {
  const own = sum(inside[row]) / totals[row];
  return [
    `“${words[row]}”, word ${row}, reads “${names[best[row]]}” most. `,
    `Of all that it reads, ${percent(own)} comes from pairs inside its chunk, ${percent(1 - own)} out of the state. `,
    `${T} words in chunks of ${c}: ${number(Math.round(macs))} multiply-adds, ${number(kept)} numbers kept, `,
    `${steps} ${steps > 1 ? "steps one after the other" : "step"}; `,
    `the answers differ from those of c\u00a0=\u00a0${T} by at most ${tiny(apart)}.`,
  ].join("");
}

// ---- drawing ------------------------------------------------------------------------------------------------------

/** Pixels that the longest of some names takes, about. */
function extent(names, limit) {
  return clamp(7 * Math.max(...names.map((name) => name.length)) + 10, 30, limit);
}

/** A word, or its beginning, if there is no room for all of it. */
function cut(word, room) {
  const most = Math.floor((room - 8) / 7);
  return word.length > most ? `${word.slice(0, most - 1)}…` : word;
}

/** Where the matrix, its words and the bars are. */
function layOut({ words, T, names }, width) {
  const narrow = width < NARROW;
  const left = extent(words, narrow ? Math.min(74, width / 4) : 110);
  const guess = narrow ? 0 : extent(names, 110) + 18;
  const bars = narrow ? 56 : 150; // at least
  const cell = clamp(Math.floor((width - left - GAP - guess - bars) / T), ...CELLS);
  const [top, side] = [extent(words, 90) + 6, T * cell];
  const start = left + side + GAP;
  return { narrow, left, top, cell, side, start, long: width - start - guess - 4, guess, height: top + side + 4 };
}

/** How far each pair is inside a chunk, 1 or 0, and on the way between them after a change. */
function eased(view, { T, c, words }) {
  const goal = words.map((_, t) => words.map((_, s) => Number(Math.floor(s / c) === Math.floor(t / c))));
  const still = view.calm.matches || view.inside?.length !== T;
  const nearer = (now, end) => (Math.abs(end - now) < 0.02 ? end : now + 0.2 * (end - now));
  view.inside = still ? goal : goal.map((row, t) => row.map((end, s) => nearer(view.inside[t][s], end)));
  if (view.inside.some((row, t) => row.some((now, s) => now !== goal[t][s]))) view.schedule();
  return view.inside;
}

/** Pairs that are formed, blue; where they are not, what the state stands for, in its colour. */
function paintPairs(pen, { M, T, c }, inside, { left, top, cell }, { colour }) {
  const most = Math.max(...M.flat());
  const square = (t, s, side) => {
    const rim = (cell - side) / 2;
    pen.fillRect(left + s * cell + rim, top + t * cell + rim, side, side);
  };
  for (let t = 0; t < T; t++) {
    for (let s = 0; s <= t; s++) {
      const [near, weight] = [inside[t][s], M[t][s] / most];
      pen.globalAlpha = 1;
      pen.fillStyle = colour("raised");
      square(t, s, cell - 1);
      Object.assign(pen, { globalAlpha: 0.45 * (1 - near), fillStyle: colour("second") });
      square(t, s, cell);
      Object.assign(pen, { globalAlpha: 0.6 * (1 - near), fillStyle: colour("second-strong") });
      square(t, s, 0.6 * cell * Math.sqrt(weight));
      Object.assign(pen, { globalAlpha: near * (0.08 + 0.92 * weight), fillStyle: colour("first-strong") });
      square(t, s, cell - 1);
    }
  }
  Object.assign(pen, { globalAlpha: 1, strokeStyle: colour("first-strong"), lineWidth: 2 });
  for (let from = 0; from < T; from += c) {
    const side = (Math.min(from + c, T) - from) * cell;
    pen.strokeRect(left + from * cell, top + from * cell, side, side);
  }
}

/** The state as a small table, always of one size. */
function paintState(pen, H, most, [x, y], side, { colour, strong }) {
  const [wide, high] = [side / H[0].length, side / H.length];
  pen.fillStyle = colour("paper");
  pen.fillRect(x - side / 2, y - side / 2, side, side);
  pen.fillStyle = colour("second-strong");
  for (const [p, row] of H.entries()) {
    for (const [n, value] of row.entries()) {
      pen.globalAlpha = 0.08 + 0.92 * Math.sqrt(value / most);
      pen.fillRect(x - side / 2 + n * wide, y - side / 2 + p * high, wide, high);
    }
  }
  Object.assign(pen, { globalAlpha: 1, strokeStyle: colour("second-strong"), lineWidth: strong ? 3 : 1.5 });
  pen.strokeRect(x - side / 2, y - side / 2, side, side);
}

/** The states between the chunks, from which the row that is looked at reads; a spark hops along them once. */
function paintStates(pen, { states, T, c }, row, { left, top, cell }, view) {
  const most = Math.max(...states.flat(2)) || 1;
  const [side, off] = [1.05 * cell, 0.66 * cell];
  const place = (k) => [left + k * c * cell + off, top + k * c * cell - off];
  const places = states.map((_, k) => place(k)).slice(1);
  const own = Math.floor(row / c);
  Object.assign(pen, { strokeStyle: view.colour("second-strong"), lineWidth: 3, lineCap: "round" });
  trace(pen, places);
  if (own) {
    pen.lineWidth = 2;
    pen.setLineDash([2, 4]);
    trace(pen, [place(own), [place(own)[0], top + (row + 0.5) * cell]]);
    pen.setLineDash([]);
  }
  for (const [i, at] of places.entries()) {
    paintState(pen, states[i + 1], most, at, side, { colour: view.colour, strong: own === i + 1 });
  }
  if (view.was !== `${T} ${c}`) Object.assign(view, { was: `${T} ${c}`, began: view.was && performance.now() });
  const gone = (performance.now() - view.began) / RUN;
  if (!(gone < 1) || places.length < 2 || view.calm.matches) return;
  const [at, step] = [gone * (places.length - 1), Math.floor(gone * (places.length - 1))];
  const [[x, y], [toX, toY]] = [places[step], places[step + 1]];
  const hop = 4 * cell * (at - step) * (1 - at + step) * 0.4;
  pen.fillStyle = view.colour("second-strong");
  pen.beginPath();
  pen.arc(x + (at - step) * (toX - x) + hop, y + (at - step) * (toY - y) - hop, 6, 0, 2 * Math.PI);
  pen.fill();
  view.schedule();
}

/** What each word reads, as one bar in two colours, and the word of which it reads most. */
function paintBars(pen, { M, T, totals, best, names }, inside, row, { narrow, top, cell, start, long, guess }, view) {
  const { colour, font } = view;
  const [most, high] = [Math.max(...totals), Math.round(0.66 * cell)];
  for (let t = 0; t < T; t++) {
    const [y, end] = [Math.round(top + (t + 0.17) * cell), (long * totals[t]) / most];
    const own = (end * sum(M[t].map((weight, s) => weight * inside[t][s]))) / totals[t];
    pen.fillStyle = colour("first-strong");
    pen.fillRect(start, y, own, high);
    pen.fillStyle = colour("second-strong");
    pen.fillRect(start + own, y, end - own, high);
    pen.fillStyle = colour("paper"); // stripes: seen without colours too
    for (let x = start + own + 3; x < start + end - 1; x += 5) pen.fillRect(x, y, 1, high);
    if (narrow || totals[t] < most / 50) continue; // it reads next to nothing
    Object.assign(pen, { font: font(12, t === row ? "bold" : "normal"), fillStyle: colour(t === row ? "ink" : "dim") });
    label(pen, `→ ${cut(names[best[t]], guess - 12)}`, [start + end + 8, y + high / 2], { room: guess - 8 });
  }
  Object.assign(pen, { font: font(12), fillStyle: colour("dim") });
  label(pen, narrow ? "reads" : "what each word reads, and → what most", [start, top - 12], { room: long + guess });
}

function paint(pen, shown, row, width, view) {
  const [place, inside, { colour, font }] = [layOut(shown, width), eased(view, shown), view];
  const { left, top, cell, side } = place;
  paintPairs(pen, shown, inside, place, view);
  paintBars(pen, shown, inside, row, place, view);
  const every = Math.ceil(LINE / cell); // so many rows have room for one word
  for (const [t, word] of shown.words.entries()) {
    if (t !== row && (t % every || Math.abs(t - row) < every)) continue;
    const [of, at] = [t === row, (t + 0.5) * cell];
    Object.assign(pen, { font: font(12, of ? "bold" : "normal"), fillStyle: colour(of ? "ink" : "dim") });
    label(pen, cut(word, left), [left - 7, top + at], { align: "right", room: left - 8 });
    pen.font = font(12);
    label(pen, cut(word, top), [left + at, top - 9], { room: top - 10, upwards: true });
  }
  Object.assign(pen, { strokeStyle: colour("ink"), lineWidth: 1.5 });
  pen.strokeRect(left - 1, top + row * cell - 0.5, side + 2, cell);
  paintStates(pen, shown, row, place, view);
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

/** The slider, between the names of its ends. */
function dial(view, parent, now) {
  const box = make(parent, "label", { class: "dial" });
  make(box, "b", { class: "first-strong" }, "attention");
  const input = make(box, "input", { type: "range", min: 0, "aria-label": "c, chunk length" });
  make(box, "b", { class: "second-strong" }, "recurrence");
  view.listen(input, "input", () => view.set({ chunk: now().stops[input.value] }));
  view.parts.push(() => {
    const { stops, c, T } = now();
    input.max = stops.length - 1;
    input.value = stops.indexOf(snap(stops, c));
    const name = c === T ? `${c}, attention` : c === 1 ? "1, recurrence" : `${c}, chunks`;
    input.setAttribute("aria-valuetext", name);
  });
}

/** Words of one's own, and Play. */
function controls(view, parent, now) {
  const box = make(parent, "div", { class: "write" });
  view.player(box, {
    text: "Play c",
    at: () => now().stops.indexOf(snap(now().stops, now().c)),
    to: () => now().stops.length - 1,
    set: (at) => view.set({ chunk: now().stops[at] }),
    every: 900,
  });
  const field = make(box, "label");
  make(field, "span", {}, "Your words");
  const input = make(field, "input", { type: "text", spellcheck: "false", autocomplete: "off" });
  const note = make(box, "span", { class: "dim" });
  const typed = () => input.value.split(/[\s\x1c-\x1f\x85]+/).filter(Boolean);
  view.listen(input, "input", () => {
    const words = typed().slice(0, MAX_WORDS);
    const { c, T } = now();
    if (words.length) view.set({ text: words.join(" "), chunk: c === T ? words.length : view.get("chunk") });
    view.schedule();
  });
  view.listen(input, "change", () => {
    input.value = view.get("text");
    view.schedule();
  });
  view.parts.push(() => {
    if (document.activeElement !== input) input.value = view.get("text");
    const count = typed().length;
    note.textContent = count > MAX_WORDS ? `the first ${MAX_WORDS} of ${count} words` : `up to ${MAX_WORDS} words`;
  });
}

/** The matrix, the states and the bars; a row is looked at by pointing, chosen by a click. */
function picture(view, parent, now, row) {
  const canvas = view.canvas(parent, {
    label: "Pairs, states and what each word reads; left and right arrow keys change c, up and down keys choose a word",
    height: (width) => layOut(now(), width).height,
    paint: (pen, width) => paint(pen, now(), row(), width, view),
  });
  const at = (_, y) => {
    const { top, cell } = layOut(now(), widthOf(canvas));
    return clamp(Math.floor((y - top) / cell), 0, now().T - 1);
  };
  const look = (hover) => view.schedule((view.hover = hover));
  view.pointed(canvas, at, look);
  view.drag(canvas, { near: () => false, move: (...place) => look((view.row = at(...place))), cursor: () => "pointer" });
  view.arrows(canvas, (dx, dy) => {
    const { stops, c, T } = now();
    if (dx) return view.set({ chunk: snap(stops, c, dx) });
    view.row = clamp(row() - dy, 0, T - 1);
    look();
  });
}

/** What this chunk length costs, and that it changes nothing. */
function numbers(view, parent, now) {
  const list = make(parent, "div", { class: "numbers" });
  for (const [text, says] of [
    ["multiply-adds", ({ macs }) => number(Math.round(macs))],
    ["numbers kept to read the next word", ({ kept, c, T }) => number(kept) + (c === T ? ", growing" : "")],
    ["steps, one after the other", ({ steps }) => number(steps)],
    ["largest difference from attention", ({ apart }) => tiny(apart)],
  ]) {
    const box = make(list, "div");
    const value = make(box, "span");
    make(box, "span", { class: "dim" }, text);
    view.parts.push(() => (value.textContent = says(now())));
  }
}

export default explorer(TRAITS, (view) => {
  let [shown, of] = [];
  const now = () => {
    const state = TRAITS.map((name) => view.get(name)).join();
    if (state !== of) [shown, of] = [read(view), state];
    return shown; // computed once, however many parts ask
  };
  view.calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const row = () => clamp(view.hover ?? view.row ?? now().T - 2, 0, now().T - 1);
  view.head({
    title: "One slider turns attention into a recurrence",
    headline: () => headline(now()),
    hint: "Drag it. Each word asks what followed it before. Point at one, or write words of your own below.",
  });
  dial(view, view.root, now);
  picture(view, view.root, now, row);
  const key = make(view.root, "ul", { class: "key" });
  for (const [mark, text] of [
    ["first-strong", "pair by pair, inside a chunk: attention"],
    ["second-strong", "out of the state, of fixed size: these pairs are never formed"],
  ]) {
    const line = make(key, "li");
    make(line, "i", { class: mark });
    line.append(text);
  }
  numbers(view, view.root, now);
  controls(view, view.root, now);
  view.describe(view.root, () => describe(now(), row()));
  view.nudge(() => {
    const { stops, c } = now();
    const there = stops.slice(stops.indexOf(snap(stops, c)));
    return [...there, ...there.reverse()].flatMap((chunk) => Array(7).fill({ chunk }));
  });
});
