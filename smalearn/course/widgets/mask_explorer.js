// A structured mask L over the tokens of a text: L, the scores G, M = L ∘ G and one row of it, block ranks and costs.

import { clamp, digits, explorer, knob, label, make, number, power, times, widthOf } from "./base.js";
import { inks, paintCells } from "./numbers.js";
import { FAMILIES, blockRanks, denseCost, makeMask, makeScores, stroke } from "./mask_formulas.js";
import { GAP, TITLE, largest, layOutMatrices, paintMatrix, share } from "./mask_matrices.js";

const CHOICES = ["family", "gamma", "growth", "decays", "alpha", "rank", "window", "dilation", "blocks"];
const TRAITS = [...CHOICES, "scores", "target", "split", "scale"];
// TOLERANCE and NGRAM of mask_formulas.js come from mask_explorer.py.
const [LEFT, STRIP, BARS, LANE, WIDEST] = [4, 84, 96, 8, 40]; // pixels
const STEPS = 20; // of a number that arrow keys change, from 0 to 1

// ---- what is shown ------------------------------------------------------------------------------------------------

/** What a view has computed under a name, computed again only when its key has changed. */
function keep(view, name, key, compute) {
  view.kept ??= {};
  if (view.kept[name]?.key !== key) view.kept[name] = { key, value: compute() };
  return view.kept[name].value;
}

/** The state of the model, and all that follows from it. */
function read(view) {
  const names = ["_words", "_Q", "_K", "_U", "_V"];
  const [words, Q, K, U, V] = names.map((name) => view.get(name));
  const state = Object.fromEntries(TRAITS.map((trait) => [trait, view.get(trait)]));
  const { L, ranks } = keep(view, "mask", JSON.stringify(CHOICES.map((trait) => state[trait])), () => {
    const L = makeMask(state.family, { ...state, T: words.length, U, V });
    return { L, ranks: blockRanks(L) };
  });
  const G = keep(view, "scores", state.scores, () => makeScores(state.scores, { words, Q, K }));
  const M = G.map((score, i) => L.real[i] * score);
  const t = view.hover ?? state.target;
  const [mask, weights] = [L.real, M].map((entries) => [...entries.slice(t * L.T, (t + 1) * L.T)]);
  return { ...state, words, L, ranks, G, M, t, mask, weights, T: L.T };
}

/** Places of numbers, those of the largest first. */
function bySize(values) {
  return [...values.keys()].sort((i, j) => Math.abs(values[j]) - Math.abs(values[i]));
}

/** What a screen reader hears, and everyone can read. */
function describe({ family, words, L, ranks, split, t, weights }) {
  const { by, says } = FAMILIES[family];
  const heard = bySize(weights).filter((s) => weights[s]).slice(0, 3).map((s) => `word ${s} “${words[s]}” ${digits(weights[s])}`);
  return [
    `${says}. The block L[${split}:, :${split}] has rank ${ranks[split - 1]}; over all k, the largest rank is `,
    `${Math.max(...ranks)}. One column costs ${number(L.cost)} operations by ${by}, ${number(denseCost(L))} by a dense `,
    `product. Row ${t} of M, “${words[t]}”, weighs `,
    heard.length ? `${heard.join(", ")} most.` : "nothing.",
  ].join("");
}

// ---- drawing ------------------------------------------------------------------------------------------------------

/** Bars from a zero line; `place(i)` is the middle of one, `height` the pixels of the number 1. */
function paintBars(pen, values, { place, thick, zero, height }, fill, { colour }) {
  for (const [i, value] of values.entries()) {
    pen.fillStyle = colour(fill(value, i));
    pen.fillRect(place(i) - thick / 2, zero - Math.max(value, 0) * height, thick, Math.abs(value) * height);
  }
  pen.fillStyle = colour("dim");
  pen.fillRect(place(0) - thick / 2, zero - 0.5, place(values.length - 1) - place(0) + thick, 1);
}

/** A row of M as bars over the words, and the row of L as a lane of colours; words have names where there is room. */
function paintRow(pen, shown, width, view) {
  const { words, weights, mask, L, t, T, scale } = shown;
  const column = (width - 2 * LEFT) / T;
  const [place, limit] = [(s) => LEFT + (s + 0.5) * column, largest(weights) || 1];
  const low = Math.max(...weights.map((weight) => -weight), 0);
  const height = BARS / (Math.max(...weights, 0) + low || 1);
  const zero = TITLE + BARS - low * height;
  const lane = TITLE + BARS + 6;
  Object.assign(pen, { font: view.font(13, "bold"), fillStyle: view.colour("ink") });
  label(pen, `row ${t} of M: what “${words[t]}” reads`, [LEFT, 9], { room: width - 2 * LEFT });
  const fill = (weight) => (weight < 0 ? "second-strong" : "first-strong");
  paintBars(pen, weights, { place, thick: clamp(column - 2, 1, WIDEST), zero, height }, fill, view);
  paintCells(pen, mask, T, [LEFT, lane, T * column, LANE], inks(view, pen, largest(L.real) || 1, share(scale)), view);
  const named = [];
  pen.font = view.font(12);
  for (const s of [t, ...bySize(weights).filter((s) => weights[s] || T < 30)]) {
    if (named.some((other) => Math.abs(other - s) * column < 13)) continue;
    named.push(s);
    pen.save();
    pen.translate(place(s), lane + LANE + 6);
    pen.rotate(-Math.PI / 2);
    pen.fillStyle = view.colour(s === t ? "focus" : Math.abs(weights[s]) > 0.1 * limit ? "ink" : "dim");
    label(pen, words[s], [0, 0], { align: "right", room: 74 });
    pen.restore();
  }
}

/** The ranks of the blocks L[k:, :k] over k, under the largest that these could have; the chosen k stands out. */
function paintRanks(pen, { ranks, split, T }, width, view) {
  const column = (width - 2 * LEFT - 20) / ranks.length;
  const place = (i) => LEFT + 20 + (i + 0.5) * column;
  const height = BARS / (Math.floor(T / 2) || 1);
  const zero = TITLE + 8 + BARS;
  Object.assign(pen, { font: view.font(13, "bold"), fillStyle: view.colour("ink") });
  label(pen, `rank of L[k:, :k]: ${ranks[split - 1]} at k = ${split}, largest ${Math.max(...ranks)}`, [LEFT, 9], {
    room: width - 2 * LEFT,
  });
  const most = ranks.map((_, i) => Math.min(i + 1, T - i - 1));
  const thick = clamp(column - 1, 1, WIDEST);
  paintBars(pen, most, { place, thick, zero, height }, () => "raised", view);
  const fill = (_, i) => (i + 1 === split ? "second-strong" : "first-strong");
  paintBars(pen, ranks, { place, thick, zero, height }, fill, view);
  Object.assign(pen, { font: view.font(12), fillStyle: view.colour("dim") });
  for (const tick of [0, Math.floor(T / 2)]) label(pen, tick, [LEFT + 14, zero - tick * height], { align: "right" });
  for (const k of [1, T - 1]) label(pen, `k = ${k}`, [place(k - 1), zero + 12], { align: k === 1 ? "left" : "right" });
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

function controls(view, parent) {
  const T = view.get("_words").length;
  const sliders = make(parent, "div", { class: "sliders" });
  const get = (trait) => () => view.get(trait);
  const set = (trait) => (value) => view.set({ [trait]: value });
  const among = (...families) => () => families.includes(view.get("family"));
  const choice = (symbol, text, trait, values) =>
    view.choice(sliders, { symbol, text, values, get: get(trait), set: set(trait) });
  const range = (symbol, text, trait, min, max, shown) =>
    view.range(sliders, { symbol, text, min, max, get: get(trait), set: set(trait), shown });
  choice("L", "family", "family", Object.keys(FAMILIES));
  choice("G", "scores", "scores", ["words", "random"]);
  range("t", "row", "target", 0, T - 1);
  range("k", "split", "split", 1, T - 1);
  const hundredths = (symbol, text, { families, most = 1, get, set, says }) => {
    const steps = { min: 0, max: 100 * most, get: () => 100 * get(), set: (step) => set(step / 100) };
    view.range(sliders, { symbol, text, ...steps, says, shown: among(...families) });
  };
  hundredths("γ", "decay", {
    families: ["decay", "log-linear"],
    get: get("gamma"),
    set: set("gamma"),
    says: () => number(view.get("gamma")),
  });
  hundredths("w", "weight of a level", {
    families: ["log-linear"],
    most: 2,
    get: get("growth"),
    set: set("growth"),
    says: () => `${number(view.get("growth"))}^level`,
  });
  const decays = get("decays");
  hundredths("a", "all decays", {
    families: ["1-semiseparable"],
    get: () => decays().reduce((sum, a) => sum + a) / T,
    set: (a) => view.set({ decays: decays().map(() => a) }),
    says: () => (decays().every((a) => a === decays()[0]) ? number(decays()[0]) : "mixed"),
  });
  range("R", "rank", "rank", 1, view.get("_U")[0].length, among("low rank"));
  range("w", "window", "window", 0, T - 1, among("banded", "dilated"));
  range("d", "dilation", "dilation", 1, T - 1, among("dilated"));
  const divisors = Array.from({ length: T }, (_, i) => i + 1).filter((blocks) => T % blocks === 0);
  view.range(sliders, {
    symbol: "p",
    text: "blocks",
    max: divisors.length - 1,
    get: () => divisors.indexOf(view.get("blocks")),
    set: (place) => view.set({ blocks: divisors[place] }),
    says: () => number(view.get("blocks")),
    shown: among("block diagonal"),
  });
  const boxes = make(sliders, "div", { class: "boxes" });
  const row = { at: get("target"), to: () => T - 1, set: set("target") };
  view.player(boxes, { text: "Play t", ...row });
  view.checkbox(boxes, {
    text: "logarithmic colours",
    get: () => view.get("scale") === "log",
    set: (log) => view.set({ scale: log ? "log" : "linear" }),
  });
}

/** Numbers that are drawn with the pointer: the decays, one for each word, or α, one for each distance. */
function strip(view, parent, { family, trait, name, low, from }) {
  const box = make(parent, "div", { style: "margin-top: 0.5rem" });
  view.parts.push(() => (box.hidden = view.get("family") !== family));
  let [chosen, last, place] = [undefined, undefined, undefined];
  const values = () => view.get(trait);
  const at = (i) => (trait === "alpha" ? `t − s = ${i + from}` : `a of word ${i}, “${view.get("_words")[i]}”`);
  let canvas;
  canvas = view.canvas(box, {
    label: `${name}; left and right arrow keys choose one, up and down keys change it`,
    height: () => TITLE + STRIP + 16, // room for the knob of a 0
    paint(pen, width) {
      chosen ??= trait === "alpha" ? -from : dipped(values());
      const column = (width - 2 * LEFT) / values().length;
      const height = STRIP / (1 - low);
      const thick = Math.max(column - 1, 1);
      place = { place: (i) => LEFT + (i + 0.5) * column, thick, zero: TITLE + height, height, column };
      pen.fillStyle = view.colour("raised");
      pen.fillRect(LEFT, TITLE, width - 2 * LEFT, STRIP);
      const unused = (i) => trait === "decays" && !i; // nothing comes before word 0
      const fill = (_, i) => (i === chosen ? "second-strong" : unused(i) ? "other-2" : "first-strong");
      paintBars(pen, values(), place, fill, view);
      knob(pen, [place.place(chosen), place.zero - values()[chosen] * height], canvas?.hot, view);
      Object.assign(pen, { font: view.font(13, "bold"), fillStyle: view.colour("ink") });
      label(pen, `${name}: ${at(chosen)}: ${digits(values()[chosen])}`, [LEFT, 9], { room: width - 2 * LEFT });
    },
  });
  const column = (x) => clamp(Math.floor((x - LEFT) / place.column), 0, values().length - 1);
  view.listen(canvas, "pointerdown", () => (last = undefined));
  view.drag(canvas, {
    near: (x, y) => Math.abs(y - place.zero + values()[column(x)] * place.height) < 24,
    cursor: () => "ns-resize",
    move(x, y) {
      const point = [column(x), Math.round(100 * clamp((place.zero - y) / place.height, low, 1)) / 100];
      const line = stroke(values(), last ?? point, point);
      [last, chosen] = [point, point[0]];
      view.set({ [trait]: line.map((value, i) => (value === values()[i] ? value : Math.round(100 * value) / 100)) });
    },
  });
  view.arrows(canvas, (dx, dy) => {
    chosen = clamp(chosen + dx, 0, values().length - 1);
    const changed = clamp(Math.round(STEPS * values()[chosen] + dy) / STEPS, low, 1);
    if (dy) view.set({ [trait]: values().map((value, i) => (i === chosen ? changed : value)) });
    else view.schedule();
  });
}

/** L, G and M; a row is looked at by pointing at it, chosen by a click. */
function matricesPart(view, parent) {
  const T = view.get("_words").length;
  let boxes;
  const canvas = view.canvas(parent, {
    label: "L, G and M; up and down arrow keys change the row t, left and right keys the split k",
    height: (width) => layOutMatrices(view.get("_words"), width).height,
    paint(pen, width) {
      const shown = read(view);
      boxes = layOutMatrices(shown.words, width).boxes;
      const complex = shown.L.imaginary ? "Re " : "";
      const scores = shown.scores === "random" ? "random" : "equal words";
      const names = [`${complex}L, the mask`, `G = QKᵀ, ${scores}`, `${complex}M = ${complex}L ∘ G`];
      for (const [i, entries] of [shown.L.real, shown.G, shown.M].entries()) {
        paintMatrix(pen, entries, { ...shown, name: names[i] }, boxes[i], view);
      }
      const [{ x, y, long }, k] = [boxes[0], shown.split / T];
      Object.assign(pen, { strokeStyle: view.colour("ink"), lineWidth: 1.5 });
      pen.setLineDash([4, 3]);
      pen.strokeRect(x + 1, y + k * long, k * long, (1 - k) * long - 1);
      pen.setLineDash([]);
      Object.assign(pen, { font: view.font(20), fillStyle: view.colour("ink") });
      for (const [i, sign] of [[1, "∘"], [2, "="]]) {
        const { x, y, long, first } = boxes[i];
        if (!first) label(pen, sign, [x - GAP / 2, y + long / 2], { align: "center" });
      }
    },
  });
  const row = (x, y) => {
    const start = ({ x, first, rim }) => (first ? x - rim : x); // words of rows are pointed at as well
    const inside = (box) => x >= start(box) && x < box.x + box.long && y >= box.y && y < box.y + box.long;
    const box = boxes.find(inside);
    return box && Math.floor(((y - box.y) / box.long) * T);
  };
  const look = (hover) => {
    if (view.hover !== hover) view.schedule();
    view.hover = hover;
  };
  view.pointed(canvas, row, look);
  view.drag(canvas, {
    near: (_, y) => boxes.some((box) => Math.abs(y - box.y - (view.get("target") * box.long) / T) < 24),
    move: (x, y) => view.set({ target: row(x, y) ?? view.get("target") }),
    cursor: (x, y) => (row(x, y) === undefined ? "default" : "crosshair"),
  });
  view.arrows(canvas, (dx, dy) => {
    look(undefined);
    view.set({ target: clamp(view.get("target") - dy, 0, T - 1), split: clamp(view.get("split") + dx, 1, T - 1) });
  });
  const key = "Dots: exactly 0. A stroke: negative. Dashed: the block L[k:, :k]. Point at a row.";
  make(parent, "span", { class: "dim" }, key);
}

/** The row of M, the ranks of the blocks, and what a product costs. */
function belowPart(view, left, right) {
  const row = view.canvas(left, {
    label: "Row t of M as weights over the words; left and right arrow keys change t",
    height: () => TITLE + BARS + LANE + 92,
    paint: (pen, width) => paintRow(pen, read(view), width, view),
  });
  const T = view.get("_words").length;
  view.arrows(row, (dx) => view.set({ target: clamp(view.get("target") + dx, 0, T - 1) }));
  const canvas = view.canvas(right, {
    label: "Ranks of the blocks L[k:, :k] over k; left and right arrow keys change the split k",
    height: () => TITLE + 8 + BARS + 22,
    paint: (pen, width) => paintRanks(pen, read(view), width, view),
  });
  const least = power(Math.log10(TOLERANCE));
  const key = `Singular values above ${least} times the largest are counted. Pale: the largest rank that there could be.`;
  make(right, "span", { class: "dim" }, key);
  const column = () => (widthOf(canvas) - 2 * LEFT - 20) / (T - 1);
  const split = (x) => clamp(Math.ceil((x - LEFT - 20) / column()), 1, T - 1);
  const near = (x) => Math.abs(x - LEFT - 20 - (view.get("split") - 0.5) * column()) < 24;
  view.drag(canvas, { near, move: (x) => view.set({ split: split(x) }), cursor: () => "ew-resize" });
  view.arrows(canvas, (dx) => view.set({ split: clamp(view.get("split") + dx, 1, T - 1) }));
  const costs = make(make(right, "div", { class: "scroll", style: "margin-top: 0.5rem" }), "table");
  make(costs, "caption", {}, "Additions and multiplications for L times one column");
  const body = make(costs, "tbody");
  view.parts.push(() => {
    const { family, L } = read(view);
    const rows = [[FAMILIES[family].by, L.cost], ["a dense product", denseCost(L)]];
    const fewest = Math.min(L.cost, denseCost(L));
    body.replaceChildren();
    for (const [i, [by, cost]] of rows.entries()) {
      const line = make(body, "tr", i ? {} : { class: "mode" });
      make(line, "th", { scope: "row" }, by);
      make(line, "td", {}, number(cost));
      make(line, "td", {}, `${times(cost / fewest)} ×`);
    }
  });
}

/** The place of a decay to begin with, in the middle of the text, where a 0 forgets the most that is seen. */
const dipped = (decays) => Math.floor(decays.length / 2);

/** Decays of which one goes to 0 and back. */
function dips(decays) {
  const depth = (i) => Math.round(100 * decays[dipped(decays)] * (1 - Math.sin((Math.PI * i) / 24))) / 100;
  return Array.from({ length: 25 }, (_, i) => ({ decays: decays.map((a, t) => (t === dipped(decays) ? depth(i) : a)) }));
}

/** The read-out: what the structure saves. */
function headline({ L, ranks }) {
  const [fast, dense] = [L.cost, denseCost(L)];
  const cost = fast < dense ? `${times(dense / fast)} times cheaper than a dense one` : "no cheaper than a dense one";
  return `Rank ${Math.max(...ranks)} off the diagonal: a product with L is ${cost}`;
}

export default explorer(TRAITS, (view) => {
  view.head({
    title: () => FAMILIES[view.get("family")].title,
    headline: () => headline(read(view)),
    hint: () => FAMILIES[view.get("family")].hint ?? "Choose a family. Point at a row to see what its word reads.",
  });
  controls(view, view.root);
  const T = view.get("_words").length;
  strip(view, view.root, { family: "1-semiseparable", trait: "decays", name: "Decays", low: 0, from: 0 });
  strip(view, view.root, { family: "Toeplitz", trait: "alpha", name: "α", low: -1, from: 1 - T });
  matricesPart(view, make(view.root, "div", { style: "margin-top: 0.5rem" }));
  const more = make(view.root, "details");
  make(more, "summary", { tabindex: 0 }, "A row over its words, ranks of blocks, and costs");
  const parts = make(more, "div", { class: "parts" });
  belowPart(view, make(parts, "div"), make(parts, "div"));
  view.describe(view.root, () => describe(read(view)));
  view.nudge(() => (view.get("family") === "1-semiseparable" ? dips(view.get("decays")) : []));
});
