// A state with a forget gate, word by word, that adds or corrects, beside the row of attention that reads the same.

import { clamp, decimals, dot, explorer, knob, label, make, pointOn, trace } from "./base.js";

const TRAITS = ["gates", "query", "time", "beta"];
const STEPS = 20; // of a gate, from 0 to 1
const [BARS, WEIGHTS, TITLE, LEFT, KNOB] = [76, 60, 20, 4, 8]; // pixels: bars of a gate and of a weight, a line, a rim

// ---- the two forms ------------------------------------------------------------------------------------------------

/** H_t = a_t H_(t-1) + v_t k_t^T (P, N), after t words; with beta H_t = H + beta (v_t - H k_t) k_t^T, H = a_t H_(t-1). */
export function stateAfter(t, { K, V, gates, beta = null }) {
  let H = V[0].map(() => K[0].map(() => 0));
  for (let s = 0; s < t; s++) {
    H = H.map((old, p) => {
      const row = old.map((entry) => gates[s] * entry);
      const u = beta === null ? V[s][p] : beta * (V[s][p] - dot(row, K[s]));
      return row.map((entry, n) => entry + u * K[s][n]);
    });
  }
  return H;
}

/** What a query reads from a state: H q (P). */
export function readOut(H, q) {
  return H.map((row) => dot(row, q));
}

/** M_ts for the t words that are read, 0 for the others: the query goes back in time, and what is corrected leaves it. */
export function attentionRow(t, { K, gates, beta = null }, q) {
  const row = K.map(() => 0);
  for (let s = t - 1, left = q; s >= 0; s--) {
    const score = dot(left, K[s]);
    row[s] = (beta ?? 1) * score;
    left = left.map((entry, n) => gates[s] * (entry - (beta ?? 0) * score * K[s][n]));
  }
  return row;
}

/** What attention reads: the sum of M_ts v_s (P). */
export function attend(row, V) {
  return V[0].map((_, p) => dot(row, V.map((v) => v[p])));
}

// ---- what is shown ------------------------------------------------------------------------------------------------

/** The state of the model, and all that follows from it. */
function read(view) {
  const [words, K, V, rows, columns] = ["_words", "_K", "_V", "_rows", "_columns"].map((name) => view.get(name));
  const [gates, query, time, beta] = TRAITS.map((name) => view.get(name));
  const q = K[view.get("_asked").indexOf(query)];
  const H = stateAfter(time, { K, V, gates, beta });
  const weights = attentionRow(time, { K, gates, beta }, q);
  const result = { H, weights, y: readOut(H, q), sum: attend(weights, V) };
  return { words, K, V, rows, columns, gates, query, time, q, ...result, ...scales({ K, V, q, ...result }) };
}

/** Scales on which forgetting is seen as fading: the sizes that are reached at the end when nothing is forgotten. */
function scales({ K, V, q, H, y }) {
  const full = stateAfter(K.length, { K, V, gates: K.map(() => 1) });
  const scores = K.map((k) => dot(q, k));
  const most = (...values) => Math.max(...values.flat(2).map(Math.abs)) || 1;
  return {
    limits: { entry: most(full, H), query: most(q), weight: most(scores), output: most(readOut(full, q), y) },
    signed: [scores, ...V, ...K].flat().some((value) => value < 0),
  };
}

/** The read-out: what the query reads, the largest first. */
function headline({ rows, query, y }) {
  const terms = rows.map((name, p) => [name, y[p]]).filter(([, value]) => decimals(value) !== "0");
  const shown = terms.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 3);
  return `“${query}” reads ${shown.map(([name, value]) => `“${name}” ${decimals(value)}`).join(", ") || "nothing"}`;
}

/** What a screen reader hears, and everyone can read. */
function describe({ words, rows, gates, query, time, y, sum, weights }, chosen) {
  const list = (names, values) => {
    const parts = names.map((name, i) => [name, decimals(values[i])]).filter(([, value]) => value !== "0");
    return parts.map(([name, value]) => `${name}\u00a0${value}`).join(", ") || "nothing";
  };
  const apart = Math.max(...y.map((value, p) => Math.abs(value - sum[p])));
  const quoted = rows.map((name) => `“${name}”`);
  const numbered = words.map((word, s) => `word ${s} “${word}”`);
  return [
    `After ${time} of ${words.length} words, the query “${query}” reads from the state: ${list(quoted, y)}. `,
    `Attention weighs: ${list(numbered, weights)}. The sum of its weighted values is `,
    apart < 1e-9 ? "the same. " : `${apart} away. `,
    `The gate of word ${chosen}, “${words[chosen]}”, is ${decimals(gates[chosen])}.`,
  ].join("");
}

// ---- drawing ------------------------------------------------------------------------------------------------------

/** A bar with a border, which is a line where the bar is of no size. */
function bar(pen, [x, y, width, height], fill, { colour }) {
  Object.assign(pen, { fillStyle: colour(fill), strokeStyle: colour("dim"), lineWidth: 1 });
  pen.fillRect(x, y, width, height);
  pen.strokeRect(x, y, width, height);
}

/** Pixels that the longest of some names takes, about. */
function extent(names) {
  return clamp(7 * Math.max(...names.map((name) => name.length)), 20, 80);
}

/** Where the strip of words has its columns and its three rows. */
function layOutStrip(words, width) {
  const column = (width - 2 * LEFT) / words.length;
  const upwards = extent(words) > column - 4;
  const floor = TITLE + BARS; // where a gate is 0
  const under = floor + KNOB + (upwards ? extent(words) + 8 : 22);
  return { column, upwards, floor, under, height: under + TITLE + WEIGHTS + 4 };
}

/** Gates above the words, attention weights below; words not yet read are dim. */
function paintStrip(pen, shown, chosen, place, view, hot) {
  const { words, gates, weights, time, query, limits, signed } = shown;
  const { column, upwards, floor, under, height } = place;
  const { colour, font } = view;
  const centre = (s) => LEFT + (s + 0.5) * column;
  const [align, room] = ["center", column - 2];
  const [thick, base] = [column * 0.62, height - 2 - (signed ? (WEIGHTS - 16) / 2 : 0)];
  const tall = (WEIGHTS - 16) / (signed ? 2 : 1) / limits.weight;
  Object.assign(pen, { font: font(12), fillStyle: colour("dim") });
  label(pen, "gates a: how much of what was before is kept", [LEFT, 8], { align: "left", room: place.width - LEFT });
  label(pen, `attention weights M of “${query}”`, [LEFT, under + 9], { align: "left" });
  for (const [s, word] of words.entries()) {
    const x = centre(s) - thick / 2;
    pen.fillStyle = colour("raised");
    pen.fillRect(x, TITLE, thick, BARS);
    bar(pen, [x, floor - BARS * gates[s], thick, BARS * gates[s]], s < time ? "other-0" : "other-2", view);
    const high = tall * weights[s];
    if (s < time) bar(pen, [x, base - high, thick, high], "second", view);
    pen.font = font(12, s === time - 1 ? "bold" : "normal");
    pen.fillStyle = colour(s < time ? "ink" : "dim");
    const long = upwards ? under - floor - KNOB - 6 : room;
    label(pen, word, [centre(s), (floor + KNOB + under) / 2], { align, room: long, upwards });
    Object.assign(pen, { font: font(12), fillStyle: colour("ink") });
    if (weights[s]) label(pen, decimals(weights[s]), [centre(s), base - Math.max(high, 0) - 9], { align, room });
    const top = BARS * gates[s]; // of the bar, where the knob may be
    label(pen, decimals(gates[s]), [centre(s), floor - top + (top < 26 ? -18 : 18)], { align, room });
  }
  knob(pen, [centre(chosen), floor - BARS * gates[chosen]], hot, view);
  Object.assign(pen, { strokeStyle: colour("ink"), lineWidth: 2 });
  trace(pen, [0, 1].map((end) => [clamp(LEFT + time * column, 1, place.width - 1), end ? height : TITLE - 4]));
}

/** Where the table has its cells and, to the right of them, two columns of read-outs. */
function layOutTable({ rows, columns }, width) {
  const left = Math.min(extent(rows) + 8, width / 4);
  const cell = clamp((width - left - Math.min(124, 0.35 * width)) / columns.length, 8, 46);
  const top = extent(columns) + 12;
  const out = left + cell * columns.length + 10;
  return { left, cell, top, out, lane: Math.min((width - out - 8) / 2, 110), row: 28, body: top + 34 };
}

/** A cell of the table: grey if 0, else the fuller the larger. */
function paintCell(pen, value, limit, [x, y, width, height], { colour }) {
  pen.fillStyle = colour(value ? "paper" : "raised");
  pen.fillRect(x, y, width, height);
  if (value) {
    Object.assign(pen, { globalAlpha: 0.15 + (0.85 * Math.abs(value)) / limit });
    pen.fillStyle = colour(value < 0 ? "second" : "first");
    pen.fillRect(x, y, width, height);
  }
  Object.assign(pen, { globalAlpha: 1, strokeStyle: colour("line"), lineWidth: 1, fillStyle: colour("ink") });
  pen.strokeRect(x, y, width, height);
  if (value) label(pen, decimals(value), [x + width / 2, y + height / 2], { align: "center", room: width - 2 });
}

/** Query and state as a table, and what they give, H q, beside what attention gives. */
function paintTable(pen, shown, place, view) {
  const { rows, columns, q, H, y, sum, limits, signed } = shown;
  const { left, cell, top, out, lane, row, body } = place;
  const { colour, font } = view;
  Object.assign(pen, { font: font(12), fillStyle: colour("ink") });
  label(pen, "q", [left - 6, top + 12], { align: "right" });
  for (const [n, name] of columns.entries()) {
    const x = left + n * cell;
    pen.fillStyle = colour("ink");
    label(pen, name, [x + cell / 2, top - 4], { align: "left", room: top - 6, upwards: true });
    paintCell(pen, q[n], limits.query, [x, top, cell, 24], view);
    for (const p of rows.keys()) paintCell(pen, H[p][n], limits.entry, [x, body + p * row, cell, row], view);
  }
  for (const [i, [name, values, fill]] of [["H q", y, "first"], ["Σ M v", sum, "second"]].entries()) {
    const x = out + i * (lane + 6);
    Object.assign(pen, { font: font(12, "bold"), fillStyle: colour("ink") });
    label(pen, name, [x, top + 12], { align: "left", room: lane });
    pen.font = font(12);
    const [zero, unit] = signed ? [x + lane / 2, lane / 2] : [x, lane];
    for (const [p, value] of values.entries()) {
      pen.fillStyle = colour(fill);
      pen.fillRect(zero, body + (p + 0.7) * row, (unit * value) / limits.output, 0.2 * row); // under its number
      pen.fillStyle = colour(value ? "ink" : "dim");
      label(pen, decimals(value), [x + 4, body + (p + 0.4) * row], { align: "left", room: lane - 4 });
    }
    Object.assign(pen, { strokeStyle: colour("dim"), lineWidth: 1 });
    trace(pen, [[zero, body], [zero, body + rows.length * row]]);
  }
  pen.fillStyle = colour("ink");
  for (const [p, name] of rows.entries()) {
    label(pen, name, [left - 6, body + (p + 0.5) * row], { align: "right", room: left - 8 });
  }
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

function controls(view, parent) {
  const [sliders, names] = [make(parent, "div", { class: "sliders" }), view.get("_words")];
  const time = { at: () => view.get("time"), to: () => names.length, set: (time) => view.set({ time }) };
  const gates = () => view.get("gates");
  view.range(sliders, {
    symbol: "t",
    text: "words read",
    max: names.length,
    get: () => view.get("time"),
    set: (time) => view.set({ time }),
    says: () => `${view.get("time")} of ${names.length}`,
  });
  view.range(sliders, {
    symbol: "a",
    text: "for all words",
    max: STEPS,
    get: () => (STEPS * gates().reduce((sum, gate) => sum + gate)) / gates().length,
    set: (step) => view.set({ gates: names.map(() => step / STEPS) }),
    says: () => (gates().every((gate) => gate === gates()[0]) ? decimals(gates()[0]) : "mixed"),
  });
  const box = make(sliders, "label");
  const name = make(box, "span");
  make(name, "b", {}, "q");
  name.append(" query");
  const select = make(box, "select", { tabindex: 0, "aria-label": "q, query" });
  for (const word of new Set(view.get("_asked"))) make(select, "option", { value: word }, word);
  view.listen(select, "change", () => view.set({ query: select.value }));
  view.parts.push(() => (select.value = view.get("query")));
  if (view.get("_corrects")) correction(view, sliders);
  view.player(make(sliders, "div"), { text: "Play t", ...time, every: 600 });
}

/** Whether the memory adds or corrects, and how strongly. */
function correction(view, parent) {
  const set = (on) => view.set({ beta: on ? 1 : null });
  view.checkbox(parent, { text: "reads before it writes", get: () => view.get("beta") !== null, set });
  view.range(parent, {
    symbol: "β",
    text: "how much is written",
    max: 2 * STEPS,
    get: () => STEPS * (view.get("beta") ?? 1),
    set: (step) => view.set({ beta: step / STEPS }),
    says: () => (view.get("beta") === null ? "it adds all" : decimals(view.get("beta"))),
  });
}

/** The words with their gates and weights; the gate that arrow keys change; and all of it in words. */
function stripPart(view, parent, below) {
  const names = view.get("_words");
  let [chosen, place, onGates] = [Math.min(5, names.length - 1), undefined, false];
  const canvas = view.canvas(parent, {
    label: "Gates of the words; left and right arrow keys choose a word, up and down keys change its gate",
    height: (width) => layOutStrip(names, width).height,
    paint(pen, width) {
      place = { ...layOutStrip(names, width), width };
      paintStrip(pen, read(view), chosen, place, view, view.overGates);
    },
  });
  const choose = (s) => {
    chosen = clamp(s, 0, names.length - 1);
    view.schedule();
  };
  const change = (steps) => {
    const gate = clamp(Math.round(steps), 0, STEPS) / STEPS;
    view.set({ gates: view.get("gates").map((old, s) => (s === chosen ? gate : old)) });
  };
  const column = (x) => clamp(Math.floor((x - LEFT) / place.column), 0, names.length - 1);
  const top = (s) => place.floor - BARS * view.get("gates")[s];
  view.listen(canvas, "pointerdown", (event) => (onGates = pointOn(canvas, event)[1] < place.floor + 6));
  view.drag(canvas, {
    near: (x, y) => Math.abs(y - top(column(x))) < 24 && y < place.floor + 6,
    move(x, y) {
      choose(column(x));
      if (onGates) change((STEPS * (place.floor - y)) / BARS);
      else view.set({ time: chosen + 1 });
    },
    cursor(x, y) {
      view.overGates = y < place.floor + 6;
      return view.overGates ? "ns-resize" : "pointer";
    },
  });
  view.arrows(canvas, (dx, dy) => (dx ? choose(chosen + dx) : change(STEPS * view.get("gates")[chosen] + dy)));
  view.describe(below, () => describe(read(view), chosen));
}

/** The state as a table, and what the query reads. */
function tablePart(view, parent) {
  const names = [...new Set(view.get("_asked"))];
  const canvas = view.canvas(parent, {
    label: "State and read-out; left and right arrow keys change t, up and down keys change the query",
    height(width) {
      const { body, row } = layOutTable(read(view), width);
      return body + row * view.get("_rows").length + 2;
    },
    paint: (pen, width) => paintTable(pen, read(view), layOutTable(read(view), width), view),
  });
  view.arrows(canvas, (dx, dy) => {
    const query = names[clamp(names.indexOf(view.get("query")) - dy, 0, names.length - 1)];
    view.set({ query, time: clamp(view.get("time") + dx, 0, view.get("_words").length) });
  });
  make(parent, "span", { class: "dim" }, "State: a column for each key, a row for each value. H q: what it says. Σ M v: attention.");
}

/** Gates in which one, between the repeated words, goes to 0 and back. */
function dips(gates, place) {
  const depth = (i) => Math.round(STEPS * (1 - Math.sin((Math.PI * i) / 24)) * gates[place]) / STEPS;
  return Array.from({ length: 25 }, (_, i) => ({ gates: gates.map((gate, s) => (s === place ? depth(i) : gate)) }));
}

export default explorer(TRAITS, (view) => {
  view.head({
    title: () =>
      view.get("beta") === null
        ? "A state that forgets by its gates, and attention that decays with them, read the same"
        : "A memory that reads before it writes corrects what it held under a key",
    headline: () => headline(read(view)),
    hint: view.get("_corrects")
      ? "Click a word to read up to it, ask for another key, let the memory add, lower β or a gate."
      : "Drag a gate down: what came before its word fades. Click a word to read up to it.",
  });
  controls(view, view.root);
  const parts = make(view.root, "div", { class: "parts" });
  const [left, right] = [make(parts, "div"), make(parts, "div")];
  stripPart(view, left, view.root);
  tablePart(view, right);
  view.nudge(() => dips(view.get("gates"), Math.min(5, view.get("gates").length - 1)));
});
