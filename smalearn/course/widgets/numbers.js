// Numbers as cells, in the colours of plots/style.py: paper to blue, paper to orange with a stroke, dots for zero.

import { trace } from "./base.js";

const SHADES = 200; // of either sign
const STROKED = 8; // pixels of a cell in which a stroke can be seen

/** Colours of numbers, given their largest size and how the share of it becomes that of a colour; none for 0. */
export function inks(view, pen, limit, share = (size) => size) {
  const rgb = (name) => {
    pen.fillStyle = view.colour(name);
    return [1, 3, 5].map((place) => parseInt(pen.fillStyle.slice(place, place + 2), 16));
  };
  const bytes = new Uint8ClampedArray(4 * (2 * SHADES + 1));
  for (const [sign, hue] of [[1, "first"], [-1, "second"]]) {
    const [paper, half, full] = ["paper", hue, `${hue}-strong`].map(rgb);
    for (let shade = 1; shade <= SHADES; shade++) {
      const x = (2 * shade) / SHADES;
      const [from, to, share] = x < 1 ? [paper, half, x] : [half, full, x - 1];
      bytes.set([...from.map((part, i) => part + (to[i] - part) * share), 255], 4 * (SHADES + sign * shade));
    }
  }
  const codes = new Uint32Array(bytes.buffer);
  return (value) => {
    const shade = value && Math.min(Math.max(Math.round(SHADES * share(Math.abs(value) / limit)), 1), SHADES);
    return codes[SHADES + Math.sign(value) * shade];
  };
}

/** Numbers as coloured cells, `columns` in a row, in a box. */
export function paintCells(pen, values, columns, [x, y, width, height], ink, view) {
  const rows = values.length / columns;
  const cells = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
  const image = new ImageData(columns, rows);
  new Uint32Array(image.data.buffer).set(values.map(ink));
  cells.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  if (values.includes(0)) dots(pen, [x, y, width, height], view);
  pen.drawImage(cells, x, y, width, height);
  const [wide, high] = [width / columns, height / rows];
  for (const [i, value] of values.entries()) {
    sign(pen, value, [x + (i % columns) * wide, y + Math.floor(i / columns) * high, wide, high], view);
  }
}

/** The ground of cells, to be seen where a number is exactly 0. */
export function dots(pen, box, { colour }) {
  const tile = Object.assign(document.createElement("canvas"), { width: 4, height: 4 });
  const dot = tile.getContext("2d");
  for (const [fill, place] of [["paper", [0, 0, 4, 4]], ["line", [1, 1, 1, 1]]]) {
    dot.fillStyle = colour(fill);
    dot.fillRect(...place);
  }
  pen.save();
  pen.fillStyle = pen.createPattern(tile, "repeat");
  pen.fillRect(...box);
  pen.restore();
}

/** The stroke of a negative number in its cell: who sees no hue sees this. */
export function sign(pen, value, [x, y, width, height], { colour }) {
  if (value >= 0 || Math.min(width, height) < STROKED) return;
  Object.assign(pen, { strokeStyle: colour("ink"), lineWidth: 1 });
  trace(pen, [[x + 0.3 * width, y + height / 2], [x + 0.7 * width, y + height / 2]]);
}
