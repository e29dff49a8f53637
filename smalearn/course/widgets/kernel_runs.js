// Recorded runs of programs, as kernel_traces.py writes them: what each step touches, and what all of them cost.

import { clamp } from "./base.js";

// LOAD, STORE and DOT, the kinds of a step, come from kernel_tracer.py.

/** A step by names; see `trace_of` in kernel_traces.py. */
function named([launch, program, kind, what, panel, row, column, height, width, down, across, bytes, macs, chip]) {
  return { launch, program, kind, what, panel, row, column, height, width, down, across, bytes, macs, chip };
}

/** Bytes loaded, bytes stored and multiply-adds of some steps. */
export function totals(steps) {
  const sums = [0, 0, 0];
  for (const { kind, bytes, macs } of steps) sums[kind] += bytes + macs; // one of them is 0
  return { loaded: sums[LOAD], stored: sums[STORE], macs: sums[DOT] };
}

export const bytesOf = ({ loaded, stored }) => loaded + stored;
export const mostBytes = (lanes) => Math.max(...lanes.map(({ whole }) => bytesOf(whole)), 1);

/** Lanes that are not masked and outside of their panel, and where in memory each of them lands: panel, row, column. */
export function strays({ kind, panel, row, column, down, across }, { rows, columns }) {
  if (kind === DOT || (row + down <= rows && column + across <= columns)) return [];
  const lanes = Array.from({ length: down * across }, (_, i) => [row + Math.floor(i / across), column + (i % across)]);
  return lanes.filter(([r, c]) => r >= rows || c >= columns).map(([r, c]) => {
    const line = panel * rows + r + Math.floor(c / columns);
    return { r, c, lands: [Math.floor(line / rows), line % rows, c % columns] };
  });
}

/** The numbers of the steps that touch a cell of a tensor. */
export function accesses({ steps, operands }, { what, panel, row, column }) {
  const within = (place, from, count) => from <= place && place < from + count;
  const covers = (step) =>
    step.panel === panel && within(row, step.row, step.down) && within(column, step.column, step.across);
  const astray = (step) => strays(step, operands[what]).some(({ lands }) => `${lands}` === `${[panel, row, column]}`);
  const touches = (step) => step.kind !== DOT && step.what === what && (covers(step) || astray(step));
  return steps.flatMap((step, i) => (touches(step) ? [i + 1] : []));
}

/** The last step at which no more than so many bytes have moved. */
export function stepAt({ steps }, bytes) {
  let sum = 0;
  const next = steps.findIndex((step) => (sum += step.bytes) > bytes);
  return next < 0 ? steps.length : next;
}

/** The tiles (name, rows, columns) of a product: its two factors, and what they give. */
export function factors({ products }, { what, panel: m, row: k, column: n }) {
  const [left, ...right] = products[what].split(" ");
  return [[left, m, k], [right.join(" "), k, n], ["product", m, n]];
}

/** The number of the tile on the chip that is called as a factor or a tensor, or by one word of it; -1 if none is. */
export function slotOf(chip, name) {
  const [whole, held] = [name.replaceAll("ᵀ", "").toLowerCase(), chip.map(([tile]) => tile.toLowerCase())];
  const byWord = held.findIndex((tile) => whole.split(" ").includes(tile.split(" ").at(-1)));
  return held.includes(whole) ? held.indexOf(whole) : byWord;
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
