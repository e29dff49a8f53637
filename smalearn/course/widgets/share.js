// A state to take away: as a link on the site, as a call in a notebook, as a picture.

/** The place of an explorer among those of a page of the site; -1 in a notebook. */
const placeOf = (el) => [...document.querySelectorAll("[data-explorer]")].indexOf(el);

/** Take the state from the page's address if it is a link to this explorer. */
export function restore(model, el, traits) {
  const linked = new URLSearchParams(window.location.hash.slice(1));
  if (!el.dataset?.explorer || linked.get("explorer") !== String(placeOf(el))) return;
  for (const trait of traits.filter((trait) => linked.has(trait))) {
    try {
      model.set(trait, JSON.parse(linked.get(trait)));
    } catch {
      continue; // cut off on its way: the page's own state stays
    }
  }
  el.scrollIntoView({ block: "center" });
}

/** A link to this state of an explorer of the site. */
function link(model, el, traits) {
  const state = traits.map((trait) => [trait, JSON.stringify(model.get(trait))]);
  return `${window.location.href.split("#")[0]}#${new URLSearchParams([["explorer", placeOf(el)], ...state])}`;
}

/** A value as Python writes it. */
function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  return typeof value === "string" ? JSON.stringify(value) : ({ true: "True", false: "False", null: "None" }[value] ?? `${value}`);
}

/** The call that makes this state; of the arguments that are no traits, those that were given. */
function call(model, traits) {
  const given = Object.entries(model.get("_given")).filter(([, value]) => value !== null);
  const state = [...given, ...traits.map((trait) => [trait, model.get(trait)])];
  const name = model.get("_anywidget_id").split(".").at(-1);
  return `${name}(${state.map(([argument, value]) => `${argument}=${literal(value)}`).join(", ")})`;
}

/** All pictures of a view with their title, as one canvas. */
function photograph(view) {
  const [root, ratio, unit] = [view.root.getBoundingClientRect(), window.devicePixelRatio, view.zoom];
  const head = 64 * unit;
  const seen = (canvas) => canvas.clientWidth && (canvas.checkVisibility?.() ?? true); // nothing that is folded
  const shown = [...view.root.querySelectorAll("canvas")].filter(seen);
  const boxes = shown.map((canvas) => canvas.getBoundingClientRect());
  const top = Math.min(...boxes.map((box) => box.top));
  const high = head + Math.max(...boxes.map((box) => box.bottom)) - top + 8;
  const photo = Object.assign(document.createElement("canvas"), { width: root.width * ratio, height: high * ratio });
  const pen = photo.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = view.colour("paper");
  pen.fillRect(0, 0, root.width, high);
  pen.fillStyle = view.colour("ink");
  for (const [place, name, size] of [[22, "title", 16], [48, "headline", 18]]) {
    pen.font = view.font(unit * size, name === "title" ? "bold" : "normal");
    pen.fillText(view.root.querySelector(`.${name}`)?.textContent ?? "", 8 * unit, unit * place, root.width - 16 * unit);
  }
  for (const [i, { left, top: y, width, height }] of boxes.entries()) {
    pen.drawImage(shown[i], left - root.left, head + y - top, width, height);
  }
  return photo;
}

/** The last line of an explorer: buttons that take its state away; in a notebook, code only where a call makes it. */
export function tools(view, el, traits) {
  const [bar, copy, save, shown] = ["div", "button", "button", "output"].map((tag) => document.createElement(tag));
  const onSite = Boolean(el.dataset?.explorer);
  bar.className = "tools";
  view.root.append(bar);
  bar.append(...(onSite || view.get("_given") ? [copy] : []), save, shown);
  const state = () => (onSite ? link(view.model, el, traits) : call(view.model, traits));
  [copy.textContent, save.textContent] = [onSite ? "Copy link" : "Copy code", "Save picture"];
  view.listen(copy, "click", async () => {
    const text = state();
    try {
      await navigator.clipboard.writeText(text);
      shown.textContent = "Copied.";
    } catch {
      shown.textContent = text; // no access to the clipboard: to be copied by hand
    }
  });
  view.listen(save, "click", () => {
    const name = (el.dataset?.explorer ?? view.get("_anywidget_id") ?? "explorer").split(".").at(-1);
    Object.assign(document.createElement("a"), { download: `${name}.png`, href: photograph(view).toDataURL() }).click();
  });
}
