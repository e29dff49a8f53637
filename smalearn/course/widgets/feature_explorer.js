// Attention weights of softmax beside those through random features, over the number of features and the norm.

import { clamp, decimals, digits, dot, explorer, label, make, number, tall, trace, widthOf } from "./base.js";
import { sign } from "./numbers.js";

const TRAITS = ["map", "features", "norm", "seed", "row"];
// SIZES of the features and the NORMS come from feature_explorer.py.
const [TITLE, GAP, BARS, SCALE, MARGIN] = [20, 16, 150, 34, 18]; // pixels: a line of text, between pictures, bars, their scale

// ---- weights ------------------------------------------------------------------------------------------------------

/** The first `count` directions of a draw: rows of float32 numbers in base64. */
function directions(packed, count, inputs) {
  const data = new DataView(Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)).buffer);
  const entry = (i, n) => data.getFloat32(4 * (i * inputs + n), true);
  return Array.from({ length: count }, (_, i) => Array.from({ length: inputs }, (_, n) => entry(i, n)));
}

/** For each map, phi(x) from x and its angles ω_i · x, without factors such as m^(-1/2), which cancel in the weights. */
const MAPS = {
  positive: (x, angles) => angles.map((angle) => Math.exp(angle - dot(x, x) / 2)),
  hyperbolic: (x, angles) => MAPS.positive(x, [...angles, ...angles.map((angle) => -angle)]),
  Fourier: (x, angles) => angles.flatMap((a) => [Math.cos(a), Math.sin(a)].map((y) => y * Math.exp(dot(x, x) / 2))),
  "1 + elu": (x) => x.map((value) => (value > 0 ? value + 1 : Math.exp(value))),
};

/** Weights (T, T) over the words before each word, from any scores; a row that sums to 0 stays as it is. */
function normalised(X, score) {
  return X.map((_, t) => {
    const row = X.map((_, s) => (s < t ? score(t, s) : 0));
    const sum = row.reduce((a, b) => a + b) || 1;
    return row.map((value) => value / sum);
  });
}

function softmax(X) {
  return normalised(X, (t, s) => Math.exp(dot(X[t], X[s])));
}

/** Attention through features. At norms up to 4 nothing overflows, so the constants of Python's `fit` are not needed. */
function estimate(map, X, W) {
  const phi = X.map((x) => MAPS[map](x, W.map((w) => dot(w, x))));
  return normalised(X, (t, s) => dot(phi[t], phi[s]));
}

/** ‖A - M‖ / ‖M‖. */
function relativeError(A, M) {
  const square = (entry) => M.reduce((sum, row, t) => sum + row.reduce((sum, _, s) => sum + entry(t, s) ** 2, 0), 0);
  return Math.sqrt(square((t, s) => A[t][s] - M[t][s]) / square((t, s) => M[t][s]));
}

/** The state of the model, or of a row that is pointed at, and all that follows from it. */
export function read(view) {
  const [words, map, features, norm, seed, chosen] = ["_words", ...TRAITS].map((name) => view.get(name));
  const X = view.get("_X").map((x) => x.map((value) => norm * value));
  const [name, draw = "gaussian"] = map.split(", ");
  const count = { positive: features, "1 + elu": 0 }[name] ?? features / 2;
  const W = directions(view.get("_draws")[draw][seed], count, X[0].length);
  const [exact, through, equal] = [softmax(X), estimate(name, X, W), normalised(X, () => 1)];
  const errors = [through, equal].map((A) => relativeError(A, exact));
  return { words, map, features, norm, row: view.hover ?? chosen, exact, through, errors, random: name !== "1 + elu" };
}

/** The read-out: the error beside that of a model that looks at nothing. */
function headline({ features, random, norm, errors: [own, equal] }) {
  const who = random ? `${features} features` : "1 + elu";
  const verdict = own < equal ? `equal weights have ${digits(equal / own)} times that` : "equal weights do better";
  const than = equal ? `${verdict} (${digits(equal)})` : "where softmax weighs all equally";
  return `${who} at norm ${number(norm)}: error ${digits(own)}, ${than}`;
}

/** What a screen reader hears, and everyone can read. */
function describe({ words, map, features, norm, row, exact, through, errors, random }) {
  const best = (weights) => {
    const order = [...weights.slice(0, row).keys()].sort((a, b) => weights[b] - weights[a] || a - b).slice(0, 3);
    return order.map((s) => `“${words[s]}”\u00a0(${s})\u00a0${decimals(weights[s])}`).join(", ") || "nothing";
  };
  return [
    `${random ? `${features} features, ` : ""}${map}, norm ${number(norm)}: error ${digits(errors[0])}. `,
    `“${words[row]}”, word ${row}, attends most to: ${best(exact[row])} (softmax); `,
    `${best(through[row])} (features).`,
  ].join("");
}

// ---- drawing ------------------------------------------------------------------------------------------------------

/** Pixels of a cell, and those that the longest word takes, about. */
const cellSize = ({ words }, width) => clamp(Math.floor(tall((width - GAP - 2 * MARGIN) / 2) / words.length), 6, 18);
const extent = (words) => clamp(7.5 * Math.max(...words.map((word) => word.length)), 30, 120);

/** Both matrices, the fuller a cell the larger its weight, with a stroke if negative, with the chosen row framed. */
function paintMaps(pen, width, { words, exact, through, row, map }, cell, view) {
  const { colour, font } = view;
  const half = (width + GAP) / 2;
  const left = MARGIN + 1;
  for (const [at, [name, M, fill]] of [["softmax", exact, "first"], [map, through, "second"]].entries()) {
    Object.assign(pen, { font: font(12, "bold"), fillStyle: colour("ink") });
    label(pen, name, [at * half + left, 8], { room: half - GAP - left });
    Object.assign(pen, { font: font(12), fillStyle: colour("dim") });
    const long = words.length * cell;
    label(pen, "query word", [at * half + 8, TITLE + long / 2], { align: "center", upwards: true });
    label(pen, "key word", [at * half + left + long / 2, TITLE + long + 9], { align: "center" });
    for (const [t, weights] of M.entries()) {
      for (const [s, weight] of weights.entries()) {
        const [x, y, size] = [at * half + left + s * cell, TITLE + t * cell, cell - 1];
        Object.assign(pen, { globalAlpha: 1, fillStyle: colour("raised"), strokeStyle: colour("ink"), lineWidth: 1 });
        pen.fillRect(x, y, size, size);
        pen.fillStyle = colour(`${fill}-strong`);
        pen.globalAlpha = Math.sqrt(Math.min(1, Math.abs(weight)));
        pen.fillRect(x, y, size, size);
        pen.globalAlpha = 1;
        sign(pen, weight, [x, y, size, size], view);
      }
    }
    Object.assign(pen, { strokeStyle: colour("focus"), lineWidth: 2 });
    pen.strokeRect(at * half + left, TITLE + row * cell - 1, words.length * cell - 1, cell + 1);
  }
}

/** One row of both matrices as bars, softmax to the left; what leaves the scale has its number. */
function paintBars(pen, width, { words, exact, through, row, map }, { colour, font }) {
  const limit = [0.1, 0.2, 0.5].find((limit) => limit >= 1.2 * Math.max(...exact[row])) ?? 1;
  const column = (width - SCALE) / words.length;
  const [zero, unit] = map === "Fourier" ? [TITLE + BARS / 2, BARS / 2] : [TITLE + BARS, BARS];
  Object.assign(pen, { font: font(12, "bold"), fillStyle: colour("ink") });
  label(pen, `what “${words[row]}” (word ${row}) reads: weights`, [1, 8], { room: width });
  Object.assign(pen, { font: font(12), strokeStyle: colour("line"), lineWidth: 1 });
  for (const value of map === "Fourier" ? [limit, 0, -limit] : [limit, 0]) {
    const y = zero - (value / limit) * unit;
    label(pen, decimals(value), [SCALE - 4, clamp(y, TITLE + 7, TITLE + BARS - 5)], { align: "right", room: SCALE - 4 });
    pen.strokeRect(SCALE, y, width - SCALE, 0);
  }
  for (const [s, word] of words.entries()) {
    const [left, thick] = [SCALE + s * column, 0.4 * column];
    for (const [at, [weight, fill]] of [[exact[row][s], "first-strong"], [through[row][s], "second-strong"]].entries()) {
      const long = clamp(weight / limit, -1, 1) * unit;
      const box = [left + column / 2 + (at - 1) * thick, zero, thick, -long];
      Object.assign(pen, { fillStyle: colour(fill), strokeStyle: colour("dim") });
      pen.fillRect(...box);
      if (s < row) pen.strokeRect(...box);
      pen.fillStyle = colour("ink");
      const middle = [box[0] + thick / 2, zero - long / 2];
      if (Math.abs(weight) > limit) label(pen, decimals(weight), middle, { align: "center", upwards: true });
    }
    Object.assign(pen, { font: font(12, s === row ? "bold" : "normal"), fillStyle: colour(s > row ? "dim" : "ink") });
    label(pen, word, [left + column / 2, TITLE + BARS + 6], { align: "right", room: extent(words), upwards: true });
  }
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

function controls(view, parent, now) {
  const sliders = make(parent, "div", { class: "sliders" });
  const change = (trait) => ({ get: () => view.get(trait), set: (value) => view.set({ [trait]: value }) });
  const enabled = () => now().random;
  view.slider(sliders, { symbol: "F", text: "features", values: SIZES, enabled, ...change("features") });
  view.slider(sliders, { symbol: "|q| = |k|", text: "norm", values: NORMS, ...change("norm") });
  view.choice(sliders, { symbol: "φ", text: "map", values: view.get("_maps"), ...change("map") });
  const boxes = make(sliders, "div", { class: "boxes" });
  const at = () => SIZES.indexOf(view.get("features"));
  const set = (place) => view.set({ features: SIZES[place] });
  view.player(boxes, { text: "Play F", at, to: () => SIZES.length - 1, set, every: 700 });
  const button = make(boxes, "button", { type: "button" });
  view.listen(button, "click", () => view.set({ seed: (view.get("seed") + 1) % view.get("_draws").gaussian.length }));
  view.parts.push(() => {
    boxes.hidden = !enabled();
    button.textContent = `Draw other directions (seed ${view.get("seed")})`;
  });
}

export default explorer(TRAITS, (view) => {
  let shown;
  view.parts.push(() => (shown = read(view)));
  view.head({
    title: "Random features imitate softmax where queries are short, and fail where they are long",
    headline: () => headline(shown),
    hint: "Play F: more features come nearer. Then double the norm. Point at a row to see its weights; a click keeps it.",
  });
  controls(view, view.root, () => shown);
  const parts = make(view.root, "div", { class: "parts" });
  const keys = "arrow keys choose the word";
  const last = view.get("_words").length - 1;
  const within = (row) => clamp(Math.floor(row), 0, last);
  const choose = (row) => view.set({ row: within(row) });
  const rowAt = (_, y) => Math.floor((y - TITLE) / cellSize(shown, widthOf(maps)));
  const look = (row) => view.schedule((view.hover = within(row) === row ? row : undefined));
  const maps = view.canvas(make(parts, "div"), {
    label: `Weights of softmax and through features, a row for each word; ${keys}`,
    height: (width) => TITLE + cellSize(shown, width) * shown.words.length + 20,
    paint: (pen, width) => paintMaps(pen, width, shown, cellSize(shown, width), view),
  });
  const bars = view.canvas(make(parts, "div"), {
    label: `Weights of one word; ${keys}`,
    height: () => TITLE + BARS + 8 + extent(shown.words),
    paint: (pen, width) => paintBars(pen, width, shown, view),
  });
  const cursor = () => "pointer";
  const near = () => false;
  const step = (dx, dy) => {
    look();
    choose(view.get("row") + dx - dy);
  };
  view.pointed(maps, rowAt, look);
  view.drag(maps, { near, move: (...place) => choose(rowAt(...place)), cursor });
  view.drag(bars, { near, move: (x) => choose(((x - SCALE) / (widthOf(bars) - SCALE)) * shown.words.length), cursor });
  for (const canvas of [maps, bars]) view.arrows(canvas, step);
  const key = make(view.root, "ul", { class: "key" });
  for (const [fill, text] of [["first-strong", "softmax"], ["second-strong", "features"]]) {
    const item = make(key, "li");
    make(item, "i", { class: fill });
    item.append(text);
  }
  make(key, "li", { class: "dim" }, "The stronger the colour, the larger (by square root). With a stroke: negative.");
  view.describe(view.root, () => describe(shown));
  const sizes = [...[...SIZES].reverse(), ...SIZES].flatMap((features) => [{ features }, { features }]);
  view.nudge(() => (shown.random ? sizes : []));
});
