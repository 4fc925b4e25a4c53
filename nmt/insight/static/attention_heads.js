"use strict";

const THUMBNAIL_CELLS = 64;

/** All heads of a kind as small maps: a row a layer, its mean last, and the mean of all. They are drawn when seen. */
class HeadGrid {
  /** `on.preview(head)` and `on.choose(head)`, a head being {layer, head} with null for a mean, or null for none. */
  constructor(box, palette, on) {
    Object.assign(this, { box, palette, on, buttons: [] });
    follow(box, on.preview, on.choose);
    box.addEventListener("keydown", (event) => this.pressed(event));
    addEventListener("beforeprint", () => this.buttons.forEach((button) => this.paint(button)));
  }

  /** `matrixOf(layer, head)` is called for a head when its thumbnail is first seen. */
  setKind(numLayers, numHeads, matrixOf) {
    this.matrixOf = matrixOf;
    this.numColumns = numHeads + 1;
    this.observer?.disconnect();
    this.observer = new IntersectionObserver((entries) => {
      for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
        this.observer.unobserve(target);
        this.paint(target);
      }
    });
    const numbers = Array.from({ length: numHeads }, (_, head) => headName(head + 1));
    const names = [headName(""), ...numbers, headName("mean")];
    const rows = Array.from({ length: numLayers }, (_, layer) => [
      headName(layer + 1, "layer"),
      ...Array.from({ length: numHeads }, (_, head) => this.button(layer, head)),
      this.button(layer, null),
    ]);
    const all = [headName("mean of all heads", "heads-all"), this.button(null, null)];
    this.box.style.setProperty("--heads", this.numColumns);
    this.box.replaceChildren(...names, ...rows.flat(), ...all);
    this.buttons = [...this.box.querySelectorAll("button")];
    for (const button of this.buttons) this.observer.observe(button);
  }

  button(layer, head) {
    const label = nameOfHead({ layer, head });
    const made = element("button", { type: "button", "aria-label": label, title: label, tabindex: "-1" });
    made.append(element("canvas", { "aria-hidden": "true" }), element("span", { class: "hatched", hidden: true }));
    made.shows = { layer, head };
    return made;
  }

  paint(button) {
    const matrix = reduced(this.matrixOf(button.shows.layer, button.shows.head), THUMBNAIL_CELLS);
    this.palette.paint(button.firstChild, matrix);
    hatch(button.lastChild, matrix);
    button.isPainted = true;
  }

  repaint() {
    for (const button of this.buttons.filter((one) => one.isPainted)) this.paint(button);
  }

  /** Mark what is chosen, and what is shown, which differs while the pointer is over another head. */
  mark(chosen, shown) {
    for (const button of this.buttons) {
      const isChosen = sameHead(button.shows, chosen);
      button.setAttribute("aria-pressed", String(isChosen));
      button.setAttribute("tabindex", isChosen ? "0" : "-1");
      button.classList.toggle("at", sameHead(button.shows, shown));
    }
  }

  pressed(event) {
    const index = this.buttons.indexOf(event.target);
    const last = this.buttons.length - 1;
    const target = moveFocus(event, {
      ArrowLeft: this.buttons[index - 1],
      ArrowRight: this.buttons[index + 1],
      ArrowUp: this.buttons[index === last ? last - 1 : index - this.numColumns],
      ArrowDown: this.buttons[index >= last - this.numColumns ? last : index + this.numColumns],
      Home: this.buttons[0],
      End: this.buttons[last],
    });
    if (target) this.on.choose(target.shows);
  }
}

function headName(name, kind = "") {
  return element("span", { class: `heads-name ${kind}` }, String(name));
}

function sameHead(one, other) {
  return one.layer === other.layer && one.head === other.head;
}

function nameOfHead({ layer, head }) {
  if (layer === null) return "Mean of all heads";
  return head === null ? `Layer ${layer + 1}, mean of its heads` : `Layer ${layer + 1}, head ${head + 1}`;
}
