// Where everything of the kernel tracer stands: bars of bytes, tensors with their cells, tiles on the chip.

import { factors } from "./kernel_runs.js";

// DOT, the kind of a step, comes from kernel_tracer.py.
// All in pixels: a line of text, between tensors, all of them, a program; a tile, two lanes, a bar, around it, the units.
export const [TITLE, GAP, TALL, MARK] = [20, 14, 180, 9];
export const [LEAST, WIDE, BAR, RIM, UNITS] = [16, 640, 7, 16, 250];

export const panelName = ({ name, panels }, panel) => (panels === 1 ? name : `${name} [${panel}]`);
export const cells = (height, width) => `${height} × ${width}`;

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

/** Pixels of a side of a tile on the chip. */
export const tileOf = (size) => Math.max(2.5 * size, LEAST);

/** The tiles (name, rows, columns) of the chip or of its units under a line of text, drawn to one scale. */
export function flowTiles(tiles, [left, width], top) {
  const boxes = tiles.map(([name, rows, columns]) => ({
    wide: Math.max(tileOf(columns), 6.5 * Math.max(name.length, cells(rows, columns).length)),
    high: tileOf(rows) + 14,
  }));
  return flow(boxes, [left + 6, width - 12], top + TITLE);
}

/** Pixels of a tensor's cell, across and down: a tensor of one column is wide enough to be seen. */
export const cellOf = ({ width, height }, [x, y]) => [Math.max(x, LEAST / width), Math.max(y, LEAST / height)];

/** Sizes of a cell, the largest first: it need not be a square, so that tensors fill the width. */
const SIZES = [8, 7, 6, 5, 4.5, 4, 3.5, 3, 2.5]
  .flatMap((down) => Array.from({ length: 60 }, (_, i) => [down * (0.6 + i / 20), down]))
  .sort(([x, y], [u, v]) => u * v - x * y);

/** Where everything of a lane stands: its programs, the panels of all tensors, the chip with its units. */
function layOut(one, span) {
  const { operands, grids } = one;
  const all = (operand, what) => Array.from({ length: operand.panels }, (_, panel) => ({ operand, what, panel }));
  const panels = operands.flatMap(all);
  const top = 2 * TITLE + BAR + grids.length * MARK + 8;
  const box = ({ operand, panel }, cell) => {
    const [across, down] = cellOf(operand, cell);
    const wide = Math.max(operand.width * across, 7 * panelName(operand, panel).length);
    return { wide, high: operand.height * down };
  };
  const placed = (cell) => flow(panels.map((panel) => box(panel, cell)), span, top);
  const tall = span[1] < 400 ? 1.5 * TALL : TALL; // on a phone there is one lane below the other
  const fits = (cell) => placed(cell).bottom - top <= tall;
  const least = Math.min(2, ...operands.map(({ width }) => (span[1] - 4) / width));
  const cell = SIZES.find(fits) ?? [least, least];
  const { places, bottom } = placed(cell);
  return { span, cell, panels, places, ...layOutChip(one, span, bottom) };
}

/** The chip and its units, beside each other where there is room; nothing where no tile on the chip is known. */
function layOutChip(one, [left, width], bottom) {
  if (!one.held.some((tiles) => tiles.length)) return { height: bottom + 8 };
  const products = one.steps.filter(({ kind }) => kind === DOT).map((step) => factors(one, step));
  const ends = (all, span, top) => Math.max(top, ...all.map((tiles) => flowTiles(tiles, span, top).bottom));
  const beside = width >= WIDE;
  const chip = { span: [left, beside ? width - UNITS : width], top: bottom + GAP };
  const end = ends(one.held, chip.span, chip.top);
  const units = beside ? { span: [left + width - UNITS, UNITS], top: chip.top } : { span: chip.span, top: end + 6 };
  return { chip, units, height: Math.max(end, products.length && ends(products, units.span, units.top)) + 8 };
}

/** Lanes beside each other where there is room, else one below the other. */
export function layOutAll({ lanes }, width) {
  const beside = lanes.length > 1 && width >= WIDE;
  const each = beside ? (width - 28) / lanes.length : width;
  const places = lanes.map((one, i) => layOut(one, [beside ? i * (each + 28) : 0, each]));
  let top = 0;
  const tops = places.map(({ height }) => (beside ? 0 : (top += height) - height));
  return { places, tops, height: beside ? Math.max(...places.map(({ height }) => height)) : top };
}

/** Where the bar of bytes begins and how long it is. */
export const barOf = ({ span: [left, width] }) => [left + RIM, width - 2 * RIM];

/** The number of the lane whose bar is at a place; -1 if none is. */
export function barAt({ places, tops }, [x, y]) {
  const away = (i) => Math.abs(y - tops[i] - TITLE - BAR / 2);
  return places.findIndex(({ span: [left, width] }, i) => left <= x && x < left + width && away(i) < RIM);
}

/** The cell at a place: its lane, tensor, panel, row and column; undefined if none is. */
export function cellAt({ places, tops }, [x, y]) {
  for (const [lane, { cell, panels, places: corners }] of places.entries()) {
    for (const [k, { operand, what, panel }] of panels.entries()) {
      const [across, down] = cellOf(operand, cell);
      const [row, column] = [(y - tops[lane] - corners[k][1]) / down, (x - corners[k][0]) / across].map(Math.floor);
      const isIn = 0 <= row && row < operand.rows && 0 <= column && column < operand.columns;
      if (isIn) return { lane, what, panel, row, column };
    }
  }
  return undefined;
}

/** Where a tile of a tensor lies, and the size of its cells. */
export function whereIs(one, { cell, panels, places }, what, [panel, row, column]) {
  const place = places[panels.findIndex((other) => other.what === what && other.panel === panel)];
  const [right, below] = cellOf(one.operands[what], cell);
  return place && [place[0] + column * right, place[1] + row * below, right, below];
}
