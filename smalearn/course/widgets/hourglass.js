// A block of a matrix as threads from the words before a cut to those after it: through a waist of N numbers, or none.

import { clamp, dot, knob, label, make, pointOn, trace, widthOf, write } from "./base.js";

// WORDS comes from block_explorer.py.
const [SIDE, LINE, STRAND, THROAT] = [80, 14, 9, 26]; // pixels: a column of words, a row, between strands, half of one
const [HEAD, FOOT, GRIP] = [28, 28, 20]; // above and below the glass, around the knob

/** What each input up to step m writes into the state after it, and what each output reads there: rows of N numbers. */
export function throughState({ A, B, C, act }, [top, bottom, left], m, N) {
  const write = B.slice(left, m + 1).map((b, i) => A.slice(left + i + 1, m + 1).reduce((h, a) => act(a, h), b));
  let axes = Array.from({ length: N }, (_, n) => Array.from({ length: N }, (_, i) => Number(i === n)));
  const read = [];
  for (let t = Math.min(top, m); t < bottom; t++) {
    if (t > m) axes = axes.map((h) => act(A[t], h));
    if (t >= top) read.push(t < m ? [] : axes.map((h) => dot(C[t], h)));
  }
  return { write, read };
}

/** A word whose threads are lit: those of the past are counted first. */
export function told({ block: [top, , left], part: [row] }, lit) {
  const place = lit < row.length ? left + lit : top + lit - row.length;
  return `Lit: all that “${WORDS[place]}” (word ${place + 1}) ${lit < row.length ? "tells" : "hears"}. `;
}

/** Where the two columns of words are, and the waist: as far to the right as the cut is in the text. */
function layOut({ T, part, cutting }, width, high) {
  const [x0, x1, y0, y1] = [SIDE, width - SIDE, HEAD, high - FOOT];
  const rows = ({ length }) => Array.from({ length }, (_, i) => y0 + ((i + 0.5) * (y1 - y0)) / length);
  const [start, step] = [x0 + 0.28 * (x1 - x0), (0.44 * (x1 - x0)) / T];
  const waist = start + step * cutting;
  const handle = [waist, y1 + FOOT / 2];
  return { x0, x1, y0, y1, start, step, waist, handle, past: rows(part[0]), future: rows(part) };
}

/** An hourglass around so many strands; a box where there are none. */
function paintGlass(pen, { x0, x1, y0, y1, waist }, strands) {
  const [middle, full] = [(y0 + y1) / 2, (y1 - y0) / 2];
  const throat = strands ? Math.min((strands * STRAND) / 2 + 5, full) : full;
  const edge = Array.from({ length: 65 }, (_, i) => {
    const x = x0 + ((x1 - x0) * i) / 64;
    const share = clamp((Math.abs(x - waist) - THROAT) / (Math.abs((x < waist ? x0 : x1) - waist) - THROAT), 0, 1);
    return [x, throat + (full - throat) * share ** 2 * (3 - 2 * share)];
  });
  pen.beginPath();
  for (const [x, half] of edge) pen.lineTo(x, middle - half);
  for (const [x, half] of edge.reverse()) pen.lineTo(x, middle + half);
  pen.fill();
}

/** Threads into the waist, out of it, and beside it: number, from, to, whether lit; of a lit word, its part of M. */
function threads({ flow, part }, { x0, x1, waist, past, future }, strand, lit) {
  const [of, to] = [lit < past.length ? lit : undefined, lit >= past.length ? lit - past.length : undefined];
  const share = (rows, i, n) => (i === undefined ? 1 : (rows[i]?.[n] ?? 0));
  const seen = (only, i) => only === undefined || only === i;
  const from = (s) => [x0, past[s]];
  const end = (t) => [x1, future[t]];
  const enter = (n) => [waist - THROAT, strand(n)];
  const leave = (n) => [waist + THROAT, strand(n)];
  return [
    flow.write.flatMap((h, s) => h.map((x, n) => [x * share(flow.read, to, n), from(s), enter(n), seen(of, s)])),
    flow.read.flatMap((c, t) => c.map((x, n) => [x * share(flow.write, of, n), leave(n), end(t), seen(to, t)])),
    part.flatMap((row, t) =>
      row.map((x, s) => [s < flow.write.length ? 0 : x, from(s), end(t), seen(of, s) && seen(to, t)]),
    ),
  ];
}

/** A group of threads, the stronger the larger their numbers; negative ones are dashed. */
function paintThreads(pen, group, { colour }) {
  const most = Math.max(...group.map(([value]) => Math.abs(value)));
  for (const [value, [x, y], [toX, toY], lit] of group) {
    if (!value) continue;
    const [share, third] = [Math.sqrt(Math.abs(value) / most), (toX - x) / 3];
    pen.strokeStyle = colour(value < 0 ? "second-strong" : "first-strong");
    pen.lineWidth = 0.5 + 2 * share;
    pen.globalAlpha = (0.12 + 0.88 * share) * (lit ? 1 : 0.1);
    pen.setLineDash(value < 0 ? [8, 3] : []);
    pen.beginPath();
    pen.moveTo(x, y);
    pen.bezierCurveTo(x + third, y, toX - third, toY, toX, toY);
    pen.stroke();
  }
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

/** A column of words, as many as have room; the one that is lit always. */
function paintWords(pen, words, places, { x, align, own }, { colour, font }) {
  const every = Math.ceil((LINE * (places.length - 1)) / (places.at(-1) - places[0])) || 1;
  for (const [i, word] of words.entries()) {
    if (i !== own && (i % every || Math.abs(i - own) < every)) continue;
    Object.assign(pen, { font: font(12, i === own ? "bold" : "normal"), fillStyle: colour(i === own ? "ink" : "dim") });
    label(pen, word, [x, places[i]], { align, room: SIDE - 8 });
  }
}

function paint(pen, now, place, lit, hot, view) {
  const [{ N, block: [top, bottom, left, right] }, { x0, x1, y0, y1, waist, handle, past, future }] = [now, place];
  const [{ colour, font }, strands] = [view, now.kind === "softmax" ? 0 : N];
  const strand = (n) => (y0 + y1) / 2 + (n - (N - 1) / 2) * STRAND;
  pen.fillStyle = colour("raised");
  paintGlass(pen, place, strands);
  for (const group of threads(now, place, strand, lit)) paintThreads(pen, group, view);
  Object.assign(pen, { strokeStyle: colour("dim"), lineWidth: 1, font: font(12, "bold") });
  pen.setLineDash([2, 4]);
  trace(pen, [[waist, y0], handle]);
  pen.setLineDash([]);
  Object.assign(pen, { strokeStyle: colour("ink"), lineWidth: 5, lineCap: "round" });
  for (let n = 0; n < strands; n++) trace(pen, [[waist - THROAT, strand(n)], [waist + THROAT, strand(n)]]);
  const says = strands ? `${N} number${N === 1 ? "" : "s"}` : "no waist";
  write(pen, says, [waist, strands ? strand(N) + 8 : y0 - 10], { ink: colour("ink"), halo: colour("paper") });
  label(pen, "past", [x0 - 6, 8], { align: "right" });
  label(pen, "future", [x1 + 6, 8]);
  label(pen, "cut", [handle[0] + 15, handle[1]]);
  paintWords(pen, WORDS.slice(left, right), past, { x: x0 - 6, align: "right", own: lit }, view);
  paintWords(pen, WORDS.slice(top, bottom), future, { x: x1 + 6, align: "left", own: lit - past.length }, view);
  knob(pen, handle, hot, view);
}

/** The picture: its cut is dragged, or called by a click; a word is lit by pointing, or a click. Returns which is. */
export function hourglass(view, parent, { now, height, put }) {
  let [canvas, moves] = [];
  const count = () => now().part.length + now().part[0].length;
  const lit = () => {
    const word = view.hover ?? view.lit;
    return word < count() ? word : undefined; // the text may have become shorter
  };
  canvas = view.canvas(parent, {
    label: "Threads from past to future; left and right arrow keys move the cut, up and down keys light a word",
    height,
    paint: (pen, width, high) => paint(pen, now(), layOut(now(), width, high), lit(), canvas?.hot, view),
  });
  const place = () => layOut(now(), widthOf(canvas), Math.round(height(widthOf(canvas))));
  const look = (hover) => view.schedule((view.hover = hover));
  const near = (x, y) => Math.hypot(x - place().handle[0], y - place().handle[1]) < GRIP;
  const word = (x, y) => {
    const { x0, x1, y0, y1, past, future } = place();
    const [before, { length }] = x < x0 ? [0, past] : [past.length, future];
    return x > x0 && x < x1 ? undefined : before + clamp(Math.floor(((y - y0) / (y1 - y0)) * length), 0, length - 1);
  };
  view.pointed(canvas, word, look);
  view.listen(canvas, "pointerdown", (event) => (moves = word(...pointOn(canvas, event)) === undefined));
  view.drag(canvas, {
    near,
    cursor: (x, y) => (near(x, y) ? "grab" : word(x, y) === undefined ? "ew-resize" : "pointer"),
    move(x, y) {
      if (!(moves ?? word(x, y) === undefined)) return look((view.lit = word(x, y)));
      view.lit = undefined;
      put(Math.round((x - place().start) / place().step));
    },
  });
  view.arrows(canvas, (dx, dy) => {
    if (dx) put(now().block[0] + dx);
    else look((view.lit = clamp((lit() ?? -1) - dy, 0, count() - 1)));
  });
  return lit;
}
