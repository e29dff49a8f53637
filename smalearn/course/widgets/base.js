// Everything that all explorers share. Python puts this file in front of an explorer's own script (base.py, module):
// there is nothing to build, and nothing is loaded from another host.

import { showAgain } from "./reopen.js";
import { restore, tools } from "./share.js";

/**
 * An anywidget module: `traits` are the names of the state, `build(view)` makes the parts of one view of it.
 * Several views may show one model; each is redrawn when the state changes, wherever it was changed.
 */
export function explorer(traits, build) {
  return {
    initialize: ({ model }) => showAgain(model),
    render({ model, el }) {
      restore(model, el, traits);
      const view = new View(model, el, traits);
      build(view);
      tools(view, el, traits);
      view.keepKeys();
      view.draw();
      return () => view.remove();
    },
  };
}

class View {
  constructor(model, el, traits) {
    this.model = model;
    this.root = make(el, "div", { class: "smalearn" });
    this.kind = traits.join();
    this.parts = [];
    this.leaving = new AbortController();
    const again = () => this.schedule();
    for (const trait of traits) this.follow(model, `change:${trait}`, again);
    this.listen(window, "resize", again); // a zoom changes the device-pixel ratio
    this.listen(window.matchMedia("(prefers-color-scheme: dark)"), "change", again);
    this.watch(new ResizeObserver(again), this.root);
    const theme = new MutationObserver(again);
    for (const node of [document.documentElement, document.body]) {
      this.watch(theme, node, { attributeFilter: ["data-jp-theme-light", "data-theme", "theme", "class"] });
    }
  }

  follow(model, event, callback) {
    model.on(event, callback);
    this.leaving.signal.addEventListener("abort", () => model.off(event, callback));
  }

  listen(target, event, callback, options = {}) {
    target.addEventListener(event, callback, { ...options, signal: this.leaving.signal });
  }

  watch(observer, ...what) {
    observer.observe(...what);
    this.leaving.signal.addEventListener("abort", () => observer.disconnect());
  }

  /** Keys pressed here are not JupyterLab's, where "d" twice deletes a cell, but for its shortcuts, such as Ctrl+S. */
  keepKeys() {
    const decide = ({ target, ctrlKey, metaKey }) => {
      if (this.root.contains(target)) target.toggleAttribute("data-lm-suppress-shortcuts", !ctrlKey && !metaKey);
    };
    this.listen(window, "keydown", decide, { capture: true }); // before JupyterLab, which asks the focused element
  }

  /** What stands above the picture: a sentence as title, the read-out in large, and what to do. Texts or functions. */
  head({ title, headline, hint }) {
    const box = make(this.root, "div", { class: "head" });
    const name = typeof title === "function" ? title : () => title;
    this.root.setAttribute("role", "figure");
    this.parts.push(() => this.root.setAttribute("aria-label", name()));
    for (const [name, text] of Object.entries({ title, headline, hint })) {
      const line = make(box, "p", { class: name });
      const says = typeof text === "function" ? text : () => text;
      this.parts.push(() => (line.textContent = says()));
    }
  }

  /** A button that goes through whole numbers by itself, from the present one to the last; a touch ends it. */
  player(parent, { text, at, from = 0, to, set, every = 250 }) {
    const button = make(parent, "button", { type: "button", class: "play" });
    let clock;
    const stop = () => {
      clock = clearInterval(clock);
      this.schedule();
    };
    const next = () => (at() < to() ? set(at() + 1) : stop());
    this.listen(button, "click", () => {
      if (clock) return stop();
      if (at() >= to()) set(from);
      clock = setInterval(next, every);
      this.schedule();
    });
    this.listen(this.root, "pointerdown", ({ target }) => clock && !button.contains(target) && stop());
    this.leaving.signal.addEventListener("abort", () => clearInterval(clock));
    this.parts.push(() => (button.textContent = clock ? "❚❚ Pause" : `▶ ${text}`));
    return button;
  }

  /** Move a little when first seen, once a page and kind: this can be dragged. `states()` are states, one a frame. */
  nudge(states) {
    const seen = (window.smalearnSeen ??= new Set());
    if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const observer = new IntersectionObserver(
      ([{ isIntersecting }]) => {
        if (!isIntersecting || seen.has(this.kind)) return;
        seen.add(this.kind);
        observer.disconnect();
        const all = states();
        if (all.length) this.moveAndReturn(all);
      },
      { threshold: 0.6 },
    );
    this.watch(observer, this.root);
  }

  /** Show states one after the other, unknown to Python, and what was before; a touch ends it at once. */
  moveAndReturn(states) {
    const pick = (from) => Object.fromEntries(Object.keys(states[0]).map((trait) => [trait, from(trait)]));
    const show = (state) => Object.entries(state).forEach(([trait, value]) => this.model.set(trait, value));
    const before = pick((trait) => this.get(trait));
    let last = before;
    const end = () => {
      clock = clearInterval(clock);
      if (Object.entries(last).every(([trait, value]) => this.get(trait) === value)) show(before);
      last = before;
    };
    let clock = setInterval(() => {
      if (!states.length) return end();
      last = states.shift();
      show(last);
    }, 60);
    for (const touch of ["pointerdown", "keydown"]) this.listen(this.root, touch, end, { capture: true, once: true });
    this.leaving.signal.addEventListener("abort", end);
  }

  /** Scroll until all of it is seen, where Shift+Enter has just run its cell: JupyterLab has then chosen the next. */
  arrive() {
    this.arrived = true;
    if (this.root.closest(".jp-Cell:has(+ .jp-mod-active)")) this.root.scrollIntoView({ block: "nearest" });
  }

  remove() {
    this.leaving.abort();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.pause);
    this.root.remove();
  }

  get(trait) {
    return this.model.get(trait);
  }

  /** Change the state here and in Python. */
  set(state) {
    for (const [trait, value] of Object.entries(state)) this.model.set(trait, value);
    this.model.save_changes();
  }

  /** Draw once in the next frame, however much changes before it. */
  schedule() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = undefined;
    this.root.toggleAttribute("data-dark", isDark());
    const style = getComputedStyle(this.root);
    this.zoom = zoom();
    this.colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.font = (size, weight = "normal") => `${weight} ${size}px ${style.fontFamily}`;
    for (const part of this.parts) part();
    if (this.root.offsetHeight && !this.arrived) this.arrive();
  }

  /** A slider over a list of values; `get` may also give a value between them. */
  slider(parent, { symbol, text, values, get, set, enabled = () => true }) {
    const label = make(parent, "label", { class: "slider" });
    const name = make(label, "span", { class: "name" });
    make(name, "b", {}, symbol);
    name.append(` ${text}`);
    const input = make(label, "input", { type: "range", max: values.length - 1, "aria-label": `${symbol}, ${text}` });
    const shown = make(label, "span", { class: "value" });
    this.listen(input, "input", () => set(values[input.value]));
    this.parts.push(() => {
      input.value = nearest(values, get());
      input.disabled = !enabled();
      shown.textContent = number(get());
      input.setAttribute("aria-valuetext", number(get()));
    });
  }

  /** A slider over whole numbers; `says` is its value in words. It is hidden while it is not `shown`. */
  range(parent, { symbol, text, min = 0, max, get, set, says = () => number(get()), shown = () => true }) {
    const box = make(parent, "label", { class: "slider" });
    const name = make(box, "span", { class: "name" });
    make(name, "b", {}, symbol);
    name.append(` ${text}`);
    const input = make(box, "input", { type: "range", min, max, "aria-label": `${symbol}, ${text}` });
    const value = make(box, "span", { class: "value" });
    this.listen(input, "input", () => set(Number(input.value)));
    this.parts.push(() => {
      box.hidden = !shown();
      input.value = get();
      value.textContent = says();
      input.setAttribute("aria-valuetext", says());
    });
  }

  /** A list of texts, one of which is chosen. */
  choice(parent, { symbol, text, values, get, set }) {
    const box = make(parent, "label", { class: "slider" });
    const name = make(box, "span", { class: "name" });
    make(name, "b", {}, symbol);
    name.append(` ${text}`);
    const select = make(box, "select", { tabindex: 0, "aria-label": `${symbol}, ${text}` });
    for (const value of values) make(select, "option", { value }, value);
    this.listen(select, "change", () => set(select.value));
    this.parts.push(() => (select.value = get()));
  }

  checkbox(parent, { text, get, set }) {
    const label = make(parent, "label");
    const input = make(label, "input", { type: "checkbox" });
    label.append(text);
    this.listen(input, "change", () => set(input.checked));
    this.parts.push(() => (input.checked = get()));
  }

  /** A canvas as wide as its parent, `height(width)` high; `paint(pen, width, height)` works in pixels of the picture. */
  canvas(parent, { label, height, paint }) {
    const canvas = make(parent, "canvas", { tabindex: 0, role: "application", "aria-label": label });
    const pen = canvas.getContext("2d");
    let width = 0;
    this.parts.push(() => {
      width = widthOf(canvas) || width; // hidden for a moment, as while JupyterLab changes its theme: drawn anyway
      if (!width) return; // not shown yet: drawn when it gets a size
      const [ratio, high] = [this.zoom * window.devicePixelRatio, Math.round(height(width))];
      const size = [Math.round(width * ratio), Math.round(high * ratio)];
      if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
      canvas.style.height = `${high * this.zoom}px`;
      pen.setTransform(size[0] / width, 0, 0, size[1] / high, 0, 0);
      pen.clearRect(0, 0, width, high);
      pen.save();
      paint(pen, width, high);
      pen.restore(); // what is drawn does not depend on what was drawn before
    });
    return canvas;
  }

  /**
   * Drag something on a canvas: `move(x, y)` in its pixels. A finger drags where `near(x, y)`, else it scrolls.
   * `cursor(x, y)` is what the pointer looks like; `canvas.hot` says whether it is near what can be dragged.
   */
  drag(canvas, { near, move, cursor = (x, y) => (near(x, y) ? "grab" : "crosshair") }) {
    const at = (event) => pointOn(canvas, event);
    const point = (event) => {
      const held = canvas.hasPointerCapture(event.pointerId);
      canvas.style.cursor = cursor(...at(event)).replace(/^grab$/, held ? "grabbing" : "grab");
      const hot = held || near(...at(event));
      if (canvas.hot !== hot) this.schedule();
      canvas.hot = hot;
    };
    for (const event of ["pointermove", "pointerdown"]) {
      this.listen(canvas, event, (event) => event.pointerType === "mouse" && canvas.clientWidth && point(event));
    }
    this.listen(canvas, "pointerleave", () => {
      if (canvas.hot) this.schedule();
      canvas.hot = false;
    });
    this.listen(canvas, "touchstart", (event) => near(...at(event.touches[0])) && event.preventDefault(), {
      passive: false,
    });
    this.listen(canvas, "pointerdown", (event) => {
      // A finger is captured from the start; let go where it shall scroll.
      if (event.pointerType === "touch" && !near(...at(event))) return canvas.releasePointerCapture(event.pointerId);
      canvas.setPointerCapture(event.pointerId);
      move(...at(event));
    });
    this.listen(canvas, "pointermove", (event) => {
      if (canvas.hasPointerCapture(event.pointerId)) move(...at(event));
    });
    this.listen(canvas, "click", (event) => move(...at(event))); // a finger's tap
  }

  /** Say where the mouse is: `look(at(x, y))` in pixels of the canvas, and `look()` when it leaves. */
  pointed(canvas, at, look) {
    this.listen(canvas, "pointermove", (e) => e.pointerType === "mouse" && look(at(...pointOn(canvas, e))));
    this.listen(canvas, "pointerleave", () => look());
  }

  /** Arrow keys on an element: `step(dx, dy)` with the signs of the arrow. */
  arrows(element, step) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    this.listen(element, "keydown", (event) => {
      if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      step(...steps[event.key]);
    });
  }

  /** Say in words what is seen; screen readers hear it when the state has rested for a moment. */
  describe(parent, words) {
    const paragraph = make(parent, "p", { role: "status", "aria-live": "polite" });
    const say = () => {
      const text = words();
      if (paragraph.textContent !== text) paragraph.textContent = text;
    };
    this.parts.push(() => {
      clearTimeout(this.pause);
      if (paragraph.textContent) this.pause = setTimeout(say, 300);
      else say();
    });
  }
}

/** A new element with attributes, at the end of its parent. */
export function make(parent, tag, attributes = {}, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  parent.append(element);
  return element;
}

/** Digits in groups of three, the same in every country. */
export function number(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 6 }).replace("-", "\u2212");
}

/** A number for a headline, of four digits at most: 39.5 million. */
export function short(value) {
  const power = Math.min(Math.floor(Math.log10(value) / 3), 4);
  if (value < 1e4) return number(value);
  return `${digits(value / 1000 ** power, 3)} ${["", "thousand", "million", "billion", "trillion"][power]}`;
}

/** A number of so many decimals at most; no minus before a zero. */
export function decimals(value, count = 2) {
  return number(Math.round(10 ** count * value) / 10 ** count + 0);
}

/** A number of so many digits that count. */
export function digits(value, count = 2) {
  return number(Number(value.toPrecision(count)) + 0);
}

/** A power of ten as it is written on an axis: 10⁻³. */
export function power(exponent) {
  return `10${String(exponent).replace(/./g, (sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)])}`;
}

/** CSS pixels of one pixel of a picture: all that is drawn grows with the text that the reader asks for. */
const zoom = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;

/** How wide a canvas is, in pixels of its picture. */
export const widthOf = (canvas) => canvas.clientWidth / zoom();

/** Where on a canvas a pointer or a finger is, in pixels of its picture. */
export function pointOn(canvas, { clientX, clientY }) {
  const { left, top } = canvas.getBoundingClientRect();
  return [(clientX - left) / zoom(), (clientY - top) / zoom()];
}

/** Pixels of a picture of full height: as wide as there is room, but what follows from it stays on the screen. */
export function tall(width, share = 0.55) {
  const screen = window.top === window ? window.innerHeight : 0.8 * window.screen.availHeight; // a frame grows with it
  return Math.floor(Math.min(width, Math.max((share * screen) / zoom(), 240)));
}

/** A size on an axis: 512, 1k, 2k. */
export function size(value) {
  return value < 1024 ? `${value}` : `${value / 1024}k`;
}

/** How many times as much: three digits, and more where it is hardly more than once. */
export function times(ratio) {
  if (ratio >= 1e4) return short(ratio);
  return number(ratio < 100 ? Number(ratio.toPrecision(ratio < 1.005 ? 6 : 3)) : Math.round(ratio));
}

export function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

/** The dot product of two lists of numbers. */
export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** A line through points; broken where a coordinate is NaN. */
export function trace(pen, points) {
  let down = false;
  pen.beginPath();
  for (const [x, y] of points) {
    if (down) pen.lineTo(x, y);
    else pen.moveTo(x, y);
    down = !Number.isNaN(x + y);
  }
  pen.stroke();
}

/** Text at a place, no wider than `room`; upwards where there is none. */
export function label(pen, text, [x, y], { align = "left", room, upwards = false } = {}) {
  pen.save();
  Object.assign(pen, { textAlign: align, textBaseline: "middle" });
  pen.translate(x, y);
  if (upwards) pen.rotate(-Math.PI / 2);
  pen.fillText(text, 0, 0, room);
  pen.restore();
}

/** Centred text that can be read on any ground. */
export function write(pen, text, [x, y], { ink, halo }) {
  Object.assign(pen, { textAlign: "center", textBaseline: "middle", lineJoin: "round", lineWidth: 4 });
  Object.assign(pen, { strokeStyle: halo, fillStyle: ink });
  pen.strokeText(text, x, y);
  pen.fillText(text, x, y);
}

/** What can be dragged: a knob, with a ring around it while the pointer is near. */
export function knob(pen, [x, y], hot, { colour }) {
  for (const [radius, fill, alpha] of [[15, "focus", hot ? 0.3 : 0], [9, "paper", 1], [7, "focus", 1]]) {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    Object.assign(pen, { fillStyle: colour(fill), globalAlpha: alpha });
    pen.fill();
  }
  pen.globalAlpha = 1;
}

/** A logarithmic axis of sizes from 1 to `limit`, from `low` to `high` pixels, with `rim` octaves more at both ends. */
export function logAxis(limit, low, high, rim) {
  const [top, scale] = [Math.log2(limit), (high - low) / (Math.log2(limit) + 2 * rim)];
  return {
    limit,
    low,
    high,
    place: (size) => low + (Math.log2(size) + rim) * scale,
    size: (place) => 2 ** clamp((place - low) / scale - rim, 0, top),
  };
}

/** The powers of two up to a limit, as many as have room. */
export function ticks(limit, pixels, room) {
  const count = Math.log2(limit);
  const every = [1, 2, 4].find((every) => (pixels * every) / count >= room) ?? 8;
  return Array.from({ length: Math.floor(count / every) + 1 }, (_, i) => 2 ** (i * every));
}

/** 1, 2, 3, ... up to `limit`, four in every octave: 8, 10, 12, 14, 16, 20, ... */
export function octaves(limit) {
  const values = [1, 2, 3];
  for (let unit = 1; 4 * unit < limit; unit *= 2) values.push(4 * unit, 5 * unit, 6 * unit, 7 * unit);
  return [...values, limit].filter((value) => value <= limit);
}

/** Index of the value that is nearest in proportion. */
function nearest(values, target) {
  const far = values.map((value) => Math.abs(Math.log(value / target)));
  return far.indexOf(Math.min(...far));
}

/** The value nearest to the target, or one so many places further. */
export function snap(values, target, further = 0) {
  return values[clamp(nearest(values, target) + further, 0, values.length - 1)];
}

/** How a host says it: JupyterLab and Sphinx themes, Colab, MyST, Quarto, VS Code. */
const THEMES = /^(vscode-high-contrast|(vscode-(high-contrast-)?|quarto-)?(dark|light))$/;

/** What the page says of itself, or else what the reader prefers. */
function isDark() {
  const { body, documentElement: html } = document;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  const said = [body.dataset.theme, html.dataset.theme, html.getAttribute("theme"), ...body.classList, ...html.classList];
  const mark = said.find((word) => THEMES.test(word));
  return mark ? !mark.endsWith("light") : window.matchMedia("(prefers-color-scheme: dark)").matches;
}
