// A structured weight: its matrix, its factors, what it costs, and its singular values.

import { clamp, dot, explorer, label, make, number, trace } from "./base.js";
import { singularValues } from "./singular_values.js";

// FAMILIES, LOW, MAX_RANK, and the powers of two LEAST and MOST of D come from weight_explorer.py.
const TRAITS = ["family", "dim", "blocks", "rank"];
const [TITLE, BARS, SCALE, CELL, GAP] = [20, 230, 46, 18, 26]; // pixels
const [TOP, WIDEST] = [32, 128]; // pixels above the factors; columns of the widest factor that is drawn
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
    return { factors: [["⊕ W", M]], M, numbers: (D * D) / p, bound: D };
  },
  "block low rank": (take, D, p, r) => {
    const [L, R] = [0, 1].map(() => list(p, () => take(D / p, r)));
    const M = directSum(L.map((block, k) => product(block, turned(R[k]))));
    const factors = [["⊕ L", directSum(L)], ["⊕ Rᵀ", directSum(R.map(turned))]];
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
      ["P_L", regroup(p, D / p, 1)],
      ["⊕ L", directSum(L)],
      ["P_R", regroup(p, p, r)],
      ["⊕ Rᵀ", directSum(R.map(turned))],
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
  return { joiner: "·", macs: built.numbers, ...built, family, D, p, r, values, cut, rank };
}

/** What a screen reader hears, and everyone can read. */
function describe({ family, D, p, r, numbers, macs, rank, bound }) {
  const sizes = [uses.blocks(family) && `p = ${p}`, uses.rank(family) && `r = ${r}`].filter(Boolean).join(", ");
  return [
    `${family}, ${D} by ${D}${sizes && `, ${sizes}`}: ${number(numbers)} numbers where a dense matrix has `,
    `${number(D * D)}, ${number(macs)} multiply-adds for one vector, rank ${rank} of at most ${bound}.`,
  ].join("");
}

// ---- drawing ------------------------------------------------------------------------------------------------------

const raise = (exponent) => String(exponent).replace(/./g, (sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]);

/** The fuller a cell the larger its entry; a zero has the colour of nothing. */
function paintCells(pen, A, [x, y], cell, colour) {
  const most = A.reduce((top, row) => row.reduce((high, value) => Math.max(high, Math.abs(value)), top), 0) || 1;
  const side = cell > 4 ? cell - 1 : cell;
  pen.fillStyle = colour("raised");
  pen.fillRect(x, y, A[0].length * cell, A.length * cell);
  for (const [i, row] of A.entries()) {
    for (const [j, value] of row.entries()) {
      if (!value) continue;
      pen.globalAlpha = Math.sqrt(Math.abs(value) / most);
      pen.fillStyle = colour(value < 0 ? "second-strong" : "first-strong");
      pen.fillRect(x + j * cell, y + i * cell, side, side);
    }
  }
  pen.globalAlpha = 1;
}

const matrixCell = (D, width) => Math.min(CELL, Math.floor(width / D));

function paintMatrix(pen, { M, D, family }, width, { colour, font }) {
  Object.assign(pen, { font: font(12, "bold"), fillStyle: colour("ink") });
  label(pen, `M: ${family}`, [0, 8]);
  paintCells(pen, M, [0, TITLE], matrixCell(D, width), colour);
}

/** Singular values as bars on a logarithmic axis, the tolerance, and the bound of the rank. */
function paintValues(pen, { values, cut, rank, bound }, width, { colour, font }) {
  const y = (value) => TITLE + 8 + BARS * (1 - clamp((Math.log10(value) - LOW) / (HIGH - LOW), 0, 1));
  const column = (width - SCALE - 4) / values.length;
  Object.assign(pen, { font: font(12, "bold"), fillStyle: colour("ink") });
  label(pen, "Singular values", [2, 8], { room: width });
  Object.assign(pen, { font: font(12), fillStyle: colour("dim"), strokeStyle: colour("line"), lineWidth: 1 });
  for (let exponent = HIGH; exponent >= LOW; exponent -= 6) {
    label(pen, `10${raise(exponent)}`, [SCALE - 8, y(10 ** exponent)], { align: "right" });
    trace(pen, [[SCALE, y(10 ** exponent)], [width, y(10 ** exponent)]]);
  }
  for (const [i, value] of values.entries()) {
    pen.fillStyle = colour(i < rank ? "first-strong" : "dim");
    pen.fillRect(SCALE + (i + 0.1) * column, y(value), 0.8 * column, y(0) - y(value));
  }
  const wall = SCALE + bound * column;
  for (const [line, dash, ends] of [
    ["ink", [], [[wall, TITLE + 8], [wall, y(0)]]],
    ["second-strong", [6, 4], [[SCALE, y(cut)], [width, y(cut)]]],
  ]) {
    Object.assign(pen, { strokeStyle: colour(line), lineWidth: 2 });
    pen.setLineDash(dash);
    trace(pen, ends);
  }
  pen.setLineDash([]);
  pen.fillStyle = colour("ink");
  const left = wall > width / 2;
  label(pen, `bound ${bound}`, [wall + (left ? -6 : 6), TITLE + 14], { align: left ? "right" : "left" });
  for (let i = 0; i < values.length; i += values.length > 8 ? 4 : 1) {
    label(pen, number(i + 1), [SCALE + (i + 0.5) * column, y(0) + 10], { align: "center" });
  }
}

/** A cell of the factors, all in one row, none larger than a cell of M. */
function factorCell({ factors }, width) {
  const columns = factors.reduce((total, [, A]) => total + A[0].length, 0);
  return Math.min(CELL / 2, (width - GAP * factors.length) / columns);
}

const factorHeight = (shown, width) =>
  TOP + (shown.factors.length ? Math.max(...shown.factors.map(([, A]) => A.length)) * factorCell(shown, width) : 20);

/** The factors from left to right, as in the formula, with what stands between them. */
function paintFactors(pen, shown, width, { colour, font }) {
  const cell = factorCell(shown, width);
  Object.assign(pen, { font: font(12), fillStyle: colour("ink") });
  if (!shown.factors.length) label(pen, `Factors: too many to draw, p²r = ${number(shown.between)} wires`, [0, TOP - 12]);
  let x = 0;
  for (const [i, [name, A]] of shown.factors.entries()) {
    if (i) {
      pen.fillStyle = colour("ink");
      label(pen, shown.joiner, [x - GAP / 2, TOP + 14], { align: "center" });
    }
    pen.fillStyle = colour("ink");
    label(pen, name, [x, TOP - 12]);
    paintCells(pen, A, [x, TOP], cell, colour);
    x += Math.max(A[0].length * cell, 12) + GAP;
  }
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

function controls(view, parent) {
  const sliders = make(parent, "div", { class: "sliders" });
  const [family, D] = [() => view.get("family"), () => view.get("dim")];
  view.choice(sliders, {
    symbol: "M",
    text: "family",
    values: FAMILIES,
    get: family,
    set: (value) => view.set({ family: value }),
  });
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
    get: () => Math.log2(Math.min(view.get("blocks"), D())),
    set: (power) => setBlocks(view, power),
    says: () => number(Math.min(view.get("blocks"), D())),
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
}

const setBlocks = (view, power) => view.set({ blocks: Math.min(2 ** clamp(power, 0, MOST), view.get("dim")) });

/** Left and right arrows change p, up and down r. */
function keys(view, canvas) {
  view.arrows(canvas, (dx, dy) => {
    if (dx) setBlocks(view, Math.log2(Math.min(view.get("blocks"), view.get("dim"))) + dx);
    if (dy) view.set({ rank: clamp(view.get("rank") + dy, 1, MAX_RANK) });
  });
}

export default explorer(TRAITS, (view) => {
  let shown;
  view.parts.push(() => (shown = read(view)));
  controls(view, view.root);
  const line = make(make(view.root, "p"), "b");
  view.parts.push(() => {
    const { numbers, D, macs, rank, bound } = shown;
    line.textContent = `${number(numbers)} of ${number(D * D)} numbers, ${number(macs)} multiply-adds, rank ${rank} of at most ${bound}`;
  });
  const parts = make(view.root, "div", { class: "parts" });
  const help = "left and right arrow keys change p, up and down r";
  const canvases = [
    [make(parts, "div"), "The matrix M", (width) => TITLE + matrixCell(shown.D, width) * shown.D, paintMatrix],
    [make(parts, "div"), "Its singular values", () => TITLE + 8 + BARS + 22, paintValues],
    [make(view.root, "div"), "Its factors", (width) => factorHeight(shown, width), paintFactors],
  ];
  for (const [parent, name, height, paint] of canvases) {
    const draw = (pen, width) => paint(pen, shown, width, view);
    keys(view, view.canvas(parent, { label: `${name}; ${help}`, height, paint: draw }));
  }
  make(view.root, "span", { class: "dim" }, "Blue: positive. Orange: negative. Left and right arrow keys: p. Up and down: r.");
  view.describe(view.root, () => describe(shown));
});
