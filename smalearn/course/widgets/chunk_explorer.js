// M = L ∘ C Bᵀ cut into chunks: the four steps of the chunked algorithm, what each computes, and what it costs.

import { clamp, explorer, knob, label, logAxis, make, number, octaves, power, short, size, snap, tall, ticks, times, trace, widthOf, write } from "./base.js";

const TRAITS = ["chunk_len", "length", "state", "head_dim", "decay", "seed", "part"];
// LIMITS, and SHOWN and SHOWN_STATE, the steps and features that are drawn, come from chunk_explorer.py.
const LENGTHS = [...Array.from({ length: 32 }, (_, i) => i + 1), ...Array.from({ length: 12 }, (_, i) => 2 ** (i + 6))];
const DECAYS = Array.from({ length: 100 }, (_, i) => (i + 1) / 100);
const [GAP, CELL, LEFT, HIGH, OFF] = [8, 17, 48, 230, 4]; // pixels: between strips, a cell, an axis, the curves; a part
const FILLS = ["first-strong", "other-0", "other-3", "second-strong", "dim"]; // of the parts, in the picture and in the table
const SUMS = ["Y = (L ∘ C Bᵀ) X", "TP, TN → PN", "H ← a H + update", "TN, PN → TP"];
const LETTERS = ["Tc(N + P)", "TNP", "(T/c) NP", "TNP"];
const WORDS = [
  "Step 1, within chunks: the blocks on the diagonal, attention, quadratic in the chunk's length c",
  "Step 2, write, the right factor: every chunk sums up its inputs in a state, as if nothing had been before it",
  "Step 3, pass on, the centre: the state goes from chunk to chunk; this alone runs in sequence",
  "Step 4, read, the left factor: every output reads from the state that enters its chunk",
  "A block off the diagonal is a product of three factors, steps 4, 3 and 2. It is never formed",
];
const CURVES = [ // lines in colours and pixels; a pale one has an edge
  { name: "inside", parts: [0], lines: [["first-strong", 1.5]], at: 0.4 },
  { name: "in + out", parts: [1, 3], lines: [["second-strong", 1.5]], at: 0.9 },
  { name: "across", parts: [2], lines: [["ink", 4.5], ["other-3", 3]], at: 0.15 },
  { name: "all", parts: [0, 1, 2, 3], lines: [["ink", 3]], at: 0.75 },
];

// ---- numbers ------------------------------------------------------------------------------------------------------

/** Multiply-adds of the four steps. */
export function costs({ T, Q, N, P }) {
  const c = Math.min(Q, T);
  return [T * c * (N + P), T * N * P, (T / c) * N * P, T * N * P];
}

const total = (sizes) => costs(sizes).reduce((a, b) => a + b);

/** The length of a chunk that costs least. */
export function best(sizes) {
  const root = Math.floor(Math.sqrt(Math.floor((sizes.N * sizes.P) / (sizes.N + sizes.P))));
  const [Q, next] = [root, root + 1].map((Q) => clamp(Q, 1, sizes.T));
  return total({ ...sizes, Q: next }) < total({ ...sizes, Q }) ? next : Q;
}

const product = (decays) => decays.reduce((a, b) => a * b, 1);

/** The state of the model, and all that follows from it. */
export function read(view) {
  const [Q, T, N, P, decay, seed, part] = TRAITS.map((name) => view.get(name));
  const [S, features, draw] = [Math.min(T, SHOWN), Math.min(N, SHOWN_STATE), view.get("_draws")[seed]];
  const [B, C] = [draw.B, draw.C].map((rows) => rows.slice(0, S).map((row) => row.slice(0, features)));
  const a = draw.u.slice(0, S).map((u) => decay ** u);
  const chunks = Array.from({ length: Math.ceil(S / Q) }, (_, c) => [c * Q, Math.min((c + 1) * Q, S)]);
  const chunkOf = (t) => Math.floor(t / Q);
  const scaled = (rows, by) => rows.map((row, t) => row.map((value) => by(t) * value));
  const score = (t, s) => C[t].reduce((sum, value, n) => sum + value * B[s][n], 0);
  const entry = (t, s) => (s <= t ? product(a.slice(s + 1, t + 1)) * score(t, s) : 0);
  const between = (_, i) => chunks.map((_, j) => (j < i ? product(a.slice((j + 1) * Q, i * Q)) : 0));
  return {
    ...{ T, Q, N, P, decay, part: view.get("_parts").indexOf(part), S, features, chunks, chunkOf },
    M: B.map((_, t) => B.map((_, s) => entry(t, s))),
    left: scaled(C, (t) => product(a.slice(chunkOf(t) * Q, t + 1))),
    centre: chunks.map(between),
    right: scaled(B, (s) => product(a.slice(s + 1, (chunkOf(s) + 1) * Q))),
  };
}

/** The read-out: what this chunk length costs, beside the best. */
function headline(shown) {
  const [fewest, all] = [best(shown), Math.round(total(shown))];
  const ratio = all / Math.round(total({ ...shown, Q: fewest }));
  const more = ratio < 1.005 ? "hardly more than" : `${times(ratio)} times as many as`;
  const verdict = ratio > 1 ? `${more} c = ${fewest}` : "the fewest";
  return `c = ${number(shown.Q)} takes ${short(all)} multiply-adds, ${verdict}`;
}

/** What a screen reader hears, and everyone can read. */
function describe(shown) {
  const { T, Q, part } = shown;
  const [fewest, all] = [best(shown), Math.round(total(shown))];
  const ratio = all / Math.round(total({ ...shown, Q: fewest }));
  const share = part === OFF ? "" : `, ${Math.round((100 * costs(shown)[part]) / all)}\u00a0% of the cost`;
  const kind = Q >= T ? ", one chunk, the quadratic form," : Q === 1 ? ", the recurrent form," : "";
  const but = ratio > 1 ? `${times(ratio)} times as many as at c\u00a0=\u00a0${fewest}` : "the fewest";
  return `${WORDS[part]}${share}. At c\u00a0=\u00a0${number(Q)}${kind} all take ${number(all)} multiply-adds, ${but}.`;
}

// ---- drawing ------------------------------------------------------------------------------------------------------

/** The size of a cell, and the boxes of the parts: factors as strips above M and to its left, the centre between. */
function layOut({ S, features }, width) {
  const cell = Math.min(CELL, Math.floor((tall(width) - GAP - 4) / (S + features)));
  const [thick, side, start] = [features * cell, S * cell, features * cell + GAP];
  const [corner, above] = [[0, 0, thick, thick], [start, 0, side, thick]];
  return { cell, start, boxes: [[start, start, side, side], above, corner, [0, start, thick, side]] };
}

/** The boxes to be framed: a part, or a block off the diagonal and the factors that it is made of. */
function framed({ chunks, part, pair: [i, j] }, { cell, start, boxes }) {
  const [span, place] = [([from, to]) => (to - from) * cell, ([from]) => start + from * cell];
  const block = (i, j) => [place(chunks[j]), place(chunks[i]), span(chunks[j]), span(chunks[i])];
  const above = (j) => [place(chunks[j]), 0, span(chunks[j]), boxes[1][3]];
  const aside = (i) => [0, place(chunks[i]), boxes[3][2], span(chunks[i])];
  if (part === OFF) return j < i ? [block(i, j), above(j), boxes[2], aside(i)] : [];
  return part === 2 ? [boxes[2]] : chunks.map((_, k) => [block(k, k), above(k), boxes[2], aside(k)][part]);
}

/** Entries in the colour of their part, the fuller the larger. */
function paintEntries(pen, M, part, [x, y, wide, high], { colour }) {
  const most = Math.max(...M.flat().map(Math.abs)) || 1;
  for (const [t, row] of M.entries()) {
    for (const [s, value] of row.entries()) {
      pen.globalAlpha = Math.sqrt(Math.abs(value) / most);
      pen.fillStyle = colour(FILLS[part(t, s)]);
      pen.fillRect(x + s * wide, y + t * high, wide + 0.3, high + 0.3);
    }
  }
  pen.globalAlpha = 1;
}

/** M and the factors of its blocks, the lines between chunks, the chosen part framed, and the numbers of the steps. */
function paintBlocks(pen, shown, width, view) {
  const { M, left, centre, right, chunks, chunkOf } = shown;
  const [place, { colour, font }] = [layOut(shown, width), view];
  const { cell, start, boxes } = place;
  const [thick, end] = [boxes[1][3], start + boxes[0][3]];
  pen.fillStyle = colour("raised");
  for (const box of boxes) pen.fillRect(...box);
  const columns = right[0].map((_, n) => right.map((row) => row[n]));
  paintEntries(pen, M, (t, s) => (chunkOf(t) === chunkOf(s) ? 0 : OFF), [start, start, cell, cell], view);
  paintEntries(pen, columns, () => 1, [start, 0, cell, cell], view);
  paintEntries(pen, centre, () => 2, [0, 0, thick / chunks.length, thick / chunks.length], view);
  paintEntries(pen, left, () => 3, [0, start, cell, cell], view);
  Object.assign(pen, { strokeStyle: colour("dim"), lineWidth: 1 });
  for (const chunk of chunks) {
    const [low, high] = chunk.map((t) => start + t * cell);
    pen.strokeRect(low, low, high - low, high - low);
    for (const line of [[[low, 0], [low, thick]], [[0, low], [thick, low]]]) trace(pen, line);
    for (const line of [[[start, high], [low, high]], [[high, high], [high, end]]]) trace(pen, line);
  }
  Object.assign(pen, { strokeStyle: colour("focus"), lineWidth: 3 });
  for (const [x, y, wide, high] of framed(shown, place)) pen.strokeRect(x + 1, y + 1, wide - 2, high - 2);
  paintSteps(pen, shown, place, view);
}

/** The numbers of the steps with their names, and the way from the inputs over the states to the outputs. */
function paintSteps(pen, { chunks }, { cell, start, boxes }, { colour, font }) {
  const [inks, thick] = [{ ink: colour("ink"), halo: colour("paper") }, boxes[1][3]];
  const [middle, far] = [thick / 2, start + boxes[0][3] / 2];
  Object.assign(pen, { font: font(14, "bold") });
  const long = boxes[0][3] > 200;
  write(pen, long ? "2 write" : "2", [far, middle], inks);
  pen.save();
  pen.translate(middle, far);
  pen.rotate(-Math.PI / 2);
  write(pen, long ? "4 read" : "4", [0, 0], inks);
  pen.restore();
  if (thick > 18) write(pen, "3", [middle, middle], inks);
  const first = (chunks[0][1] * cell) / 2;
  write(pen, "1", [start + first, start + first], inks);
  const reach = long ? 90 : 16;
  arrow(pen, [far - reach, middle], [middle + 14, middle], inks);
  arrow(pen, [middle, middle + 14], [middle, far - reach], inks);
}

/** An arrow that can be seen on any ground. */
function arrow(pen, [x, y], [toX, toY], { ink, halo }) {
  const turn = Math.atan2(toY - y, toX - x);
  const wing = (by) => [toX - 9 * Math.cos(turn + by), toY - 9 * Math.sin(turn + by)];
  if (Math.hypot(toX - x, toY - y) < 20) return;
  for (const [strokeStyle, lineWidth] of [[halo, 5], [ink, 2]]) {
    Object.assign(pen, { strokeStyle, lineWidth });
    trace(pen, [[x, y], [toX, toY]]);
    trace(pen, [wing(0.5), [toX, toY], wing(-0.5)]);
  }
}

/** Which part is at a place, and off the diagonal which pair of steps. */
function partAt(shown, [x, y], width) {
  const { cell, start, boxes } = layOut(shown, width);
  if (Math.max(x, y) >= start + boxes[0][3]) return undefined;
  if (Math.min(x, y) < start) return { part: x >= start ? 1 : y < start ? 2 : 3 };
  const steps = [y, x].map((place) => Math.floor((place - start) / cell));
  const [i, j] = steps.map(shown.chunkOf);
  return i === j ? { part: 0 } : i > j ? { part: OFF, steps } : undefined;
}

/** The axes of the curves: Q from 1 to T, and multiply-adds from a hundredth of the fewest. */
function layOutCurves(shown, width) {
  const across = logAxis(Math.max(shown.T, 2), LEFT, width - 12, 0.2);
  const low = total({ ...shown, Q: best(shown) }) / 100;
  const high = 2 * Math.max(...[1, shown.T].map((Q) => total({ ...shown, Q })));
  const up = (value) => 8 + HIGH * (1 - clamp(Math.log(value / low) / Math.log(high / low), 0, 1));
  return { across, up, low, high };
}

function paintAxes(pen, { across, up, low, high }, width, { colour, font }) {
  Object.assign(pen, { font: font(12), fillStyle: colour("dim"), strokeStyle: colour("line"), lineWidth: 1 });
  Object.assign(pen, { textBaseline: "middle", textAlign: "right" });
  const every = Math.ceil(Math.log10(high / low) / 6);
  for (let exponent = Math.ceil(Math.log10(low)); 10 ** exponent <= high; exponent += every) {
    pen.fillText(power(exponent), LEFT - 6, up(10 ** exponent));
    trace(pen, [[LEFT, up(10 ** exponent)], [width, up(10 ** exponent)]]);
  }
  label(pen, "multiply-adds", [8, 8 + HIGH / 2], { align: "center", upwards: true });
  label(pen, "c, from recurrent (1) to quadratic (T)", [(LEFT + width) / 2, HIGH + 38], { align: "center", room: width });
  pen.textAlign = "center";
  for (const Q of ticks(across.limit, width - LEFT, 46)) {
    pen.fillText(size(Q), across.place(Q), HIGH + 20);
  }
}

/** The cost of the steps over the length of a chunk, with a dot at the fewest and a ring at the current one. */
function paintCurves(pen, shown, width, view, hot) {
  const [place, { colour }] = [layOutCurves(shown, width), view];
  const { across, up, low } = place;
  paintAxes(pen, place, width, view);
  const lengths = Array.from({ length: 120 }, (_, i) => across.limit ** (i / 119));
  for (const { name, parts, lines, at } of CURVES) {
    const cost = (Q) => parts.reduce((sum, part) => sum + costs({ ...shown, Q })[part], 0);
    for (const [line, lineWidth] of lines) {
      Object.assign(pen, { strokeStyle: colour(line), lineWidth });
      trace(pen, lengths.map((Q) => (cost(Q) < low ? [NaN, NaN] : [across.place(Q), up(cost(Q))])));
    }
    const Q = across.limit ** at;
    const point = [across.place(Q), up(cost(Q)) - 12];
    if (cost(Q) > low) write(pen, name, point, { ink: colour("ink"), halo: colour("paper") });
  }
  const at = (Q) => [across.place(Q), up(total({ ...shown, Q }))];
  Object.assign(pen, { strokeStyle: colour("limit"), lineWidth: 2 });
  pen.setLineDash([2, 3]);
  trace(pen, [at(best(shown)), [across.place(best(shown)), 8 + HIGH]]);
  pen.setLineDash([]);
  const inks = { ink: colour("limit"), halo: colour("paper") };
  const [x, y] = at(best(shown));
  write(pen, `fewest: c = ${best(shown)}`, [clamp(x, LEFT + 44, width - 44), y - 24], inks);
  knob(pen, at(Math.min(shown.Q, shown.T)), hot, view);
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

function controls(view, parent) {
  const sliders = make(parent, "div", { class: "sliders" });
  const change = (trait) => ({ get: () => view.get(trait), set: (value) => view.set({ [trait]: value }) });
  view.slider(sliders, { symbol: "c", text: "chunk length", values: LENGTHS, ...change("chunk_len") });
  const sizes = [["T", "length", "length"], ["N", "state", "state size"], ["P", "head_dim", "head dimension"]];
  for (const [symbol, trait, text] of sizes) {
    view.slider(sliders, { symbol, text, values: octaves(LIMITS[trait]), ...change(trait) });
  }
  view.slider(sliders, { symbol: "a", text: "decay", values: DECAYS, ...change("decay") });
  view.choice(sliders, { symbol: "M", text: "part", values: view.get("_parts"), ...change("part") });
  const boxes = make(sliders, "div", { class: "boxes" });
  const place = (Q) => LENGTHS.indexOf(snap(LENGTHS, Q));
  const steps = { at: () => place(view.get("chunk_len")), to: () => place(view.get("length")) };
  view.player(boxes, { text: "Play c", ...steps, set: (at) => view.set({ chunk_len: LENGTHS[at] }) });
  const seed = make(boxes, "button", { type: "button" });
  view.listen(seed, "click", () => view.set({ seed: (view.get("seed") + 1) % view.get("_draws").length }));
  view.parts.push(() => (seed.textContent = `Draw other numbers (seed ${view.get("seed")})`));
}

/** The four steps with their contractions and their costs. */
function tablePart(view, parent, now) {
  const table = make(make(parent, "div", { class: "scroll" }), "table");
  make(table, "caption", {}, "Multiply-adds of the four steps");
  const body = make(table, "tbody");
  view.parts.push(() => {
    const [each, all] = [costs(now()), total(now())];
    body.replaceChildren();
    for (const [part, sum] of SUMS.entries()) {
      const chosen = part === now().part || (part > 0 && now().part === OFF);
      const line = make(body, "tr", chosen ? { class: "mode" } : {});
      const name = make(line, "th", { scope: "row" });
      make(name, "i", { class: FILLS[part] });
      name.append(`${part + 1} ${view.get("_parts")[part]}`);
      make(name, "span", { class: "dim" }, sum);
      make(make(line, "td", {}, number(Math.round(each[part]))), "span", { class: "dim" }, LETTERS[part]);
      make(line, "td", {}, `${Math.round((100 * each[part]) / all)}\u00a0%`);
    }
  });
}

/** M and its factors: a part is looked at by pointing at it, chosen by a click. */
function blocksPart(view, parent, now) {
  const canvas = view.canvas(parent, {
    label: "M in chunks, and factors of its blocks; left and right arrow keys choose a part, up and down keys change c",
    height: (width) => (({ start, boxes }) => start + boxes[0][3] + 4)(layOut(now(), width)),
    paint: (pen, width) => paintBlocks(pen, now(), width, view),
  });
  const at = (x, y) => partAt(now(), [x, y], widthOf(canvas));
  const look = (hover) => view.schedule((view.hover = hover));
  view.pointed(canvas, at, look);
  view.drag(canvas, {
    near: () => false,
    move(x, y) {
      const { part, steps } = at(x, y) ?? now();
      view.steps = steps ?? view.steps;
      view.set({ part: view.get("_parts")[part] });
    },
    cursor: (x, y) => (at(x, y) ? "pointer" : "default"),
  });
  view.arrows(canvas, (dx, dy) => {
    look();
    const parts = view.get("_parts");
    const next = clamp(parts.indexOf(view.get("part")) + dx, 0, OFF);
    view.set(dx ? { part: parts[next] } : { chunk_len: snap(LENGTHS, view.get("chunk_len"), dy) });
  });
  make(parent, "span", { class: "dim" }, "Grey: never formed, the product of the factors 4, 3 and 2.");
  const note = make(parent, "span", { class: "dim" });
  const drawn = ({ S, features }) => `Drawn: ${S} of T steps, ${features} of N features.`;
  view.parts.push(() => (note.textContent = drawn(now())));
}

/** The cost over the length of a chunk, which is dragged. */
function curvesPart(view, parent, now) {
  let canvas;
  canvas = view.canvas(parent, {
    label: "Multiply-adds over the chunk length c; left and right arrow keys change c, up and down keys change T",
    height: () => HIGH + 48,
    paint: (pen, width) => paintCurves(pen, now(), width, view, canvas?.hot),
  });
  const place = () => layOutCurves(now(), widthOf(canvas));
  view.drag(canvas, {
    near: (x) => Math.abs(x - place().across.place(Math.min(now().Q, now().T))) < 24,
    move: (x) => view.set({ chunk_len: Math.min(snap(LENGTHS, place().across.size(x)), now().T) }),
    cursor: () => "ew-resize",
  });
  view.arrows(canvas, (dx, dy) => {
    if (dx) view.set({ chunk_len: snap(LENGTHS, view.get("chunk_len"), dx) });
    else view.set({ length: snap(octaves(LIMITS.length), view.get("length"), dy) });
  });
}

export default explorer(TRAITS, (view) => {
  let shown;
  view.parts.push(() => {
    const state = read(view);
    const steps = view.hover?.steps ?? view.steps ?? [state.S - 1, 0];
    const [i, j] = steps.map((step) => state.chunkOf(Math.min(step, state.S - 1)));
    shown = { ...state, part: view.hover?.part ?? state.part, pair: i > j ? [i, j] : [state.chunks.length - 1, 0] };
  });
  view.head({
    title: "Quadratic inside chunks, recurrent across them: the cheapest length lies in between",
    headline: () => headline(shown),
    hint: "Play c, or drag it on the curve. Point at a part of the picture.",
  });
  controls(view, view.root);
  const parts = make(view.root, "div", { class: "parts" });
  const [left, right] = [0, 1].map(() => make(parts, "div"));
  blocksPart(view, left, () => shown);
  tablePart(view, right, () => shown);
  curvesPart(view, right, () => shown);
  view.describe(view.root, () => describe(shown));
  const lengths = (Q) => [1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1].map((further) => snap(LENGTHS, Q, further));
  view.nudge(() => lengths(view.get("chunk_len")).map((chunk_len) => ({ chunk_len })));
});
