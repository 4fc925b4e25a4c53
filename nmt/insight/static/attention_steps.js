"use strict";

/** The steps of decoding, by word or by piece: a slider, the likeliest pieces of a step, and how uncertain it was. */
class Steps {
  /** `onStep(first, last)` is called with the numbers of the pieces whenever the step that is shown changes. */
  constructor(page, data, onStep) {
    Object.assign(this, { page, data, onStep, shown: { start: 0 } });
    Object.assign(this, { slider: byId("step"), strip: byId("step-pieces"), prefix: byId("step-prefix") });
    this.strip.dir = this.prefix.dir = direction(page.tgt);
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
  }

  /** Step by words or by pieces, from where the slider is. */
  setUnit(unit) {
    this.groups = this.data.rows("cross", unit);
    const entropies = this.groups.map((group) => this.stepsOf(group).reduce((sum, step) => sum + step.entropy, 0));
    const highest = Math.max(...entropies, 1e-9);
    this.strip.replaceChildren(...this.groups.map((_, index) => this.chip(index, entropies[index] / highest)));
    this.slider.max = this.groups.length - 1;
    this.show(this.groups.findIndex((group) => group.end > this.shown.start));
  }

  stepsOf({ start, end }) {
    return this.page.steps.slice(start, end);
  }

  /** A word or a piece above a bar for its entropy; clicking it is moving the slider. */
  chip(index, share) {
    const { label, start } = this.groups[index];
    const words = this.page.out_words;
    const bar = element("span", { class: "chip-bar" });
    bar.style.width = `${100 * share}%`;
    const kind = words[start] === words[start - 1] ? "chip" : "chip begins";
    const chip = element("button", { type: "button", class: kind, tabindex: "-1" }, tokenElement(label), bar);
    chip.addEventListener("click", () => this.show(index));
    return chip;
  }

  show(index) {
    this.shown = this.groups[index];
    [...this.strip.children].forEach((chip, i) => chip.classList.toggle("at", i === index));
    const number = `Step ${index + 1} of ${this.groups.length}`;
    this.slider.value = index;
    this.slider.setAttribute("aria-valuetext", `${number}: ${plain(this.shown.label)}`);
    byId("step-number").textContent = number;
    const before = this.page.steps.slice(0, this.shown.start).map((one) => one.token);
    const muted = element("span", { class: "muted" }, joined(before));
    this.prefix.replaceChildren(muted, element("strong", {}, plain(this.shown.label)));
    byId("candidates").replaceChildren(...this.stepsOf(this.shown).map((step, i, all) => this.choice(step, i, all)));
    this.onStep(this.shown.start, this.shown.end - 1);
  }

  /** The likeliest pieces of a step; a word of several pieces has several steps. */
  choice(step, i, all) {
    const equal = Math.exp(step.entropy);
    const number = all.length > 1 ? `Piece ${i + 1} of ${all.length}: as` : "As";
    const said = element("p", {}, `${number} uncertain as a choice among `);
    said.append(element("strong", {}, equal.toFixed(equal < 10 ? 1 : 0)));
    said.append(` equally likely pieces (entropy: ${(step.entropy / Math.LN2).toFixed(2)} bits).`);
    const isAmong = step.candidates.some((one) => one.id === step.id);
    const shares = (isAmong ? step.candidates : [...step.candidates, step]).map(({ token, id, log_prob }) => {
      return { label: token, share: Math.exp(log_prob), mark: id === step.id ? this.data.mark : "" };
    });
    return element("div", {}, said, shareList("The ten likeliest next pieces", shares));
  }
}

/** Pieces as a text that ends in a space where a word follows; SentencePiece's marks become spaces. */
function joined(tokens) {
  const hasMarks = tokens.some((token) => token.startsWith("▁"));
  const text = hasMarks ? withoutMarks(tokens.join("")).trimStart() : tokens.join(" ");
  return `${text} `;
}
