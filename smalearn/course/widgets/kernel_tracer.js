// Recorded runs of programs: every access to memory, what is on the chip, and what all of it costs.

import { clamp, explorer, label, make, number } from "./base.js";

const TRAITS = ["design", "step"];
// LOAD, STORE and DOT, the kinds of a step, come from kernel_tracer.py.
const [TITLE, GAP, TALL, MARK] = [20, 14, 290, 9]; // pixels: a line of text, between tensors, all of them, a program
const [LEAST, WIDE, BAR] = [16, 640, 7]; // pixels: of a tile, of two lanes beside each other, of the bar of bytes
const BEATS = { slowly: 900, steadily: 350, fast: 100 }; // milliseconds of a step while it plays
const FILLS = ["first", "other-0"];
const HELP = "Play with ▶ or the space bar; in the picture, ← and → take one access, ↑ and ↓ a whole program.";

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

/** One run as far as it has come. */
function lane(trace, step) {
  const steps = trace.steps.map(named);
  const now = clamp(step, 0, steps.length);
  const done = steps.slice(0, now);
  const last = done.at(-1);
  const stray = last ? strays(last, trace.operands[last.what] ?? {}) : [];
  return { ...trace, steps, now, done, last, stray, soFar: totals(done), whole: totals(steps) };
}

/** The state of the model, and all that follows from it: one lane, or in a race all. */
export function read(view) {
  const [traces, race, step] = ["_traces", "_race", "step"].map((name) => view.get(name));
  const chosen = traces.find(({ name }) => name === view.get("design"));
  const lanes = (race ? traces : [chosen]).map((trace) => lane(trace, step));
  const most = Math.max(...lanes.map(({ steps }) => steps.length));
  const sums = traces.map(({ name, steps }) => ({ name, ...totals(steps.map(named)) }));
  return { ...lane(chosen, step), lanes, most, sums, race, fails: view.get("_fails") };
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

const moved = ({ loaded, stored }) => number(loaded + stored);

/** The title, a sentence. */
function headline({ race, lanes, now, steps, name, soFar }) {
  const ended = (one) => (one.now === one.steps.length ? "is done after" : "has moved");
  if (race) return `${lanes.map((one) => `“${one.name}” ${ended(one)} ${moved(one.soFar)} bytes`).join("; ")}.`;
  return `“${name}” has moved ${moved(soFar)} bytes in ${now} of ${steps.length} steps.`;
}

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
  if (shown.fails && now === steps.length) says.push(`Here it ends: ${shown.fails}. `);
  return `${says.join("")}So far ${perByte(soFar)} multiply-adds for each byte.`;
}

// ---- drawing ------------------------------------------------------------------------------------------------------

/** Boxes (wide, high) put into lines of a width, in pixels; returns their places and the height of all. */
function flow(boxes, [left, width], top) {
  let [x, y, tall] = [1, top, 0];
  const places = boxes.map(({ wide, high }) => {
    if (x > 1 && x + wide > width) [x, y, tall] = [1, y + tall + GAP, 0];
    const place = [left + x, y + TITLE];
    [x, tall] = [x + wide + GAP, Math.max(tall, high + TITLE)];
    return place;
  });
  return { places, bottom: y + tall };
}

/** Pixels of a tensor's cell: a tensor of one column is wide enough to be seen. */
const cellOf = ({ width, height }, cell) => [Math.max(cell, LEAST / width), Math.max(cell, LEAST / height)];

/** Where everything of a lane stands: its programs, the panels of all tensors, the chip. */
function layOut(one, span) {
  const { operands, grids, held } = one;
  const all = (operand, what) => Array.from({ length: operand.panels }, (_, panel) => ({ operand, what, panel }));
  const panels = operands.flatMap(all);
  const top = 2 * TITLE + BAR + grids.length * MARK + 8;
  const box = ({ operand, panel }, cell) => {
    const [across, down] = cellOf(operand, cell);
    return { wide: Math.max(operand.width * across, 7 * panelName(operand, panel).length), high: operand.height * down };
  };
  const placed = (cell) => flow(panels.map((panel) => box(panel, cell)), span, top);
  const fits = (cell) => placed(cell).bottom - top <= TALL;
  const cell = [8, 7, 6, 5, 4, 3].find(fits) ?? Math.min(2, ...operands.map(({ width }) => (span[1] - 4) / width));
  const { places, bottom } = placed(cell);
  const ends = held.map((chip) => flowChip(chip, span, bottom).bottom);
  return { span, cell, panels, places, bottom, height: Math.max(bottom, ...ends) + 8 };
}

/** Lanes beside each other where there is room, else one below the other. */
function layOutAll({ lanes }, width) {
  const beside = lanes.length > 1 && width >= WIDE;
  const each = beside ? (width - 28) / lanes.length : width;
  const places = lanes.map((one, i) => layOut(one, [beside ? i * (each + 28) : 0, each]));
  let top = 0;
  const tops = places.map(({ height }) => (beside ? 0 : (top += height) - height));
  return { places, tops, height: beside ? Math.max(...places.map(({ height }) => height)) : top };
}

/** The tiles on the chip, drawn to one scale. */
function flowChip(chip, [left, width], top) {
  const boxes = chip.map(([name, rows, columns]) => ({
    wide: Math.max(2 * columns, LEAST, 6.5 * Math.max(name.length, cells(rows, columns).length)),
    high: Math.max(2 * rows, LEAST) + 14,
  }));
  return flow(boxes, [left + 6, width - 12], top + GAP + TITLE);
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

/** Name of the lane, a bar of the bytes it has moved, and a square for every program, a line for every launch. */
function paintHead(pen, one, { span: [left, width] }, most, { colour, font }) {
  const { name, now, steps, last, grids, soFar } = one;
  const bytes = soFar.loaded + soFar.stored;
  Object.assign(pen, { font: font(14, "bold"), fillStyle: colour("ink") });
  label(pen, `${name}${now === steps.length ? ", done" : ""}`, [left, 9], { room: width });
  rectangle(pen, [left + 0.5, TITLE + 0.5, width - 2, BAR], { line: colour("line"), fill: colour("raised") });
  rectangle(pen, [left + 0.5, TITLE + 0.5, ((width - 2) * bytes) / most, BAR], { fill: colour("first-strong") });
  Object.assign(pen, { font: font(12), fillStyle: colour("ink") });
  label(pen, last ? `program (${indices(last, one).join(", ")})` : "programs", [left, TITLE + BAR + 12]);
  for (const [launch, [a, b, c]] of grids.entries()) {
    const mark = Math.min(MARK, width / (a * b * c));
    for (let program = 0; program < a * b * c; program++) {
      const later = last ? launch - last.launch || program - last.program : 1;
      const fill = colour(later > 0 ? "raised" : later < 0 ? "dim" : "first-strong");
      const corner = [left + program * mark + 0.5, 2 * TITLE + BAR + launch * MARK];
      rectangle(pen, [...corner, mark - 3, MARK - 3], { fill, line: colour("dim") });
    }
  }
}

/** A tensor, or one head of it, with what has been touched so far. */
function paintPanel(pen, { operand, what, panel }, [x, y], one, { cell }, { colour, font }) {
  const { rows, columns } = operand;
  const [right, below] = cellOf(operand, cell);
  const own = (step) => step.kind !== DOT && step.what === what && step.panel === panel;
  const part = (row, column, down, across) => [x + column * right, y + row * below, across * right, down * below];
  Object.assign(pen, { font: font(12), fillStyle: colour("ink") });
  label(pen, panelName(operand, panel), [x, y - 9]);
  rectangle(pen, part(0, 0, rows, columns), { fill: colour("raised") });
  const inside = ({ row, column, down, across }) => [Math.min(down, rows - row), Math.min(across, columns - column)];
  for (const step of one.done.filter(own)) {
    const { kind, row, column, down, across } = step;
    const [[high, wide], outside] = [inside(step), { fill: colour("second-strong"), alpha: 0.45 }];
    rectangle(pen, part(row, column, high, wide), { fill: colour(FILLS[kind]), alpha: 0.45 });
    rectangle(pen, part(row, column + wide, down, across - wide), outside);
    rectangle(pen, part(row + high, column, down - high, wide), outside);
  }
  const border = { line: colour("line") };
  for (const step of one.steps.filter(own)) rectangle(pen, part(step.row, step.column, ...inside(step)), border);
  rectangle(pen, part(0, 0, rows, columns), { line: colour("dim") });
}

/** Where a tile of a panel lies, and the size of its cells. */
function whereIs(one, { cell, panels, places }, [panel, row, column]) {
  const place = places[panels.findIndex((other) => other.what === one.last.what && other.panel === panel)];
  const [right, below] = cellOf(one.operands[one.last.what], cell);
  return place && [place[0] + column * right, place[1] + row * below, right, below];
}

/** The tile of the last step: framed, its masked lanes dashed, and what is wrongly touched in the warning colour. */
function paintTile(pen, one, layout, { colour }) {
  const { last, stray } = one;
  if (!last || last.kind === DOT) return;
  const [x, y, right, below] = whereIs(one, layout, [last.panel, last.row, last.column]);
  const whole = [x, y, last.width * right, last.height * below];
  rectangle(pen, whole, { line: colour("dim"), thick: 1.5, dash: [3, 3] });
  const look = { fill: colour("first-strong"), alpha: last.kind === LOAD ? 0.35 : 0, line: colour("ink"), thick: 2.5 };
  rectangle(pen, [x, y, last.across * right, last.down * below], look);
  for (const { r, c, lands } of stray) {
    for (const place of [[last.panel, r, c], lands].map((lane) => whereIs(one, layout, lane))) {
      if (!place) continue;
      rectangle(pen, [place[0], place[1], right - 0.5, below - 0.5], { fill: colour("second-strong") });
    }
  }
}

/** The chip with the tiles that the program holds. */
function paintChip(pen, { last, held }, { span, bottom, height }, { colour, font }) {
  const [left, width] = span;
  const chip = last ? held[last.chip] : [];
  if (!held.some((tiles) => tiles.length)) return;
  rectangle(pen, [left + 0.5, bottom + GAP - 3, width - 2, height - bottom - GAP - 2], { line: colour("dim") });
  const bytes = chip.reduce((sum, [, rows, columns]) => sum + 4 * rows * columns, 0);
  Object.assign(pen, { font: font(12, "bold"), fillStyle: colour("ink") });
  label(pen, `On the chip: ${number(bytes)} bytes`, [left + 6, bottom + GAP + 9]);
  const { places } = flowChip(chip, span, bottom);
  for (const [i, [x, y]] of places.entries()) {
    const [name, rows, columns] = chip[i];
    Object.assign(pen, { font: font(12), fillStyle: colour("ink") });
    label(pen, name, [x, y - 9]);
    const fill = colour(name === "H" ? "other-3" : "other-2");
    const high = Math.max(2 * rows, LEAST);
    rectangle(pen, [x, y, Math.max(2 * columns, LEAST), high], { fill, line: colour("dim") });
    pen.fillStyle = colour("dim");
    label(pen, cells(rows, columns), [x, y + high + 9]);
  }
}

/** The tile on its way between memory and chip, `way` from 0 to 1, and the line along which it goes. */
function paintWay(pen, one, layout, way, { colour }) {
  const { last, held, operands } = one;
  if (!last || last.kind === DOT || !held[last.chip].length) return;
  const [x, y, right, below] = whereIs(one, layout, [last.panel, last.row, last.column]);
  const letter = operands[last.what].name.split(" ").at(-1).toLowerCase();
  const slot = held[last.chip].findIndex(([name]) => name.toLowerCase() === letter);
  const { places } = flowChip(held[last.chip], layout.span, layout.bottom);
  const target = places[slot] ?? [layout.span[0] + 12, layout.bottom + GAP + TITLE];
  const size = [Math.max(LEAST, last.across * right), Math.max(LEAST, last.down * below)];
  const ends = last.kind === LOAD ? [[x, y], target] : [target, [x, y]];
  const [from, to] = ends.map(([left, top]) => [left + LEAST / 2, top + LEAST / 2]);
  Object.assign(pen, { strokeStyle: colour("ink"), lineWidth: 1, globalAlpha: 0.6 });
  pen.setLineDash([2, 3]);
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
  if (way >= 1) return;
  const at = [0, 1].map((axis) => ends[0][axis] * (1 - way) + ends[1][axis] * way);
  const fill = colour(last.kind === LOAD ? "first-strong" : "other-0");
  rectangle(pen, [...at, ...size], { fill, alpha: 0.7, line: colour("ink") });
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

/** The design or the speed, the step, and buttons that go through the steps. */
function controls(view, parent, now) {
  const go = (step) => view.set({ step: clamp(step, 0, now().most) });
  const sliders = make(parent, "div", { class: "sliders" });
  const traces = view.get("_traces");
  const most = (design) => traces.find(({ name }) => name === design).steps.length;
  if (!view.get("_race") && traces.length > 1) {
    view.choice(sliders, {
      symbol: "Design",
      text: "of the run",
      values: traces.map(({ name }) => name),
      get: () => view.get("design"),
      set: (design) => view.set({ step: Math.min(view.get("step"), most(design)), design }),
    });
  }
  view.parts.push(() => (slider.max = now().most)); // before the slider gets its value
  view.range(sliders, { symbol: "Steps", text: "done", max: 1, get: () => clamp(view.get("step"), 0, now().most), set: go });
  const slider = sliders.querySelector("input[type=range]");
  const boxes = make(parent, "div", { class: "boxes", style: "align-items: center; gap: 0 6px" });
  const button = (text, name) => make(boxes, "button", { type: "button", "aria-label": name, title: name }, text);
  const [back, play, on] = [button("|◀", "Back"), button("▶", "Play"), button("▶|", "Forward")];
  let [timer, beat] = [undefined, BEATS.steadily];
  const walk = (by) => go(view.get("step") + by);
  const stop = () => (timer = clearInterval(timer));
  const start = () => (timer = setInterval(walk, beat, 1));
  const toggle = () => {
    if (!timer && view.get("step") === now().most) go(0);
    if (timer) stop();
    else start();
    view.schedule();
  };
  view.choice(boxes, {
    symbol: "Speed",
    text: "",
    values: Object.keys(BEATS),
    get: () => Object.keys(BEATS).find((name) => BEATS[name] === beat),
    set: (name) => {
      beat = BEATS[name];
      if (timer) [stop(), start()];
    },
  });
  view.listen(back, "click", () => [stop(), walk(-1)]);
  view.listen(on, "click", () => [stop(), walk(1)]);
  view.listen(play, "click", toggle);
  view.listen(view.root, "keydown", (event) => {
    if (event.key !== " " || ["BUTTON", "SELECT"].includes(event.target.tagName)) return;
    event.preventDefault();
    toggle();
  });
  view.leaving.signal.addEventListener("abort", stop);
  view.parts.push(() => {
    if (view.get("step") === now().most) stop();
    play.textContent = timer ? "❚❚" : "▶";
    for (const name of ["aria-label", "title"]) play.setAttribute(name, timer ? "Pause" : "Play");
  });
  return { go, beat: () => (timer ? beat : 0) };
}

/** Memory above, the chip below; arrow keys go through steps and programs. */
function tensorsPart(view, parent, now, { go, beat }) {
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  let [seen, since] = [view.get("step"), -Infinity];
  const canvas = view.canvas(parent, {
    label: "Memory and chip; left and right arrow keys go through steps, up and down keys through programs, space plays",
    height: (width) => layOutAll(now(), width).height,
    paint(pen, width) {
      const { lanes } = now();
      const { places, tops } = layOutAll(now(), width);
      const most = Math.max(...lanes.map(({ whole }) => whole.loaded + whole.stored), 1);
      if (view.get("step") !== seen) [seen, since] = [view.get("step"), performance.now()];
      const way = !beat() || still.matches ? 1 : (performance.now() - since) / (0.7 * beat());
      for (const [i, one] of lanes.entries()) {
        pen.save();
        pen.translate(0, tops[i]);
        paintHead(pen, one, places[i], most, view);
        places[i].panels.forEach((panel, k) => paintPanel(pen, panel, places[i].places[k], one, places[i], view));
        paintTile(pen, one, places[i], view);
        paintChip(pen, one, places[i], view);
        paintWay(pen, one, places[i], one.now === view.get("step") ? way : 1, view);
        pen.restore();
      }
      if (way < 1) view.schedule();
    },
  });
  view.arrows(canvas, (dx, dy) => {
    const { steps, most } = now();
    const t = view.get("step");
    if (dx) return go(t + dx);
    const same = (a, b) => a.launch === b.launch && a.program === b.program;
    const starts = steps.flatMap((step, i) => (i && same(step, steps[i - 1]) ? [] : [i + 1]));
    const [before, after] = [starts.filter((start) => start < t), starts.filter((start) => start > t)];
    go(dy > 0 ? (after[0] ?? most) : (before.at(-1) ?? 0));
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
  const table = make(make(parent, "div", { class: "scroll", style: "margin-top: 4px" }), "table");
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
  const title = make(view.root, "p", { style: "margin: 0; font-size: 15px; font-weight: bold" });
  view.parts.push(() => (title.textContent = headline(shown)));
  make(view.root, "p", { style: "margin: 0 0 4px; font-size: 14px" }, HELP);
  const player = controls(view, view.root, now);
  tensorsPart(view, make(view.root, "div", { style: "margin-top: 8px" }), now, player);
  view.describe(view.root, () => describe(shown));
  tablePart(view, view.root, now);
});
