// Explorers are brought to life. Nothing is loaded from elsewhere.
"use strict";

/** The state of an explorer as its script expects it from Jupyter; here nobody else listens. */
class Model {
  constructor(state) {
    this.state = state;
    this.callbacks = new Map();
  }

  get(name) {
    return this.state[name];
  }

  set(name, value) {
    this.state[name] = value;
    for (const callback of this.callbacks.get(`change:${name}`) ?? []) callback();
  }

  on(event, callback) {
    this.callbacks.set(event, [...(this.callbacks.get(event) ?? []), callback]);
  }

  off(event, callback) {
    this.callbacks.set(event, (this.callbacks.get(event) ?? []).filter((one) => one !== callback));
  }

  save_changes() {}
}

function enliven(place) {
  const { make, style } = window.explorers[place.dataset.explorer];
  const state = JSON.parse(place.nextElementSibling.textContent);
  if (!document.getElementById("explorer-style")) {
    const sheet = document.head.appendChild(document.createElement("style"));
    sheet.id = "explorer-style";
    sheet.textContent = style;
  }
  place.replaceChildren();
  make().render({ model: new Model(state), el: place });
  place.dataset.live = "";
}

/** Each explorer's script calls this when it is there, before the page goes on: no text moves. */
window.enlivenAll = () => {
  for (const place of document.querySelectorAll(".explorer:not([data-live])")) {
    if (place.dataset.explorer in window.explorers) enliven(place);
  }
};

/** The arrow keys reach what does not fit. */
function reachWhatIsWide() {
  for (const box of document.querySelectorAll("pre, .formula, .table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
}

/** The concordance shows the claims with every word of its box in them, and if asked only those that are corrected. */
function filterClaims(bar) {
  const [words, corrected] = bar.querySelectorAll("input");
  const status = bar.querySelector("[role=status]");
  const claims = [...document.querySelectorAll(".claim")].map((place) => ({
    place,
    text: place.textContent.toLowerCase(),
    isCorrected: place.querySelector(".correction") !== null,
  }));
  const update = () => {
    const wanted = words.value.toLowerCase().split(/\s+/);
    for (const { place, text, isCorrected } of claims) {
      place.hidden = (corrected.checked && !isCorrected) || !wanted.every((word) => text.includes(word));
    }
    for (const source of document.querySelectorAll("details:has(.claim)")) {
      source.parentElement.hidden = !source.querySelector(".claim:not([hidden])");
      source.open = corrected.checked || wanted.some(Boolean) || source.querySelector(":target") !== null;
    }
    status.textContent = `${claims.filter(({ place }) => !place.hidden).length} of ${claims.length} claims`;
  };
  bar.addEventListener("input", update);
  bar.hidden = false;
  update();
}

/** A button in each block of code puts it on the clipboard. */
function addCopyButtons() {
  for (const code of document.querySelectorAll("article div.highlight pre")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.onclick = async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    };
    code.before(button);
  }
}

/** Ctrl+K, on a Mac ⌘K, goes to the search box. */
document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "k") return;
  event.preventDefault();
  document.getElementById("__navigation").checked = true; // on a narrow page it stands in a drawer
  document.querySelector(".sidebar-search").focus();
});

document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll("p.caption[role=heading]")) caption.ariaLevel = 2; // Sphinx sets none
  for (const bar of document.querySelectorAll(".filter")) filterClaims(bar);
  if (navigator.clipboard) addCopyButtons(); // which a page that came unencrypted lacks
  reachWhatIsWide();
  document.fonts.ready.then(reachWhatIsWide); // formulas are wider in their own letters
});
