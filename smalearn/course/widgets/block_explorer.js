// The matrix of a state space model, a block of it that is dragged about, and the waist through which the block passes.

import { clamp, dot, explorer, knob, label, make, pointOn, tall, trace, widthOf } from "./base.js";
import { hourglass, throughState, told } from "./hourglass.js";
import { dots, sign } from "./numbers.js";
import { singularValues } from "./singular_values.js";

// KINDS, MAX_LENGTH, MAX_STATE and SEEDS come from block_explorer.py.
const TRAITS = ["kind", "state", "length", "seed", "block"];
const [TITLE, CELL, HANDLE, EDGE] = [20, 28, 10, 16]; // pixels: text, a cell, a corner, a label

// ---- the matrix ---------------------------------------------------------------------------------------------------

/** What A_t makes of a state, for each kind. */
const ACT = {
  scalar: ([a], h) => h.map((x) => a * x),
  diagonal: (a, h) => h.map((x, n) => a[n] * x),
  general: (rows, h) => rows.map((row) => dot(row, h)),
  delta: ({ key, beta }, h) => h.map((x, n) => x - beta * dot(key, h) * key[n]),
};

/** A, B and C from the numbers of a seed: for each step B, C, a scalar, a diagonal and a full A, float32 in base64. */
function generators(packed, { kind, N, T }) {
  const data = new DataView(Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)).buffer);
  const [wide, own] = [3 * MAX_STATE + 1 + MAX_STATE ** 2, 2 * MAX_STATE];
  const steps = (read) => Array.from({ length: T }, (_, t) => read(t * wide));
  const part = (from, count = N) => Array.from({ length: count }, (_, i) => data.getFloat32(4 * (from + i), true));
  const rows = (from) => Array.from({ length: N }, (_, n) => part(from + n * MAX_STATE));
  const [scalar, diagonal] = [(t) => part(t + own, 1), (t) => part(t + own + 1)];
  const delta = (t) => {
    const [b, beta] = [part(t), scalar(t)[0] / 2];
    return { key: b.map((x) => x / Math.sqrt(dot(b, b))), beta };
  };
  const A = { scalar, diagonal, general: (t) => rows(t + own + 1 + MAX_STATE), delta, softmax: scalar }[kind];
  const written = ({ key, beta }) => key.map((x) => beta * x);
  const B = kind === "delta" ? (t) => written(delta(t)) : (t) => part(t);
  return { A: steps(A), B: steps(B), C: steps((t) => part(t + MAX_STATE)), act: ACT[kind] };
}

/** M[t][s] = C_t · A_t ... A_(s+1) B_s, column by column; 0 above the diagonal. */
function semiseparable({ A, B, C, act }) {
  const M = C.map(() => B.map(() => 0));
  for (let s = 0; s < B.length; s++) {
    for (let t = s, h = B[s]; t < C.length; t++) {
      if (t > s) h = act(A[t], h);
      M[t][s] = dot(C[t], h);
    }
  }
  return M;
}

/** Causal softmax attention of queries C and keys B, numbers so small that no exponential overflows. */
function softmax({ B, C }) {
  const rows = C.map((c, t) => B.map((b, s) => (s <= t ? Math.exp(dot(c, b)) : 0)));
  return rows.map((row) => row.map((value) => value / row.reduce((a, b) => a + b)));
}

/** An interval moved, and shrunk where it must be, until it lies from 0 to T. */
function fitted(from, to, T) {
  const size = clamp(to - from, 1, T);
  const start = clamp(from, 0, T - size);
  return [start, start + size];
}

/** A block moved, and shrunk, until it is a block of M. */
function within([top, bottom, left, right], T) {
  return [...fitted(top, bottom, T), ...fitted(left, right, T)];
}

/** The block of all that comes after a cut and all that comes before it. */
function cutAt(place, T) {
  const k = clamp(place, 1, T - 1); // 0 where T is 1
  return [k, T, 0, Math.max(k, 1)];
}

/** A block where the text has become longer or shorter: a cut stays a cut. */
function moved(block, [before, T]) {
  const [top] = block;
  return `${block}` === `${cutAt(top, before)}` ? cutAt(Math.round((top * T) / before), T) : within(block, T);
}

/** The state of the model, and all that follows from it. */
export function read(view) {
  const [kind, N, T, seed] = TRAITS.map((name) => view.get(name));
  const [top, bottom, left, right] = within(view.get("block"), T);
  const made = generators(view.get("_draws")[seed], { kind, N, T });
  const M = kind === "softmax" ? softmax(made) : semiseparable(made);
  const part = M.slice(top, bottom).map((row) => row.slice(left, right));
  const values = singularValues(part);
  const cut = view.get("_cut") * Math.sqrt(M.reduce((sum, row) => sum + dot(row, row), 0));
  const rank = values.filter((value) => value > cut).length;
  const [first, end] = [Math.max(top, left), Math.min(right, bottom)]; // rows before and columns after them are 0
  const [beyond, full] = [Math.max(end - first - 1, 0), Math.max(Math.min(bottom - first, end - left), 0)];
  const bounded = kind !== "softmax" && !beyond;
  const bound = kind === "softmax" ? full : Math.min(full, N + beyond);
  const block = [top, bottom, left, right];
  const cutting = Math.min(first + 1, end); // as many words may pass the waist: the state after the last of them
  const flow = kind === "softmax" ? { write: [], read: [] } : throughState(made, block, cutting - 1, N);
  return { kind, N, T, block, M, part, values, cut, rank, beyond, bounded, bound, cutting, flow };
}

const named = ([top, bottom, left, right]) => `M[${top}:${bottom}, ${left}:${right}]`;

const TITLES = {
  state: "All that the past tells the future passes through N numbers",
  softmax: "Softmax attention has no waist: each word reaches each later word by a thread of its own",
};

const COLOURS = "Blue: positive. Orange, stroked or dashed: negative. Dots: 0. The stronger a colour, the larger.";

const many = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

/** The read-out: how many entries the block has, what they pass, and its rank. */
function headline({ block: [top, , left], part, kind, N, bounded, beyond, rank, bound }) {
  const threads = part.flatMap((row, t) => row.filter((_, s) => left + s <= top + t)).length;
  const waist = bounded ? ` through ${many(N, "number")}` : `, ${many(beyond, "word")} beside the waist`;
  return `${many(threads, "thread")}${kind === "softmax" ? ", no waist" : waist}: rank ${rank}, of at most ${bound}`;
}

/** What a screen reader hears, and everyone can read. */
function describe(now, lit) {
  const { kind, N, block, rank, bounded, beyond, bound } = now;
  const below = `What passes from its inputs to its outputs passes through N = ${N} numbers`;
  const above = "It lies above the diagonal, where M is 0 by convention: no output hears a later input";
  const across = `It reaches above the diagonal, where M is 0 by convention, so its rank may exceed N = ${N} by ${beyond}`;
  const softmax = `Softmax attention has no state in between: its N = ${N} features are no bound`;
  return [
    lit === undefined ? "" : told(now, lit),
    `The block ${named(block)} has rank ${rank} of at most ${bound}. `,
    `${bound === 0 ? above : kind === "softmax" ? softmax : bounded ? below : across}.`,
  ].join("");
}

// ---- drawing ------------------------------------------------------------------------------------------------------

const cellSize = (T, width) => Math.min(CELL, Math.floor((tall(width - EDGE) - 2 * HANDLE) / T));

const pictureHeight = (T, width) => TITLE + 2 * HANDLE + cellSize(T, width) * T + EDGE;

/** An interval of rows and one of columns in pixels: left, top, width, height. */
function frame([top, bottom, left, right], cell) {
  return [EDGE + HANDLE + left * cell, TITLE + HANDLE + top * cell, (right - left) * cell, (bottom - top) * cell];
}

/** The four corners of a frame, each with the edges that it moves: places in (top, bottom, left, right). */
function corners([x, y, width, height]) {
  const at = (edges) => [x + (edges[1] - 2) * width, y + edges[0] * height];
  return [[0, 2], [0, 3], [1, 2], [1, 3]].map((edges) => ({ edges, at: at(edges) }));
}

/** The fuller a cell the larger its entry; the block framed, with its corners. */
function paintMatrix(pen, { M, T, N, kind, block, bounded }, width, view, hot) {
  const { colour, font } = view;
  const cell = cellSize(T, width);
  const most = Math.max(...M.flat().map(Math.abs)) || 1;
  Object.assign(pen, { font: font(12, "bold"), fillStyle: colour("ink") });
  const name = { softmax: "softmax attention", delta: `delta rule, N = ${N}` }[kind] ?? `${kind} A, N = ${N}`;
  label(pen, `M: ${name}`, [EDGE + HANDLE, 8]);
  Object.assign(pen, { font: font(12), fillStyle: colour("dim") });
  const [x, y, long] = frame([0, T, 0, T], cell);
  label(pen, "output t", [8, y + long / 2], { align: "center", upwards: true });
  label(pen, "input s", [x + long / 2, y + long + HANDLE + 7], { align: "center" });
  dots(pen, frame([0, T, 0, T], cell), view);
  for (const [t, row] of M.entries()) {
    for (const [s, value] of row.entries()) {
      if (!value) continue;
      const box = frame([t, t + 1 - 1 / cell, s, s + 1 - 1 / cell], cell);
      Object.assign(pen, { globalAlpha: 1, fillStyle: colour("paper") });
      pen.fillRect(...box);
      pen.globalAlpha = Math.sqrt(Math.abs(value) / most);
      pen.fillStyle = colour(value < 0 ? "second-strong" : "first-strong");
      pen.fillRect(...box);
      pen.globalAlpha = 1;
      sign(pen, value, box, view);
    }
  }
  Object.assign(pen, { globalAlpha: 1, strokeStyle: colour("dim"), lineWidth: 1 });
  const stairs = M.flatMap((_, t) => [[t, t], [t + 1, t]]).concat([[T, T]]);
  trace(pen, stairs.map(([s, t]) => [x + s * cell - 0.5, y + t * cell - 0.5]));
  const box = frame(block, cell);
  for (const [line, thick] of [["paper", 6], [bounded ? "ink" : "second-strong", 3]]) {
    Object.assign(pen, { strokeStyle: colour(line), lineWidth: thick });
    pen.strokeRect(...box);
  }
  for (const { at } of corners(box)) knob(pen, at, hot, view);
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

function controls(view, parent) {
  const sliders = make(parent, "div", { class: "sliders" });
  const change = (trait) => ({ get: () => view.get(trait), set: (value) => view.set({ [trait]: value }) });
  view.choice(sliders, { symbol: "M", text: "kind of A", values: KINDS, ...change("kind") });
  view.range(sliders, { symbol: "N", text: "state size", min: 1, max: MAX_STATE, ...change("state") });
  view.range(sliders, {
    symbol: "T",
    text: "length",
    min: 1,
    max: MAX_LENGTH,
    get: () => view.get("length"),
    set: (length) => view.set({ length, block: moved(view.get("block"), [view.get("length"), length]) }),
  });
  const boxes = make(sliders, "div", { class: "boxes" });
  const cut = { at: () => view.get("block")[0], from: 1, to: () => view.get("length") - 1 };
  const put = (k) => view.set({ block: cutAt(k, view.get("length")) });
  view.player(boxes, { text: "Play: move the cut", ...cut, set: put, every: 400 });
  const seed = make(boxes, "button", { type: "button" });
  view.listen(seed, "click", () => view.set({ seed: (view.get("seed") + 1) % SEEDS }));
  view.parts.push(() => (seed.textContent = `Draw other numbers (seed ${view.get("seed")})`));
}

/** M with the block: dragged inside, resized at its corners, called by a click elsewhere. */
function matrixPart(view, parent, now) {
  let [grip, shift] = [undefined, false];
  let canvas;
  canvas = view.canvas(parent, {
    label: "M with a block; arrow keys move the block, Shift and arrow keys move its lower right corner",
    height: (width) => pictureHeight(now().T, width),
    paint: (pen, width) => paintMatrix(pen, now(), width, view, canvas?.hot),
  });
  const cell = () => cellSize(now().T, widthOf(canvas));
  const place = (block) => view.set({ block: within(block, now().T) });
  /** What a pointer takes hold of: a corner, or the block at a distance from its first cell. */
  const take = (x, y) => {
    const [{ block }, box] = [now(), frame(now().block, cell())];
    const near = corners(box).find(({ at }) => Math.hypot(x - at[0], y - at[1]) < 1.2 * HANDLE);
    const held = clamp(x, box[0], box[0] + box[2]) === x && clamp(y, box[1], box[1] + box[3]) === y;
    const small = held && Math.min(box[2], box[3]) < 4 * HANDLE; // it could not be held but at corners
    if (near && !small) return { edges: near.edges, offset: [0, 0], block, held: true };
    return { offset: held ? [x - box[0], y - box[1]] : [box[2] / 2, box[3] / 2], held };
  };
  view.listen(canvas, "pointerdown", (event) => (grip = take(...pointOn(canvas, event))));
  const over = ({ edges, held }) => (edges ? (edges[0] === edges[1] - 2 ? "nwse-resize" : "nesw-resize") : held && "move");
  view.drag(canvas, {
    near: (x, y) => take(x, y).held,
    cursor: (x, y) => over(take(x, y)) || "crosshair",
    move(x, y) {
      grip ??= take(x, y); // a click of a screen reader comes alone
      const [dx, dy] = grip.offset;
      const [t, s] = [y - dy - TITLE - HANDLE, x - dx - EDGE - HANDLE].map((place) => Math.round(place / cell()));
      const [top, bottom, left, right] = view.get("block");
      place(grip.edges ? resized(grip, [t, s], now().T) : [t, t + bottom - top, s, s + right - left]);
    },
  });
  view.listen(canvas, "keydown", (event) => (shift = event.shiftKey));
  view.arrows(canvas, (dx, dy) => {
    const [{ T }, [top, bottom, left, right]] = [now(), view.get("block")];
    if (shift) place([top, clamp(bottom - dy, top + 1, T), left, clamp(right + dx, left + 1, T)]);
    else place([top - dy, bottom - dy, left + dx, right + dx]);
  });
  make(parent, "span", { class: "dim" }, COLOURS);
}

/** The block with one corner put to a place, in cells; it may pass the opposite one. */
function resized({ edges, block }, place, T) {
  return [0, 1].flatMap((axis) => {
    const [edge, other] = [edges[axis], 4 * axis + 1 - edges[axis]];
    const [still, free] = [block[other], clamp(place[axis], 0, T)];
    const next = free === still ? still + Math.sign(edge - other) : free;
    return [Math.min(still, next), Math.max(still, next)];
  });
}

export default explorer(TRAITS, (view) => {
  let shown;
  view.parts.push(() => (shown = read(view)));
  view.head({
    title: () => TITLES[shown.kind === "softmax" ? "softmax" : "state"],
    headline: () => headline(shown),
    hint: "Drag the cut, or the block in M and its corners, also across the diagonal. Point at a word.",
  });
  controls(view, view.root);
  const parts = make(view.root, "div", { class: "parts" });
  const lit = hourglass(view, make(parts, "div"), {
    now: () => shown,
    height: (width) => Math.max(pictureHeight(shown.T, width), 200),
    put: (k) => view.set({ block: cutAt(k, shown.T) }),
  });
  matrixPart(view, make(parts, "div"), () => shown);
  view.describe(view.root, () => describe(shown, lit()));
  view.nudge(() => {
    const [{ block, T }, shift] = [shown, (i) => Math.round(3 * Math.sin((Math.PI * i) / 24))];
    return Array.from({ length: 25 }, (_, i) => ({ block: cutAt(block[0] + shift(i), T) }));
  });
});
