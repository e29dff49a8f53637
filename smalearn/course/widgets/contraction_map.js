// The map of the cheapest order of "TN, SN, SP, TS -> TP", and the costs of all orders at one point of it.

import { clamp, explorer, knob, logAxis, make, number, octaves, size, snap, ticks, times, trace, write } from "./base.js";

const TRAITS = { T: "target", S: "source", N: "features", P: "head_dim" };
const TEXTS = { T: "target length", S: "source length", N: "features", P: "head dimension" };
const [QUADRATIC, LINEAR] = [0, 1]; // Python puts the modes first
const FACTORS = [10, 100, 1000];
const SHOWN = 6; // orders in the short table
const POINT = 10; // radius of the point, in pixels
const RIM = 0.3; // octaves by which the map goes on beyond its smallest and largest sizes

// ---- costs --------------------------------------------------------------------------------------------------------

/** The largest of some products of sizes, each written as its axis letters. */
export function largest(products, sizes) {
  let most = 0;
  for (const axes of products) {
    let product = 1;
    for (let i = 0; i < axes.length; i++) product *= sizes[axes[i]];
    if (product > most) most = product;
  }
  return most;
}

/** Multiply-accumulates of the steps of an order. */
export function macs(steps, sizes) {
  let sum = 0;
  for (const products of steps) sum += largest(products, sizes);
  return sum;
}

/** All orders with their costs at one point, sorted as in Python: cheapest first, then by name. */
export function costs(orders, sizes, kind) {
  return orders
    .map((order) => ({ ...order, macs: macs(order[kind], sizes), peakElements: largest(order.peak, sizes) }))
    .sort((a, b) => a.macs - b.macs || (a.name < b.name ? -1 : 1));
}

/** What the steps cost, in letters: "TSN + TS + TSP". */
function formula(steps) {
  const terms = steps.map((products) => (products.length > 1 ? `max(${products.join(", ")})` : products[0]));
  const times = (term) => terms.filter((other) => other === term).length;
  return [...new Set(terms)].map((term) => (times(term) > 1 ? `${times(term)} ${term}` : term)).join(" + ");
}

// ---- the map: one column of it has one T, and N as its height -----------------------------------------------------

/** The cost of each order in one column. No step has N twice, so that a cost is base + slope * N. */
function costLines(orders, sizes, kind) {
  const [zero, one] = [0, 1].map((N) => ({ ...sizes, N }));
  return orders.map((order) => {
    const base = macs(order[kind], zero);
    return { base, slope: macs(order[kind], one) - base };
  });
}

/** The N at which one line is `factor` times another. */
function meet(dear, cheap, factor = 1) {
  return (factor * cheap.base - dear.base) / (dear.slope - factor * cheap.slope);
}

/** The cheapest orders in a column as N grows from 1: [{ order, from }], a lower envelope. Of equals the first wins. */
export function envelope(lines) {
  const less = (a, b) => a < b && a < b * (1 - 1e-9); // sizes between the integers are rounded
  const flatter = (a, b) => less(lines[a].slope, lines[b].slope);
  const first = lines.map(({ base, slope }) => base + slope);
  let [order, from] = [0, 1];
  for (const other of lines.keys()) {
    if (less(first[other], first[order]) || (!less(first[order], first[other]) && flatter(other, order))) order = other;
  }
  const parts = [];
  while (from < Infinity) {
    parts.push({ order, from });
    let [next, until] = [order, Infinity];
    for (const other of lines.keys()) {
      if (!flatter(other, order)) continue;
      const N = meet(lines[order], lines[other]);
      if (less(N, until) || (!less(until, N) && flatter(other, next))) [next, until] = [other, N];
    }
    [order, from] = [next, until];
  }
  return parts;
}

/** One column for each pixel: x, whether on the rim, its cost lines, and spans { order, bottom, top } in pixels. */
function survey(orders, sizes, kind, across, up) {
  const columns = [];
  for (let x = across.low; x < across.high; x++) {
    const T = across.size(x + 0.5);
    const lines = costLines(orders, { ...sizes, T, S: sizes.S ?? T }, kind);
    const parts = envelope(lines);
    const edges = [up.low, ...parts.slice(1).map(({ from }) => up.place(from)), -Infinity];
    const rim = T === 1 || T === across.limit;
    const spans = parts.map(({ order }, i) => ({ order, bottom: edges[i], top: edges[i + 1] }));
    columns.push({ x, rim, lines, spans });
  }
  return columns;
}

/** Pixels of each order: { order, area, x, y }, the largest first, with the centre. */
function regions(columns, up) {
  const byOrder = new Map();
  for (const { x, spans } of columns) {
    for (const { order, bottom, top } of spans) {
      const [low, high] = [Math.min(bottom, up.low), Math.max(top, up.high)];
      if (low - high < 1) continue;
      const region = byOrder.get(order) ?? { order, area: 0, x: 0, y: 0 };
      region.area += low - high;
      region.x += (low - high) * (x + 0.5);
      region.y += ((low - high) * (low + high)) / 2;
      byOrder.set(order, region);
    }
  }
  const centred = [...byOrder.values()].map(({ order, area, x, y }) => ({ order, area, x: x / area, y: y / area }));
  return centred.sort((a, b) => b.area - a.area);
}

/** Where in its region a box of this size fits, off the point if possible, nearest to the centre; or undefined. */
function roomFor({ order, x, y }, { columns, across, up, sizes }, width, height) {
  const point = { x: across.place(sizes.T), y: up.place(sizes.N) };
  const [aside, apart] = [width / 2 + POINT, height / 2 + POINT];
  const span = (i) => columns[i]?.spans.find((span) => span.order === order) ?? { bottom: -Infinity, top: Infinity };
  const places = [];
  for (let i = 0; i + width < columns.length; i += 4) {
    const among = [i, i + width / 4, i + width / 2, i + (3 * width) / 4, i + width].map((i) => span(Math.round(i)));
    const top = Math.max(up.high, ...among.map((span) => span.top));
    const bottom = Math.min(up.low, ...among.map((span) => span.bottom));
    if (bottom - top < height) continue;
    const middle = columns[0].x + i + width / 2;
    for (const target of [y, point.y - apart, point.y + apart]) {
      const place = { x: middle, y: clamp(target, top + height / 2, bottom - height / 2) };
      const covered = Math.abs(place.x - point.x) < aside && Math.abs(place.y - point.y) < apart;
      places.push({ ...place, covered, far: Math.hypot(place.x - x, place.y - y) });
    }
  }
  return places.sort((a, b) => a.covered - b.covered || a.far - b.far)[0];
}

/** The N of each column at which the dear mode costs `factor` times the cheap one, as points; none on the rim. */
function contour(columns, dear, cheap, factor, up) {
  return columns.map(({ x, rim, lines }) => {
    const N = meet(lines[dear], lines[cheap], factor);
    return [x + 0.5, rim || N < 1 ? NaN : up.place(N)];
  });
}

/** Where the cheapest order changes from one mode to the other, as points; none on the rim. */
function crossover(columns) {
  const modes = (a, b) => a && b && a.order !== b.order && Math.max(a.order, b.order) <= LINEAR;
  return columns.map(({ x, rim, spans }) => {
    const change = spans.find((span, i) => modes(span, spans[i + 1]));
    return [x + 0.5, change && !rim ? change.top : NaN];
  });
}

// ---- drawing ------------------------------------------------------------------------------------------------------

function fillOf(order) {
  return order === QUADRATIC ? "first" : order === LINEAR ? "second" : `other-${order % 4}`;
}

function paintGround(pen, { columns, up }, { colour }) {
  const fills = columns[0].lines.map((_, order) => colour(fillOf(order)));
  for (const { x, spans } of columns) {
    for (const { order, bottom, top } of spans) {
      const [low, high] = [Math.min(bottom, up.low), Math.max(top, up.high)];
      pen.fillStyle = fills[order];
      if (low > high) pen.fillRect(x, high, 1.5, low - high); // the next column covers the half pixel: no seams
    }
  }
}

function paintContours(pen, { columns, across, up }, { colour, font }) {
  const style = { ink: colour("ink"), halo: colour("paper") };
  const pairs = [[QUADRATIC, LINEAR], [LINEAR, QUADRATIC]];
  const labels = [];
  pen.setLineDash([5, 4]);
  for (const [factor, dear, cheap] of FACTORS.flatMap((factor) => pairs.map((pair) => [factor, ...pair]))) {
    const points = contour(columns, dear, cheap, factor, up);
    Object.assign(pen, { strokeStyle: style.ink, lineWidth: 1 });
    trace(pen, points);
    const inside = points.filter(([x, y]) => y > up.high + 10 && y < up.low - 10 && x < across.high - 24);
    const [highest] = inside.sort((a, b) => a[1] - b[1]);
    if (highest) labels.push([`${number(factor)}×`, highest]);
  }
  pen.setLineDash([]);
  for (const [width, ink] of [[6, style.halo], [3, style.ink]]) {
    Object.assign(pen, { strokeStyle: ink, lineWidth: width });
    trace(pen, crossover(columns));
  }
  pen.font = font(12);
  for (const [text, [x, y]] of labels) write(pen, text, [Math.max(x, across.low + 18), y], style);
}

function paintNames(pen, map, { colour, font }) {
  const { orders, areas } = map;
  map.unnamed = [];
  pen.font = font(13, "bold");
  for (const region of areas) {
    const { name, mode } = orders[region.order];
    const lines = mode ? [name, mode] : [name];
    const width = Math.max(...lines.map((text) => pen.measureText(text).width)) + 12;
    const place = roomFor(region, map, width, 17 * lines.length + 8);
    if (!place) {
      map.unnamed.push(region);
      continue;
    }
    const style = { ink: colour("ink"), halo: colour(fillOf(region.order)) };
    lines.forEach((text, i) => write(pen, text, [place.x, place.y + 17 * (i - (lines.length - 1) / 2)], style));
  }
}

function paintAxes(pen, { across, up, limits }, { colour, font }) {
  const [width, height] = [across.high - across.low, up.low - up.high];
  Object.assign(pen, { fillStyle: colour("ink"), strokeStyle: colour("dim"), lineWidth: 1, font: font(12) });
  Object.assign(pen, { textBaseline: "middle", textAlign: "center" });
  pen.strokeRect(across.low - 0.5, up.high - 0.5, width + 1, height + 1);
  for (const T of ticks(limits.T, width, 40)) pen.fillText(size(T), across.place(T), up.low + 11);
  pen.fillText(`T, ${TEXTS.T}`, across.low + width / 2, up.low + 28);
  pen.save();
  pen.translate(8, up.high + height / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(`N, ${TEXTS.N}`, 0, 0);
  pen.restore();
  pen.textAlign = "right";
  for (const N of ticks(limits.N, height, 16)) pen.fillText(N, across.low - 6, up.place(N));
}

function paintPoint(pen, { across, up, sizes }, view, hot) {
  const { colour } = view;
  const [x, y] = [across.place(sizes.T), up.place(sizes.N)];
  Object.assign(pen, { strokeStyle: colour("ink"), lineWidth: 1, globalAlpha: 0.5 });
  trace(pen, [[x, up.low], [x, y], [across.low, y]]);
  pen.globalAlpha = 1;
  knob(pen, [x, y], hot, view);
}

function paint(pen, map, view, hot) {
  const { across, up } = map;
  pen.save();
  pen.beginPath();
  pen.rect(across.low, up.high, across.high - across.low, up.low - up.high);
  pen.clip();
  for (const layer of [paintGround, paintContours, paintNames]) layer(pen, map, view);
  pen.restore();
  paintAxes(pen, map, view);
  paintPoint(pen, map, view, hot);
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

/** What a view shows: the state of its model. */
function read(view) {
  const [T, source, N, P] = Object.values(TRAITS).map((trait) => view.get(trait));
  const kind = view.get("scan") ? "scan" : "dense";
  const [orders, limits] = [view.get("_orders"), view.get("_limits")];
  return { orders, limits, kind, tied: source === null, sizes: { T, S: source ?? T, N, P } };
}

/** The map at the current P, and at the current S where it is not tied to T, laid out for a canvas of this size. */
function layOut(state, width, height) {
  const { orders, limits, kind, tied, sizes } = state;
  const across = logAxis(limits.T, 44, Math.max(width - 16, 100), RIM);
  const up = logAxis(limits.N, height - 38, 4, RIM);
  const columns = survey(orders, { P: sizes.P, S: tied ? undefined : sizes.S }, kind, across, up);
  return { ...state, across, up, columns, areas: regions(columns, up) };
}

/** The T from which on the modes have changed places, and the mode that is cheaper then; found by halving. */
function turn({ orders, limits, kind, tied, sizes }) {
  const linearWins = (T) => {
    const at = { ...sizes, T, S: tied ? T : sizes.S };
    return macs(orders[LINEAR][kind], at) < macs(orders[QUADRATIC][kind], at);
  };
  let [low, high] = [1, limits.T];
  const [first, last] = [linearWins(low), linearWins(high)];
  while (first !== last && high - low > 1) {
    const middle = (low + high) >> 1;
    if (linearWins(middle) === first) low = middle;
    else high = middle;
  }
  return { from: first === last ? 1 : high, cheaper: orders[last ? LINEAR : QUADRATIC] };
}

function words(map) {
  const { orders, sizes, kind, areas } = map;
  const call = ({ name, mode }) => mode || name;
  const modesFirst = (a, b) => a.macs - b.macs || (b.mode > a.mode) - (a.mode > b.mode);
  const [best, ...others] = costs(orders, sizes, kind).sort(modesFirst);
  const equals = others.filter((row) => row.macs === best.macs);
  const rivals = others.filter((row) => row.mode && row.macs > best.macs);
  const { from, cheaper } = turn(map);
  const all = areas.reduce((sum, { area }) => sum + area, 0);
  const shares = areas.map(({ order, area }) => [orders[order], Math.round((100 * area) / all)]);
  const is = (axis, size) => `${axis}\u00a0=\u00a0${number(size)}`;
  return [
    `At ${Object.entries(sizes).map((entry) => is(...entry)).join(", ")}, with L as a `,
    `${kind === "scan" ? "running sum" : "dense matrix"}, ${call(best)} is cheapest`,
    equals.length ? `, together with ${equals.map(call).join(", ")}` : "",
    `: ${number(best.macs)} MACs`,
    ...rivals.map((row) => `; ${call(row)} takes ${times(row.macs / best.macs)} times as many`),
    `. Of the two, ${call(cheaper)} is the cheaper one ${from > 1 ? `from ${is("T", from)} on` : "at every T"}. `,
    `On the map, at ${is("P", sizes.P)}, `,
    shares.filter(([, share]) => share).map(([order, share]) => `${call(order)} wins ${share}\u00a0%`).join(", "),
    ".",
  ].join("");
}

const TITLES = {
  scan: "With a running sum for the mask, the linear order wins on long texts",
  dense: "While the mask is a dense matrix, the linear order hardly ever wins",
};

/** The read-out: which order is cheapest at the point, and by how much. */
function headline({ orders, sizes, kind }) {
  const [best] = costs(orders, sizes, kind);
  const [quadratic, linear] = orders.map((order) => macs(order[kind], sizes));
  const [cheap, dear] = quadratic <= linear ? [QUADRATIC, LINEAR] : [LINEAR, QUADRATIC];
  const ratio = times(Math.max(quadratic, linear) / Math.min(quadratic, linear));
  const first = orders[cheap].mode.replace(/^./, (letter) => letter.toUpperCase());
  const modes = `${first} takes ${ratio} times fewer multiply-adds than ${orders[dear].mode}`;
  if (quadratic === linear) return "Quadratic (13) and linear (15) cost the same here";
  return best.macs < Math.min(quadratic, linear) ? `${modes}; ${best.name} fewer still` : modes;
}

function controls(view, parent) {
  const state = () => read(view);
  const [sliders, boxes] = [make(parent, "div", { class: "sliders" }), make(parent, "div", { class: "boxes" })];
  for (const [symbol, trait] of Object.entries(TRAITS)) {
    view.slider(sliders, {
      symbol,
      text: TEXTS[symbol],
      values: octaves(state().limits[symbol]),
      get: () => state().sizes[symbol],
      set: (size) => view.set({ [trait]: size }),
      enabled: () => symbol !== "S" || !state().tied,
    });
  }
  const power = { at: () => Math.round(Math.log2(state().sizes.T)), to: () => Math.log2(state().limits.T) };
  view.player(boxes, { text: "Play T", ...power, set: (at) => view.set({ target: 2 ** at }), every: 400 });
  view.checkbox(boxes, {
    text: "S = T, as many sources as targets",
    get: () => state().tied,
    set: (tied) => view.set({ source: tied ? null : view.get("target") }),
  });
  view.checkbox(boxes, {
    text: "multiply by L with a running sum",
    get: () => view.get("scan"),
    set: (scan) => view.set({ scan }),
  });
}

/** An order's colour and its name. */
function swatch(parent, order, text) {
  make(parent, "i", { class: fillOf(order) });
  parent.append(text);
}

/** The canvas with the point on it, the key to its lines and colours, and all of it in words. */
function mapPart(view, parent) {
  let [map, canvas] = [];
  canvas = view.canvas(parent, {
    label: "Map of the cheapest order over T and N; left and right arrow keys change T, up and down keys change N",
    height: (width) => clamp(0.72 * width, 250, 380),
    paint(pen, width, height) {
      map = layOut(read(view), width, height);
      paint(pen, map, view, canvas?.hot);
    },
  });
  const { limits } = read(view);
  const steps = { T: octaves(limits.T), N: octaves(limits.N) };
  view.drag(canvas, {
    near: (x, y) => Math.hypot(x - map.across.place(map.sizes.T), y - map.up.place(map.sizes.N)) < 24,
    move: (x, y) => view.set({ target: snap(steps.T, map.across.size(x)), features: snap(steps.N, map.up.size(y)) }),
  });
  view.arrows(canvas, (dx, dy) => {
    const { T, N } = read(view).sizes;
    view.set(dx ? { target: snap(steps.T, T, dx) } : { features: snap(steps.N, N, dy) });
  });
  const lines = "Thick line: (13) and (15) cost the same. Dashed: one costs 10, 100, 1,000 times the other.";
  make(parent, "span", { class: "dim" }, lines);
  const key = make(parent, "ul", { class: "key" });
  view.parts.push(() => {
    key.replaceChildren();
    for (const { order } of map?.unnamed ?? []) {
      swatch(make(key, "li"), order, [map.orders[order].name, map.orders[order].mode].join(" "));
    }
  });
  view.describe(parent, () => (map ? words(map) : ""));
}

/** The costs at the point: the cheapest orders and both modes, or all 15. */
function tablePart(view, parent) {
  const table = make(make(parent, "div", { class: "scroll" }), "table");
  make(table, "caption", {}, "Costs at the point");
  const head = make(make(table, "thead"), "tr");
  for (const text of ["order", "MACs", "× best", "peak elements"]) make(head, "th", { scope: "col" }, text);
  const body = make(table, "tbody");
  const button = make(parent, "button", { type: "button" });
  let all = false;
  view.listen(button, "click", () => {
    all = !all;
    view.schedule();
  });
  view.parts.push(() => {
    const { orders, sizes, kind } = read(view);
    const rows = costs(orders, sizes, kind);
    const order = ({ name }) => orders.findIndex((other) => other.name === name);
    body.replaceChildren();
    for (const row of rows.filter((row, rank) => all || rank < SHOWN || row.mode)) {
      const line = make(body, "tr", row.mode ? { class: "mode" } : {});
      const name = make(line, "th", { scope: "row" }, row.name);
      if (row.mode) swatch(make(name, "span", { class: "dim" }), order(row), row.mode);
      make(make(line, "td", {}, number(row.macs)), "span", { class: "dim" }, formula(row[kind]));
      make(line, "td", {}, times(row.macs / rows[0].macs));
      const peak = row.peak.find((axes) => largest([axes], sizes) === row.peakElements);
      make(make(line, "td", {}, number(row.peakElements)), "span", { class: "dim" }, peak);
    }
    button.setAttribute("aria-expanded", all);
    button.textContent = all ? "Show the cheapest alone" : `Show all ${orders.length} orders`;
  });
}

export default explorer([...Object.values(TRAITS), "scan"], (view) => {
  view.head({
    title: () => TITLES[read(view).kind],
    headline: () => headline(read(view)),
    hint: "Drag the point. A colour is the order that is cheapest there.",
  });
  controls(view, view.root);
  const parts = make(view.root, "div", { class: "parts" });
  mapPart(view, make(parts, "div"));
  tablePart(view, make(parts, "div"));
  const up = [1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1];
  const steps = octaves(read(view).limits.T);
  view.nudge(() => up.map((further) => ({ target: snap(steps, read(view).sizes.T, further) })));
});
