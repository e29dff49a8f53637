// A structured weight as the product of its factors, and its singular values beside those of low rank at the same cost.

import { clamp, dot, explorer, label, make, number, power, tall, trace, widthOf } from "./base.js";
import { dots, sign } from "./numbers.js";
import { singularValues } from "./singular_values.js";

// FAMILIES, LOW, MAX_RANK, and the powers of two LEAST and MOST of D come from weight_explorer.py.
const TRAITS = ["family", "dim", "blocks", "rank"];
const [TITLE, BARS, SCALE, GAP, THUMB] = [22, 96, 46, 30, 52]; // pixels
const [WIDEST, SEGMENTS] = [128, 64]; // columns of the widest factor, and lines of a path, that are drawn
const HIGH = 6; // power of ten on the axis of singular values, which begins at LOW

// ---- matrices as lists of rows ------------------------------------------------------------------------------------

const list = (count, make) => Array.from({ length: count }, (_, i) => make(i));
const matrix = (m, n, entry) => list(m, (i) => list(n, (j) => entry(i, j)));
const turned = (A) => matrix(A[0].length, A.length, (i, j) => A[j][i]);
const product = (A, B) => {
  const columns = turned(B);
  return matrix(A.length, columns.length, (i, j) => dot(A[i], columns[j]));
};
const sum = (parts) => matrix(parts[0].length, parts[0][0].length, (i, j) => parts.reduce((s, A) => s + A[i][j], 0));

/** Matrices of one shape along the diagonal, zeros elsewhere. */
function directSum(parts) {
  const [m, n] = [parts[0].length, parts[0][0].length];
  const entry = (i, j) => (Math.floor(i / m) === Math.floor(j / n) ? parts[Math.floor(i / m)][i % m][j % n] : 0);
  return matrix(parts.length * m, parts.length * n, entry);
}

/** The permutation matrix that turns a vector of axes (c, b, s) into one of axes (b, c, s). */
function regroup(c, b, s) {
  const source = (i) => (Math.floor(i / s) % c) * b * s + Math.floor(i / (c * s)) * s + (i % s);
  return matrix(c * b * s, c * b * s, (i, j) => Number(source(i) === j));
}

// ---- the families: factors with names, what stands between them, M, and the counts ---------------------------------

const lowRank = (take, D, r) => [take(D, r), turned(take(D, r))];

const BUILD = {
  "low rank": (take, D, p, r) => {
    const [L, R] = lowRank(take, D, r);
    return { factors: [["L", L], ["Rᵀ", R]], M: product(L, R), numbers: 2 * D * r, bound: Math.min(D, r) };
  },
  "block diagonal": (take, D, p) => {
    const M = directSum(list(p, () => take(D / p, D / p)));
    return { factors: [["blocks W", M]], M, numbers: (D * D) / p, bound: D };
  },
  "block low rank": (take, D, p, r) => {
    const [L, R] = [0, 1].map(() => list(p, () => take(D / p, r)));
    const M = directSum(L.map((block, k) => product(block, turned(R[k]))));
    const factors = [["blocks L", directSum(L)], ["blocks Rᵀ", directSum(R.map(turned))]];
    return { factors, M, numbers: 2 * D * r, bound: Math.min(D, p * r) };
  },
  "multi-level": (take, D, p, r) => {
    const blocks = list(Math.log2(p) + 1, (i) => 2 ** i);
    const [L, R] = [0, 1].map(() => take(D, r * blocks.length));
    const part = (F, i, k, size) => F.slice(k * size, (k + 1) * size).map((row) => row.slice(i * r, (i + 1) * r));
    const level = (count, i) => {
      const size = D / count;
      return directSum(list(count, (k) => product(part(L, i, k, size), turned(part(R, i, k, size)))));
    };
    const levels = blocks.map(level);
    const ranks = blocks.reduce((total, count) => total + count * Math.min(r, D / count), 0);
    const factors = levels.map((A, i) => [`level ${i}`, A]);
    return { factors, joiner: "+", M: sum(levels), numbers: 2 * D * r * blocks.length, bound: Math.min(D, ranks) };
  },
  "block tensor train": (take, D, p, r) => {
    const [L, R] = [0, 1].map(() => list(p, () => take(D / p, p * r)));
    const between = p * p * r;
    const entry = (i, j, k, h) => list(r, (s) => L[j][i][k * r + s] * R[k][h][j * r + s]).reduce((a, b) => a + b);
    const M = matrix(D, D, (row, column) => entry(Math.floor(row / p), row % p, Math.floor((column * p) / D), column % (D / p)));
    const all = () => [
      ["reordering", regroup(p, D / p, 1)],
      ["blocks L", directSum(L)],
      ["reordering", regroup(p, p, r)],
      ["blocks Rᵀ", directSum(R.map(turned))],
    ];
    return { factors: between > WIDEST ? [] : all(), M, between, numbers: 2 * D * p * r, bound: Math.min(D, between) };
  },
  Kronecker: (take, D, p) => {
    const b = D / p;
    const [A, B] = [take(p, p), take(b, b)];
    const M = matrix(D, D, (i, j) => A[Math.floor(i / b)][Math.floor(j / b)] * B[i % b][j % b]);
    return { factors: [["A", A], ["B", B]], joiner: "⊗", M, numbers: p * p + b * b, macs: D * (p + b), bound: D };
  },
  butterfly: (take, D) => {
    const rounds = list(Math.log2(D), (i) => {
      const [pairs, width] = [list(D / 2, () => take(2, 2)), 2 ** i];
      const pair = (f) => Math.floor(f / (2 * width)) * width + (f % width);
      const bit = (f) => Math.floor(f / width) % 2;
      const near = (f, g) => pair(f) === pair(g);
      return matrix(D, D, (f, g) => (near(f, g) ? pairs[pair(f)][bit(f)][bit(g)] : 0));
    });
    const M = rounds.reduce((done, next) => product(next, done));
    const factors = rounds.map((A, i) => [`round ${i + 1}`, A]).reverse();
    return { factors, M, numbers: 2 * D * Math.log2(D), bound: D };
  },
};

/** Rows of numbers, taken one after the other from float32 in base64. */
function taker(packed) {
  const data = new DataView(Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)).buffer);
  let next = 0;
  return (m, n) => matrix(m, n, () => data.getFloat32(4 * next++, true));
}

const uses = { blocks: (family) => !["low rank", "butterfly"].includes(family) };
uses.rank = (family) => !["block diagonal", "Kronecker", "butterfly"].includes(family);

/** The state of the model, and all that follows from it. */
export function read(view) {
  const [family, D, blocks, r] = TRAITS.map((name) => view.get(name));
  const p = Math.min(blocks, D);
  const built = BUILD[family](taker(view.get("_draws")), D, p, r);
  const values = singularValues(built.M);
  const cut = view.get("_cut") * Math.sqrt(built.M.reduce((total, row) => total + dot(row, row), 0));
  const rank = values.filter((value) => value > cut).length;
  const shown = { joiner: "·", macs: built.numbers, ...built, family, D, p, r, values, cut, rank };
  return { ...shown, ...rival(view, shown), entry: (view.hover ?? view.entry ?? [2, 9]).map((at) => Math.min(at, D - 1)) };
}

/** The low-rank weight of as many numbers: its rank, and its singular values. */
function rival(view, { numbers, D }) {
  const equal = Math.min(Math.floor(numbers / (2 * D)), D);
  const ghost = equal ? singularValues(BUILD["low rank"](taker(view.get("_draws")), D, 1, equal).M).slice(0, equal) : [];
  return { equal, ghost };
}

// ---- the path of an entry -----------------------------------------------------------------------------------------

/** For each factor the entries that an entry (i, j) of M is made of. */
export function path({ factors, joiner }, [i, j]) {
  const all = factors.map(([, A]) => A);
  if (joiner === "+") return all.map(() => [[i, j]]);
  if (joiner === "⊗") {
    const b = all[1].length;
    return [[[Math.floor(i / b), Math.floor(j / b)]], [[i % b, j % b]]];
  }
  const step = (from, A) => A[0].map((_, k) => A.some((row, l) => from[l] && row[k]));
  const ahead = [all[0]?.map((_, l) => l === i)]; // what row i reaches, before each factor
  for (const A of all) ahead.push(step(ahead.at(-1), A));
  const behind = [all.at(-1)?.[0].map((_, k) => k === j)]; // what reaches column j, after each factor
  for (const A of [...all].reverse()) behind.unshift(step(behind[0], turned(A)));
  return all.map((A, m) =>
    A.flatMap((row, l) => row.flatMap((value, k) => (ahead[m][l] && behind[m + 1][k] && value ? [[l, k]] : []))),
  );
}

const FORMULA = { "+": "a sum over levels", "⊗": "a product of two entries" };

/** How an entry comes about, in words. */
function made(shown) {
  const { M, factors, joiner, entry: [i, j] } = shown;
  const name = `M[${i}, ${j}] = ${number(Number(M[i][j].toPrecision(2)))}`;
  if (!M[i][j]) return `${name}: no path`;
  if (!factors.length) return name;
  if (FORMULA[joiner]) return `${name}, ${FORMULA[joiner]}`;
  const ways = path(shown, [i, j]).reduce((most, lit) => Math.max(most, lit.length), 0);
  return `${name}, ${ways === 1 ? "one path" : `${ways} paths`} through the factors`;
}

/** The read-out: rank for numbers, beside low rank. */
function headline({ numbers, rank, family, equal, D }) {
  const own = `${number(numbers)} numbers, rank ${rank}`;
  if (family === "low rank") return `${own}: a rank costs 2D = ${2 * D} numbers`;
  const other = equal ? `low rank with ${number(numbers)} numbers: rank ${equal}` : `low rank begins at ${2 * D}`;
  return `${own}; ${other}`;
}

/** What a screen reader hears, and everyone can read. */
function describe(shown) {
  const { family, D, p, r, numbers, macs, rank, bound } = shown;
  const sizes = [uses.blocks(family) && `p = ${p}`, uses.rank(family) && `r = ${r}`].filter(Boolean).join(", ");
  return [
    `${family}, ${D} by ${D}${sizes && `, ${sizes}`}: ${number(numbers)} numbers where a dense matrix has `,
    `${number(D * D)}, ${number(macs)} multiply-adds for one vector, rank ${rank} of at most ${bound}. ${made(shown)}.`,
  ].join("");
}

// ---- drawing ------------------------------------------------------------------------------------------------------

/** The fuller a cell the larger its entry. */
function paintEntries(pen, A, [x, y], cell, view) {
  const most = A.reduce((top, row) => row.reduce((high, value) => Math.max(high, Math.abs(value)), top), 0) || 1;
  const wide = cell > 4 ? cell - 1 : cell;
  dots(pen, [x, y, A[0].length * cell, A.length * cell], view);
  for (const [i, row] of A.entries()) {
    for (const [j, value] of row.entries()) {
      if (!value) continue;
      const box = [x + j * cell, y + i * cell, wide, wide];
      pen.fillStyle = view.colour("paper");
      pen.fillRect(...box);
      pen.globalAlpha = Math.sqrt(Math.abs(value) / most);
      pen.fillStyle = view.colour(value < 0 ? "second-strong" : "first-strong");
      pen.fillRect(...box);
      pen.globalAlpha = 1;
      sign(pen, value, box, view);
    }
  }
  pen.globalAlpha = 1;
}

/** Where M and its factors are: [name, matrix, x, y] of each, of one cell size; on a narrow page M is a line above. */
function layOut({ M, D, factors }, width) {
  const pictures = [["M", M], ...factors];
  const narrow = width < 540 && factors.length > 0;
  const lines = narrow ? [pictures.slice(0, 1), pictures.slice(1)] : [pictures];
  const columns = (line) => line.reduce((total, [, A]) => total + A[0].length, 0);
  const room = (line) => (width - GAP * (line.length - (narrow ? 0 : 1)) - 2) / columns(line);
  const tallest = Math.max(...pictures.map(([, A]) => A.length));
  const cells = lines.map((line) => Math.min(room(line), tall(narrow ? 0.62 * width : 0.28 * width) / (narrow ? D : tallest)));
  let top = TITLE;
  const places = lines.flatMap((line, n) => {
    const high = Math.max(...line.map(([, A]) => A.length)) * cells[n];
    let x = narrow && n ? GAP : 1;
    const placed = line.map(([name, A]) => {
      const place = { name, A, cell: cells[n], x, y: top + (high - A.length * cells[n]) / 2 };
      x += A[0].length * cells[n] + GAP;
      return place;
    });
    top += high + TITLE;
    return placed;
  });
  return { places, height: top - TITLE + 4 };
}

/** M = the product of the factors, as pictures, with the path of an entry. */
function paintProduct(pen, shown, width, view) {
  const { colour, font } = view;
  const { joiner, entry, factors, between } = shown;
  const { places } = layOut(shown, width);
  const middle = ({ A, cell, y }) => y + (A.length * cell) / 2;
  for (const [n, place] of places.entries()) {
    const { name, A, cell, x, y } = place;
    Object.assign(pen, { font: font(13, "bold"), fillStyle: colour("ink") });
    const centre = x + (A[0].length * cell) / 2;
    const room = Math.min(A[0].length * cell + GAP - 4, 2 * (width - centre));
    label(pen, name, [centre, y - 9], { align: "center", room });
    pen.font = font(22);
    if (n) label(pen, n === 1 ? "=" : joiner, [x - GAP / 2, middle(place)], { align: "center" });
    paintEntries(pen, A, [x, y], cell, view);
  }
  if (factors.length) return paintPath(pen, places, [[entry], ...path(shown, entry)], joiner, { colour });
  Object.assign(pen, { font: font(14), fillStyle: colour("ink") });
  const [{ A, cell, x, y }] = places;
  label(pen, `= a product with p²r = ${number(between)} wires, too many to draw`, [x + A.length * cell + 16, y + 40]);
  paintPath(pen, places, [[entry]], joiner, { colour });
}

/** The lit entries of each picture in frames, and lines from each factor to the next where they share an index. */
function paintPath(pen, places, lit, joiner, { colour }) {
  const at = ({ x, y, cell }, [i, j]) => [x + (j + 0.5) * cell, y + (i + 0.5) * cell];
  Object.assign(pen, { strokeStyle: colour("limit"), lineWidth: 1.5 });
  const joins = joiner === "·" ? lit.slice(1, -1).map((_, m) => m + 1) : [];
  for (const m of joins) {
    const pairs = lit[m].flatMap((from) => lit[m + 1].filter(([k]) => k === from[1]).map((to) => [from, to]));
    if (pairs.length > SEGMENTS) continue;
    for (const [from, to] of pairs) trace(pen, [at(places[m], from), at(places[m + 1], to)]);
  }
  pen.lineWidth = 2.5;
  for (const [n, entries] of lit.entries()) {
    const half = Math.max(places[n].cell, 5) / 2 + 0.5;
    for (const entry of entries) {
      const [x, y] = at(places[n], entry);
      pen.strokeRect(x - half, y - half, 2 * half, 2 * half);
    }
  }
}

/** Singular values as bars on a logarithmic axis, before those of low rank at the same cost, and the tolerance. */
function paintValues(pen, { values, cut, rank, ghost, D }, width, { colour, font }) {
  const y = (value) => TITLE + BARS * (1 - clamp((Math.log10(value) - LOW) / (HIGH - LOW), 0, 1));
  const column = Math.min((width - SCALE - 4) / D, 36);
  const end = SCALE + D * column;
  Object.assign(pen, { font: font(13, "bold"), fillStyle: colour("ink") });
  label(pen, "Singular values", [2, 9]);
  Object.assign(pen, { font: font(12), fillStyle: colour("dim"), strokeStyle: colour("line"), lineWidth: 1 });
  for (let exponent = HIGH; exponent >= LOW; exponent -= 12) {
    label(pen, power(exponent), [SCALE - 8, y(10 ** exponent)], { align: "right" });
    trace(pen, [[SCALE, y(10 ** exponent)], [end, y(10 ** exponent)]]);
  }
  for (const [i, value] of values.entries()) {
    const x = SCALE + i * column;
    Object.assign(pen, { fillStyle: colour("other-2"), strokeStyle: colour("dim") });
    if (ghost[i]) for (const draw of ["fillRect", "strokeRect"]) pen[draw](x + 1, y(ghost[i]), column - 2, y(0) - y(ghost[i]));
    pen.fillStyle = colour(i < rank ? "first-strong" : "dim");
    pen.fillRect(x + 0.26 * column, y(value), 0.48 * column, y(0) - y(value));
    pen.fillStyle = colour("dim");
    if (i % (D > 16 ? 4 : 1) === 0) label(pen, number(i + 1), [x + column / 2, y(0) + 11], { align: "center" });
  }
  Object.assign(pen, { strokeStyle: colour("limit"), lineWidth: 2 });
  pen.setLineDash([6, 4]);
  trace(pen, [[SCALE, y(cut)], [end, y(cut)]]);
  pen.setLineDash([]);
  const room = width - end > 150;
  pen.fillStyle = colour("limit");
  if (room) label(pen, "tolerance: below it, 0", [end + 10, y(cut)], { room: width - end - 10 });
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

/** The families as a row of small pictures, one of which is chosen. */
function families(view, parent) {
  const row = make(parent, "form", { class: "thumbs", role: "radiogroup", "aria-label": "family of M" }); // a group of its own
  view.listen(row, "submit", (event) => event.preventDefault());
  for (const family of FAMILIES) {
    const box = make(row, "label");
    const input = make(box, "input", { type: "radio", name: "family", value: family, "aria-label": family });
    const canvas = make(box, "canvas", { "aria-hidden": "true", width: 2 * THUMB, height: 2 * THUMB });
    make(box, "span", {}, family);
    const { M } = BUILD[family](taker(view.get("_draws")), 16, 4, 1);
    view.listen(input, "change", () => view.set({ family }));
    view.parts.push(() => {
      input.checked = view.get("family") === family;
      canvas.getContext("2d").clearRect(0, 0, 2 * THUMB, 2 * THUMB);
      paintEntries(canvas.getContext("2d"), M, [0, 0], THUMB / 8, view);
    });
  }
}

function controls(view, parent) {
  const sliders = make(parent, "div", { class: "sliders" });
  const [family, D] = [() => view.get("family"), () => view.get("dim")];
  const p = () => Math.log2(Math.min(view.get("blocks"), D()));
  const setBlocks = (power) => view.set({ blocks: 2 ** power });
  view.range(sliders, {
    symbol: "D",
    text: "features",
    min: LEAST,
    max: MOST,
    get: () => Math.log2(D()),
    set: (power) => view.set({ dim: 2 ** power }),
    says: () => number(D()),
  });
  view.range(sliders, {
    symbol: "p",
    text: "blocks",
    max: MOST,
    get: p,
    set: (power) => setBlocks(Math.min(power, Math.log2(D()))),
    says: () => number(2 ** p()),
    shown: () => uses.blocks(family()),
  });
  view.range(sliders, {
    symbol: "r",
    text: "rank",
    min: 1,
    max: MAX_RANK,
    get: () => view.get("rank"),
    set: (rank) => view.set({ rank }),
    shown: () => uses.rank(family()),
  });
  const box = make(sliders, "div");
  view.player(box, { text: "Play p = 1, 2, 4, …", at: p, to: () => Math.log2(D()), set: setBlocks, every: 900 });
  view.parts.push(() => (box.hidden = !uses.blocks(family())));
}

/** M and its factors: an entry is looked at by pointing at it, chosen by a click or by arrow keys. */
function productPart(view, parent, now) {
  const canvas = view.canvas(parent, {
    label: "M and its factors; arrow keys choose an entry of M, whose path is shown",
    height: (width) => layOut(now(), width).height,
    paint: (pen, width) => paintProduct(pen, now(), width, view),
  });
  const at = (x, y) => {
    const [{ cell, x: left, y: top }] = layOut(now(), widthOf(canvas)).places;
    const entry = [y - top, x - left].map((place) => Math.floor(place / cell));
    return entry.every((index) => index >= 0 && index < now().D) ? entry : undefined;
  };
  const look = (hover) => view.schedule((view.hover = hover));
  view.pointed(canvas, at, look);
  const cursor = (x, y) => (at(x, y) ? "crosshair" : "default");
  view.drag(canvas, { near: () => false, move: (x, y) => view.schedule((view.entry = at(x, y) ?? view.entry)), cursor });
  view.arrows(canvas, (dx, dy) => {
    const [i, j] = now().entry;
    view.entry = [clamp(i - dy, 0, now().D - 1), clamp(j + dx, 0, now().D - 1)];
    look();
  });
}

export default explorer(TRAITS, (view) => {
  let shown;
  view.parts.push(() => (shown = read(view)));
  view.head({
    title: "A product of sparse factors reaches a rank that thin factors cannot pay for",
    headline: () => headline(shown),
    hint: "Choose a family. Point at an entry of M to see the path that makes it.",
  });
  families(view, view.root);
  controls(view, view.root);
  productPart(view, make(view.root, "div", { class: "picture" }), () => shown);
  view.canvas(make(view.root, "div", { class: "picture" }), {
    label: "Singular values of M, and of a low-rank matrix of as many numbers",
    height: () => TITLE + BARS + 20,
    paint: (pen, width) => paintValues(pen, shown, width, view),
  });
  const key = make(view.root, "ul", { class: "key" });
  for (const [fill, text] of [["first-strong", "positive; singular values of M"], ["second-strong", "negative, with a stroke where there is room"], ["other-2", "low rank of equal cost"]]) {
    make(make(key, "li"), "i", { class: fill }).after(text);
  }
  view.describe(view.root, () => describe(shown));
  const powers = [1, 2, 4, 8, 4].flatMap((blocks) => Array(8).fill({ blocks }));
  view.nudge(() => (uses.blocks(shown.family) ? [...powers] : []));
});
