// Recorded runs of programs: every access to memory, what is on the chip, and what all of it costs.

import { clamp, explorer, knob, label, make, number, pointOn, short, times, trace, widthOf, write } from "./base.js";
import { accesses, bytesOf, factors, mostBytes, read, slotOf, stepAt, strays } from "./kernel_runs.js";
import { BAR, LEAST, MARK, TITLE, barAt, barOf, cellAt, cellOf, cells, flowTiles, layOutAll, panelName, tileOf, whereIs } from "./kernel_layout.js";

const TRAITS = ["design", "step"];
// LOAD, STORE and DOT, the kinds of a step, come from kernel_tracer.py.
const BEAT = 350; // milliseconds of a step while it plays
const FILLS = ["first", "other-0"];

// ---- words --------------------------------------------------------------------------------------------------------

/** The indices of a program on the axes of the grid. */
function indices({ launch, program }, { grids }) {
  const [, b, c] = grids[launch];
  return [Math.floor(program / (b * c)), Math.floor(program / c) % b, program % c];
}

const span = (word, from, count) => (count === 1 ? `${word} ${from}` : `${word}s ${from} to ${from + count - 1}`);
const perByte = (sums) => (sums.macs ? number(Number((sums.macs / bytesOf(sums)).toFixed(2))) : "0");
const moved = (sums) => short(bytesOf(sums));

/** What a program without masks has touched outside of its tensors; empty if nothing. */
function astray({ done, operands }) {
  const count = (wanted) =>
    done.reduce((sum, step) => sum + (step.kind === wanted ? strays(step, operands[step.what]).length : 0), 0);
  const [read, written] = [count(LOAD), count(STORE)];
  const more = written ? `, and overwritten ${number(written)}` : "";
  return read ? `Without masks it has read ${number(read)} numbers from outside of its tensors${more}` : "";
}

/** The read-out. A race gives its bytes when all have arrived: until then a reader may guess. */
function headline(shown) {
  const { race, lanes, fails, now, steps, soFar } = shown;
  const whole = `Step ${now} of ${steps.length}: ${moved(soFar)} bytes moved, ${perByte(soFar)} multiply-adds for each`;
  if (!race) return astray(shown) || whole;
  const left = (one) => one.steps.length - one.now;
  const status = (one, i) => (left(one) ? `has ${left(one)} steps to go` : fails && !i ? "fails" : "is done");
  if (fails || lanes.some(left)) return lanes.map((one, i) => `“${one.name}” ${status(one, i)}`).join(", ");
  const [few, many] = lanes.map(({ name, soFar }) => ({ name, ...soFar })).sort((a, b) => bytesOf(a) - bytesOf(b));
  const ratio = times(bytesOf(many) / bytesOf(few));
  return `“${few.name}” moved ${moved(few)} bytes, “${many.name}” ${moved(many)}, ${ratio} times as many`;
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
    const whose = ["another row or head", `whatever lies in memory after ${operands[what].name}`];
    const place = [span("row", row, down), span("column", column, across)].join(", ");
    says.push(`${load ? "loads" : "stores"} ${place} of ${panelName(operands[what], panel)}: ${number(bytes)} bytes. `);
    if (masked) says.push(`A mask switches off ${masked} of ${height * width} lanes. `);
    const owners = [stray.length - lost, lost].flatMap((count, i) => (count ? `${count} numbers of ${whose[i]}` : []));
    if (stray.length) says.push(`For want of a mask it ${load ? "reads" : "overwrites"} ${owners.join(" and ")}. `);
  }
  if (held[chip].length) says.push(`On the chip: ${held[chip].map(([name]) => name).join(", ")}. `);
  if (shown.fails && now === steps.length) says.push(`Here it ends: ${shown.fails}. `);
  return `${says.join("")}So far ${perByte(soFar)} multiply-adds for each byte.`;
}

/** What has happened to a cell so far. */
function history(one, cell) {
  const { what, panel, row, column } = cell;
  const kinds = accesses(one, cell).filter((step) => step <= one.now).map((step) => one.steps[step - 1].kind);
  const count = (kind) => kinds.filter((other) => other === kind).length;
  const place = `row ${row}, column ${column} of ${panelName(one.operands[what], panel)}`;
  return `${place}: read ${count(LOAD)} ×, written ${count(STORE)} ×`;
}

// ---- drawing ------------------------------------------------------------------------------------------------------

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
function paintHead(pen, one, place, most, view, hot) {
  const { name, now, steps, last, grids, soFar } = one;
  const [[left, width], [start, long], { colour, font }] = [place.span, barOf(place), view];
  const reached = (long * bytesOf(soFar)) / most;
  Object.assign(pen, { font: font(14, "bold"), fillStyle: colour("ink") });
  label(pen, `${name}${now === steps.length ? ", done" : ""}: bytes moved`, [left, 8], { room: width });
  rectangle(pen, [start, TITLE + 0.5, long, BAR], { line: colour("line"), fill: colour("raised") });
  rectangle(pen, [start, TITLE + 0.5, reached, BAR], { fill: colour("first-strong") });
  knob(pen, [start + reached, TITLE + BAR / 2], hot, view);
  Object.assign(pen, { font: font(12), fillStyle: colour("ink") });
  label(pen, last ? `program (${indices(last, one).join(", ")})` : "programs", [left, TITLE + BAR + 14]);
  for (const [launch, [a, b, c]] of grids.entries()) {
    const mark = Math.min(MARK, width / (a * b * c));
    for (let program = 0; program < a * b * c; program++) {
      const later = last ? launch - last.launch || program - last.program : 1;
      const fill = colour(later > 0 ? "raised" : later < 0 ? "dim" : "first-strong");
      const corner = [left + program * mark + 0.5, 2 * TITLE + BAR + launch * MARK + 2];
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

/** The tile of the last step: framed, its masked lanes dashed, and what is wrongly touched in the warning colour. */
function paintTile(pen, one, layout, { colour }) {
  const { last, stray } = one;
  if (!last || last.kind === DOT) return;
  const [x, y, right, below] = whereIs(one, layout, last.what, [last.panel, last.row, last.column]);
  const whole = [x, y, last.width * right, last.height * below];
  rectangle(pen, whole, { line: colour("dim"), thick: 1.5, dash: [3, 3] });
  const look = { fill: colour("first-strong"), alpha: last.kind === LOAD ? 0.35 : 0, line: colour("ink"), thick: 2.5 };
  rectangle(pen, [x, y, last.across * right, last.down * below], look);
  for (const { r, c, lands } of stray) {
    for (const place of [[last.panel, r, c], lands].map((lane) => whereIs(one, layout, last.what, lane))) {
      if (!place) continue;
      rectangle(pen, [place[0], place[1], right - 0.5, below - 0.5], { fill: colour("second-strong") });
    }
  }
}

/** Tiles with their names and sizes under a line of text; those that are at work have a thick frame. */
function paintTiles(pen, tiles, { span, top }, { text, used = [] }, { colour, font }) {
  Object.assign(pen, { font: font(12, "bold"), fillStyle: colour("ink") });
  label(pen, text, [span[0] + 6, top + 9], { room: span[1] - 12 });
  pen.font = font(12);
  for (const [i, [x, y]] of flowTiles(tiles, span, top).places.entries()) {
    const [name, rows, columns] = tiles[i];
    const [wide, high] = [columns, rows].map(tileOf);
    const frame = used.includes(i) ? { line: colour("ink"), thick: 2.5 } : { line: colour("dim") };
    rectangle(pen, [x, y, wide, high], { fill: colour(name === "H" ? "other-3" : "other-2"), ...frame });
    pen.fillStyle = colour("ink");
    label(pen, name, [x, y - 9]);
    pen.fillStyle = colour("dim");
    label(pen, cells(rows, columns), [x, y + high + 9]);
  }
}

/** The chip: the tiles that the program holds, and its units, where two of them meet in a product. */
function paintChip(pen, one, { span, chip, units, height }, view) {
  const { last, held, products } = one;
  if (!chip) return;
  const [tiles, busy] = [last ? held[last.chip] : [], last?.kind === DOT];
  rectangle(pen, [span[0] + 0.5, chip.top - 3, span[1] - 2, height - chip.top - 2], { line: view.colour("dim") });
  const bytes = tiles.reduce((sum, [, rows, columns]) => sum + 4 * rows * columns, 0);
  const used = busy ? factors(one, last).map(([name]) => slotOf(tiles, name)) : [];
  paintTiles(pen, tiles, chip, { text: `On the chip: ${number(bytes)} bytes`, used }, view);
  if (!products.length) return;
  const text = busy ? `Units: ${products[last.what]}, ${number(last.macs)} multiply-adds` : "Units: idle";
  paintTiles(pen, busy ? factors(one, last) : [], units, { text }, view);
}

/** What goes on its way in the last step: from where, to where, how large, in which colour. */
function flights(one, layout) {
  const { last, held, operands } = one;
  const { chip, units } = layout;
  if (!last || !chip) return [];
  const tiles = held[last.chip];
  const [slots, rest] = [flowTiles(tiles, chip.span, chip.top).places, [chip.span[0] + 12, chip.top + TITLE]];
  const slot = (name) => slots[slotOf(tiles, name)] ?? rest;
  if (last.kind === DOT) {
    const [pair, { places }] = [factors(one, last), flowTiles(factors(one, last), units.span, units.top)];
    return pair.slice(0, 2).map(([name, rows, columns], i) => {
      return { from: slot(name), to: places[i], size: [columns, rows].map(tileOf), fill: "other-2" };
    });
  }
  const [x, y, right, below] = whereIs(one, layout, last.what, [last.panel, last.row, last.column]);
  const size = [Math.max(LEAST, last.across * right), Math.max(LEAST, last.down * below)];
  const [memory, inside] = [[x, y], slot(operands[last.what].name)];
  return last.kind === LOAD
    ? [{ from: memory, to: inside, size, fill: "first-strong" }]
    : [{ from: inside, to: memory, size, fill: "other-0" }];
}

/** The tiles on their way, `way` from 0 to 1, and the lines along which they go. */
function paintWay(pen, one, layout, way, { colour }) {
  for (const { from, to, size, fill } of flights(one, layout)) {
    Object.assign(pen, { strokeStyle: colour("ink"), lineWidth: 1, globalAlpha: 0.6 });
    pen.setLineDash([2, 3]);
    trace(pen, [from, to].map((corner) => corner.map((place) => place + LEAST / 2)));
    pen.setLineDash([]);
    pen.globalAlpha = 1;
    const at = [0, 1].map((axis) => from[axis] * (1 - way) + to[axis] * way);
    if (way < 1) rectangle(pen, [...at, ...size], { fill: colour(fill), alpha: 0.7, line: colour("ink") });
  }
}

/** The cell that is pointed at, and how often it has been touched. */
function paintLook(pen, { lanes }, { places, tops }, look, width, { colour, font }) {
  const [one, place] = [lanes[look.lane], places[look.lane]];
  const [x, y, right, below] = whereIs(one, place, look.what, [look.panel, look.row, look.column]);
  rectangle(pen, [x, y + tops[look.lane], right, below], { line: colour("focus"), thick: 2.5 });
  pen.font = font(13, "bold");
  const [text, inks] = [history(one, look), { ink: colour("ink"), halo: colour("paper") }];
  const half = pen.measureText(text).width / 2 + 4;
  write(pen, text, [clamp(x, half, width - half), y + tops[look.lane] - 12], inks);
}

// ---- the parts of a view ------------------------------------------------------------------------------------------

/** The design, the step, and buttons that go through the steps. */
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
  const at = () => clamp(view.get("step"), 0, now().most);
  view.range(sliders, { symbol: "Steps", text: "done", max: 1, get: at, set: go });
  const slider = sliders.querySelector("input[type=range]");
  const boxes = make(parent, "div", { class: "boxes", style: "gap: 0 0.375rem" });
  const play = view.player(boxes, { text: "Play", at, to: () => now().most, set: go, every: BEAT });
  for (const [text, name, by] of [["|◀", "Back", -1], ["▶|", "Forward", 1]]) {
    const button = make(boxes, "button", { type: "button", "aria-label": name, title: name }, text);
    view.listen(button, "click", () => go(view.get("step") + by));
  }
  view.listen(view.root, "keydown", (event) => {
    if (event.key !== " " || ["BUTTON", "SELECT"].includes(event.target.tagName)) return;
    event.preventDefault();
    play.click();
  });
  return go;
}

/** Memory above, the chip below: the bar of bytes is dragged, a cell is looked at by pointing at it. */
function tensorsPart(view, parent, now, go) {
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  let [seen, since, held] = [view.get("step"), -Infinity, -1];
  const canvas = view.canvas(parent, {
    label: "Memory and chip; left and right arrow keys go through steps, up and down keys through programs, space plays",
    height: (width) => layOutAll(now(), width).height,
    paint(pen, width) {
      const { lanes } = now();
      const layout = layOutAll(now(), width);
      const step = view.get("step");
      if (step !== seen) [seen, since] = [step, step === seen + 1 ? performance.now() : -Infinity];
      const way = still.matches ? 1 : Math.min((performance.now() - since) / (0.7 * BEAT), 1);
      for (const [i, one] of lanes.entries()) {
        const place = layout.places[i];
        pen.save();
        pen.translate(0, layout.tops[i]);
        paintHead(pen, one, place, mostBytes(lanes), view, canvas?.hot);
        place.panels.forEach((panel, k) => paintPanel(pen, panel, place.places[k], one, place, view));
        paintTile(pen, one, place, view);
        paintChip(pen, one, place, view);
        paintWay(pen, one, place, one.now === step ? way : 1, view);
        pen.restore();
      }
      if (view.hover) paintLook(pen, now(), layout, view.hover, width, view);
      if (way < 1) view.schedule();
    },
  });
  const layout = () => layOutAll(now(), widthOf(canvas));
  const bar = (...place) => barAt(layout(), place);
  const cell = (...place) => cellAt(layout(), place);
  const look = (hover) => view.schedule((view.hover = hover));
  view.pointed(canvas, cell, look);
  view.listen(canvas, "pointerdown", (event) => (held = bar(...pointOn(canvas, event))));
  view.drag(canvas, {
    near: (x, y) => bar(x, y) >= 0,
    move(x, y) {
      const { lanes } = now();
      if (held < 0) {
        const found = cell(x, y);
        return found && go(accesses(lanes[found.lane], found)[0] ?? view.get("step"));
      }
      const [start, long] = barOf(layout().places[held]);
      go(stepAt(lanes[held], clamp((x - start) / long, 0, 1) * mostBytes(lanes)));
    },
    cursor: (x, y) => (bar(x, y) >= 0 ? "ew-resize" : cell(x, y) ? "pointer" : "default"),
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
    make(item, "i", { class: fill });
    item.append(text);
  }
  make(key, "li", {}, "dashed: masked");
}

/** Bytes and multiply-adds, so far and of all designs; of a race so far alone. */
function tablePart(view, parent, now) {
  const table = make(make(parent, "div", { class: "scroll", style: "margin-top: 0.25rem" }), "table");
  make(table, "caption", {}, view.get("_race") ? "Bytes and multiply-adds so far" : "Bytes and multiply-adds");
  const head = make(make(table, "thead"), "tr");
  const titles = ["design", "loaded", "stored", "multiply-adds", "for each byte"];
  for (const text of titles) make(head, "th", { scope: "col" }, text);
  const body = make(table, "tbody");
  view.parts.push(() => {
    const { name, sums, soFar, race, lanes } = now();
    const soFars = lanes.map((one) => ({ ...one.soFar, name: one.name }));
    body.replaceChildren();
    for (const row of race ? soFars : [{ ...soFar, name: "so far" }, ...sums]) {
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
  view.head({
    title: "What stays on the chip is not loaded again",
    headline: () => headline(shown),
    hint: "Play, or drag the bar. Point at a cell to count its reads; a click goes to its first access.",
  });
  const go = controls(view, view.root, now);
  tensorsPart(view, make(view.root, "div", { style: "margin-top: 0.5rem" }), now, go);
  view.describe(view.root, () => describe(shown));
  tablePart(view, view.root, now);
  const wave = Array.from({ length: 25 }, (_, i) => Math.round(8 * Math.sin((Math.PI * i) / 24)));
  view.nudge(() => wave.map((further) => ({ step: clamp(view.get("step") + further, 0, shown.most) })));
});
