// A recorded run of the SSD forward program: every access to memory, what is on the chip, and what all of it costs.

import { clamp, explorer, label, make, number } from "./base.js";

const TRAITS = ["design", "step"];
// LOAD, STORE and DOT, the kinds of a step, come from kernel_tracer.py.
const [TITLE, GAP, TALL, MARK] = [20, 14, 430, 9]; // pixels: a line of text, between tensors, all of them, a program
const BEAT = 350; // milliseconds of a step while it plays
const FILLS = ["first", "other-0"];

// ---- the recording ------------------------------------------------------------------------------------------------

/** A step by names; see `_trace` in kernel_tracer.py. */
function named([launch, program, kind, what, panel, row, column, height, width, down, across, bytes, macs, chip]) {
  return { launch, program, kind, what, panel, row, column, height, width, down, across, bytes, macs, chip };
}

/** Bytes loaded, bytes stored and multiply-adds of some steps. */
export function totals(steps) {
  const sums = [0, 0, 0];
  for (const { kind, bytes, macs } of steps) sums[kind] += bytes + macs; // one of them is 0
  return { loaded: sums[LOAD], stored: sums[STORE], macs: sums[DOT] };
}

/** Lanes that are not masked and outside of their panel, and where in memory each of them lands: panel, row, column. */
export function strays({ kind, panel, row, column, down, across }, { rows, columns }) {
  if (kind === DOT || (row + down <= rows && column + across <= columns)) return [];
  const lanes = Array.from({ length: down * across }, (_, i) => [row + Math.floor(i / across), column + (i % across)]);
  return lanes.filter(([r, c]) => r >= rows || c >= columns).map(([r, c]) => {
    const line = panel * rows + r + Math.floor(c / columns);
    return { r, c, lands: [Math.floor(line / rows), line % rows, c % columns] };
  });
}

/** The state of the model, and all that follows from it. */
export function read(view) {
  const traces = view.get("_traces");
  const trace = traces.find(({ name }) => name === view.get("design"));
  const steps = trace.steps.map(named);
  const now = clamp(view.get("step"), 0, steps.length);
  const done = steps.slice(0, now);
  const last = done.at(-1);
  const stray = last ? strays(last, trace.operands[last.what] ?? {}) : [];
  const sums = traces.map(({ name, steps }) => ({ name, ...totals(steps.map(named)) }));
  return { ...trace, steps, now, done, last, stray, sums, soFar: totals(done) };
}

/** The indices of a program on the axes of the grid. */
function indices({ launch, program }, { grids }) {
  const [, b, c] = grids[launch];
  return [Math.floor(program / (b * c)), Math.floor(program / c) % b, program % c];
}

const panelName = ({ name, panels }, panel) => (panels === 1 ? name : `${name} [${panel}]`);
const span = (word, from, count) => (count === 1 ? `${word} ${from}` : `${word}s ${from} to ${from + count - 1}`);
const cells = (height, width) => `${height} × ${width}`;
const perByte = ({ loaded, stored, macs }) => (macs ? number(Number((macs / (loaded + stored)).toFixed(2))) : "0");

/** What a screen reader hears, and everyone can read. */
function describe(shown) {
  const { name, now, steps, last, stray, soFar, operands, products, grids, held } = shown;
  if (!last) return `Nothing has happened yet: ${steps.length} steps of “${name}” follow.`;
  const { kind, what, panel, row, column, height, width, down, across, bytes, macs, chip } = last;
  const launches = grids.length > 1 ? `launch ${last.launch + 1} of ${grids.length}, ` : "";
  const says = [`Step ${now} of ${steps.length}: ${launches}program (${indices(last, shown).join(", ")}) `];
  if (kind === DOT) {
    const sizes = `(${cells(panel, row)}) (${cells(row, column)})`;
    says.push(`multiplies on the chip, ${products[what]}: ${sizes}, ${number(macs)} multiply-adds. `);
  } else {
    const [masked, load] = [height * width - down * across, kind === LOAD];
    const lost = stray.filter(({ lands }) => lands[0] >= operands[what].panels).length;
    const place = [span("row", row, down), span("column", column, across)].join(", ");
    says.push(`${load ? "loads" : "stores"} ${place} of ${panelName(operands[what], panel)}: ${number(bytes)} bytes. `);
    if (masked) says.push(`A mask switches off ${masked} of ${height * width} lanes. `);
    if (stray.length) says.push(`It ${load ? "reads" : "writes"} ${stray.length} entries outside, for want of a mask`);
    if (stray.length) says.push(lost ? `, ${lost} of them behind the end of the tensor. ` : ". ");
  }
  if (held[chip].length) says.push(`On the chip: ${held[chip].map(([name]) => name).join(", ")}. `);
  return `${says.join("")}So far ${perByte(soFar)} multiply-adds for each byte.`;
}

// ---- drawing ------------------------------------------------------------------------------------------------------

/** Boxes (wide, high) put into lines of a width, in pixels; returns their places and the height of all. */
function flow(boxes, width, top) {
  let [x, y, tall] = [1, top, 0];
  const places = boxes.map(({ wide, high }) => {
    if (x > 1 && x + wide > width) [x, y, tall] = [1, y + tall + GAP, 0];
    const place = [x, y + TITLE];
    [x, tall] = [x + wide + GAP, Math.max(tall, high + TITLE)];
    return place;
  });
  return { places, bottom: y + tall };
}

/** Where the panels of all tensors stand, below a line of programs for every launch: with cells as large as can be. */
function layOut({ operands, grids, held }, width) {
  const all = (operand, what) => Array.from({ length: operand.panels }, (_, panel) => ({ operand, what, panel }));
  const [panels, top] = [operands.flatMap(all), TITLE + grids.length * MARK + 8];
  const wide = ({ operand, panel }, cell) => Math.max(operand.width * cell, 7 * panelName(operand, panel).length);
  const boxes = (cell) => panels.map((each) => ({ wide: wide(each, cell), high: each.operand.height * cell }));
  const fits = (cell) => flow(boxes(cell), width, top).bottom - top <= TALL;
  const cell = [8, 7, 6, 5, 4].find(fits) ?? Math.min(3, ...operands.map((operand) => (width - 4) / operand.width));
  const { places, bottom } = flow(boxes(cell), width, top);
  const ends = held.map((chip) => flowChip(chip, width, bottom).bottom);
  return { cell, panels, places, bottom, height: Math.max(bottom, ...ends) + 2 };
}

/** The tiles on the chip, drawn to one scale. */
function flowChip(chip, width, top) {
  const boxes = chip.map(([name, rows, columns]) => ({
    wide: Math.max(2 * columns, 7 * Math.max(name.length, cells(rows, columns).length)),
    high: 2 * rows + 14,
  }));
  return flow(boxes, width, top + GAP + TITLE);
}

function rectangle(pen, [x, y, width, height], { fill = "#0000", line = "#0000", thick = 1, dash = [], alpha = 1 }) {
  if (width <= 0 || height <= 0) return;
  Object.assign(pen, { fillStyle: fill, globalAlpha: alpha, strokeStyle: line, lineWidth: thick });
  pen.fillRect(x, y, width, height);
  pen.globalAlpha = 1;
  pen.setLineDash(dash);
  pen.strokeRect(x, y, width, height);
  pen.setLineDash([]);
}

/** A square for every program, a line for every launch. */
function paintPrograms(pen, { last, grids }, width, { colour, font }) {
  Object.assign(pen, { font: font(12, "bold"), fillStyle: colour("ink") });
  label(pen, last ? `Program (${indices(last, { grids }).join(", ")})` : "Programs", [0, 8]);
  for (const [launch, [a, b, c]] of grids.entries()) {
    const mark = Math.min(MARK, width / (a * b * c));
    for (let program = 0; program < a * b * c; program++) {
      const later = last ? launch - last.launch || program - last.program : 1;
      const fill = colour(later > 0 ? "raised" : later < 0 ? "dim" : "first-strong");
      rectangle(pen, [program * mark + 0.5, TITLE + launch * MARK, mark - 3, MARK - 3], { fill, line: colour("dim") });
    }
  }
}

/** A tensor, or one head of it, with what has been touched so far. */
function paintPanel(pen, { operand, what, panel }, [x, y], shown, { cell }, { colour, font }) {
  const { rows, columns } = operand;
  const own = (step) => step.kind !== DOT && step.what === what && step.panel === panel;
  const part = (row, column, down, across) => [x + column * cell, y + row * cell, across * cell, down * cell];
  Object.assign(pen, { font: font(12), fillStyle: colour("ink") });
  label(pen, panelName(operand, panel), [x, y - 9]);
  rectangle(pen, part(0, 0, rows, columns), { fill: colour("raised") });
  const inside = ({ row, column, down, across }) => [Math.min(down, rows - row), Math.min(across, columns - column)];
  for (const step of shown.done.filter(own)) {
    const { kind, row, column, down, across } = step;
    const [[high, wide], outside] = [inside(step), { fill: colour("second-strong"), alpha: 0.45 }];
    rectangle(pen, part(row, column, high, wide), { fill: colour(FILLS[kind]), alpha: 0.45 });
    rectangle(pen, part(row, column + wide, down, across - wide), outside);
    rectangle(pen, part(row + high, column, down - high, wide), outside);
  }
  const border = { line: colour("line") };
  for (const step of shown.steps.filter(own)) rectangle(pen, part(step.row, step.column, ...inside(step)), border);
  rectangle(pen, part(0, 0, rows, columns), { line: colour("dim") });
}

/** The tile of the last step: framed, its masked lanes dashed, and what is wrongly touched in the warning colour. */
function paintTile(pen, shown, { cell, panels, places }, { colour }) {
  const { last, stray } = shown;
  if (!last || last.kind === DOT) return;
  const at = (panel, row, column) => {
    const place = places[panels.findIndex((other) => other.what === last.what && other.panel === panel)];
    return place && [place[0] + column * cell, place[1] + row * cell];
  };
  const [x, y] = at(last.panel, last.row, last.column);
  rectangle(pen, [x, y, last.width * cell, last.height * cell], { line: colour("dim"), thick: 1.5, dash: [3, 3] });
  const look = { fill: colour("first-strong"), alpha: last.kind === LOAD ? 0.35 : 0, line: colour("ink"), thick: 2.5 };
  rectangle(pen, [x, y, last.across * cell, last.down * cell], look);
  for (const { r, c, lands } of stray) {
    for (const place of [at(last.panel, r, c), at(...lands)]) {
      if (place) rectangle(pen, [...place, cell - 0.5, cell - 0.5], { fill: colour("second-strong") });
    }
  }
}

/** The tiles that the program holds; what the last step made or loaded is framed. */
function paintChip(pen, { last, held }, width, { bottom }, { colour, font }) {
  const chip = last ? held[last.chip] : [];
  if (!chip.length) return;
  const bytes = chip.reduce((sum, [, rows, columns]) => sum + 4 * rows * columns, 0);
  Object.assign(pen, { font: font(12, "bold"), fillStyle: colour("ink") });
  label(pen, `On the chip: ${number(bytes)} bytes`, [0, bottom + GAP + 8]);
  const { places } = flowChip(chip, width, bottom);
  for (const [i, [x, y]] of places.entries()) {
    const [name, rows, columns] = chip[i];
    Object.assign(pen, { font: font(12), fillStyle: colour("ink") });
    label(pen, name, [x, y - 9]);
    const fill = colour(name === "H" ? "other-3" : "other-2");
    rectangle(pen, [x, y, 2 * columns, 2 * rows], { fill, line: colour("dim") });
    pen.fillStyle = colour("dim");
    label(pen, cells(rows, columns), [x, y + 2 * rows + 9]);
  }
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

/** The design, the step, and buttons that go through the steps. */
function controls(view, parent, now) {
  const sliders = make(parent, "div", { class: "sliders" });
  const go = (step) => view.set({ step: clamp(step, 0, now().steps.length) });
  const traces = view.get("_traces");
  const most = (design) => traces.find(({ name }) => name === design).steps.length;
  view.choice(sliders, {
    symbol: "Design",
    text: "of the run",
    values: traces.map(({ name }) => name),
    get: () => view.get("design"),
    set: (design) => view.set({ step: Math.min(view.get("step"), most(design)), design }),
  });
  view.parts.push(() => (slider.max = now().steps.length)); // before the slider gets its value
  view.range(sliders, { symbol: "Steps", text: "done", max: 1, get: () => now().now, set: go });
  const slider = sliders.querySelector("input[type=range]");
  const boxes = make(parent, "div", { class: "boxes" });
  const [back, play, on] = ["Back", "Play", "Forward"].map((text) => make(boxes, "button", { type: "button" }, text));
  let timer;
  const stop = () => (timer = clearInterval(timer));
  const walk = (by) => go(now().now + by);
  view.listen(back, "click", () => [stop(), walk(-1)]);
  view.listen(on, "click", () => [stop(), walk(1)]);
  view.listen(play, "click", () => {
    if (!timer && now().now === now().steps.length) go(0);
    timer = timer ? stop() : setInterval(walk, BEAT, 1);
    view.schedule();
  });
  view.leaving.signal.addEventListener("abort", stop);
  view.parts.push(() => {
    if (now().now === now().steps.length) stop();
    play.textContent = timer ? "Pause" : "Play";
  });
  return go;
}

/** Programs, tensors and the chip; arrow keys go through steps and programs. */
function tensorsPart(view, parent, now, go) {
  const canvas = view.canvas(parent, {
    label: "Tensors and their tiles; left and right arrow keys go through steps, up and down keys through programs",
    height: (width) => layOut(now(), width).height,
    paint(pen, width) {
      const place = layOut(now(), width);
      paintPrograms(pen, now(), width, view);
      place.panels.forEach((panel, i) => paintPanel(pen, panel, place.places[i], now(), place, view));
      paintTile(pen, now(), place, view);
      paintChip(pen, now(), width, place, view);
    },
  });
  view.arrows(canvas, (dx, dy) => {
    const { steps, now: t } = now();
    if (dx) return go(t + dx);
    const same = (a, b) => a.launch === b.launch && a.program === b.program;
    const starts = steps.flatMap((step, i) => (i && same(step, steps[i - 1]) ? [] : [i + 1]));
    const [before, after] = [starts.filter((start) => start < t), starts.filter((start) => start > t)];
    go(dy > 0 ? (after[0] ?? steps.length) : (before.at(-1) ?? 0));
  });
  const key = make(parent, "ul", { class: "key" });
  for (const [text, fill] of [["read", "first"], ["written", "other-0"], ["outside, not masked", "second-strong"]]) {
    const item = make(key, "li");
    make(item, "i", { style: `background: var(--${fill})` });
    item.append(text);
  }
  make(key, "li", {}, "dashed: masked");
}

/** Bytes and multiply-adds, so far and of all designs. */
function tablePart(view, parent, now) {
  const table = make(make(parent, "div", { class: "scroll", style: "margin-top: 12px" }), "table");
  make(table, "caption", {}, "Bytes and multiply-adds");
  const head = make(make(table, "thead"), "tr");
  const titles = ["design", "loaded", "stored", "multiply-adds", "for each byte"];
  for (const text of titles) make(head, "th", { scope: "col" }, text);
  const body = make(table, "tbody");
  view.parts.push(() => {
    const { name, sums, soFar } = now();
    body.replaceChildren();
    for (const row of [{ ...soFar, name: "so far" }, ...sums]) {
      const line = make(body, "tr", row.name === name ? { class: "mode" } : {});
      make(line, "th", { scope: "row" }, row.name).style.whiteSpace = "normal";
      for (const value of [row.loaded, row.stored, row.macs].map(number)) make(line, "td", {}, value);
      make(line, "td", {}, perByte(row));
    }
  });
}

export default explorer(TRAITS, (view) => {
  let shown;
  const now = () => shown;
  const again = () => (shown = read(view));
  for (const trait of TRAITS) view.follow(view.model, `change:${trait}`, again); // what is done next starts from here
  view.parts.push(again);
  const go = controls(view, view.root, now);
  tensorsPart(view, make(view.root, "div", { style: "margin-top: 8px" }), now, go);
  view.describe(view.root, () => describe(shown));
  tablePart(view, view.root, now);
});
