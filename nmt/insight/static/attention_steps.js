"use strict";

/** The steps of decoding: a slider, the likeliest next pieces of its step, and how uncertain the model was. */
class Steps {
  /** `onStep(index)` is called whenever the step that is shown changes. */
  constructor(page, onStep) {
    Object.assign(this, { page, onStep, index: -1 });
    this.slider = document.getElementById("step");
    this.strip = document.getElementById("step-pieces");
    this.slider.max = page.steps.length - 1;
    const highest = Math.max(...page.steps.map((step) => step.entropy), 1e-9);
    this.strip.dir = isRightToLeft(page.tgt) ? "rtl" : "ltr";
    this.strip.replaceChildren(...page.steps.map((step, index) => this.chip(step, index, highest)));
    const begins = (i) => page.out_words[i] !== page.out_words[i - 1];
    [...this.strip.children].forEach((chip, i) => chip.classList.toggle("begins", begins(i)));
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    this.show(0);
  }

  /** A piece above a bar for its step's entropy; clicking it is moving the slider. */
  chip(step, index, highest) {
    const bar = element("span", { class: "chip-bar" });
    bar.style.width = `${(100 * step.entropy) / highest}%`;
    const title = `Step ${index + 1}: ${bits(step.entropy)} bits`;
    const chip = element("button", { type: "button", class: "chip", tabindex: "-1", title });
    chip.append(tokenElement(step.token), bar);
    chip.addEventListener("click", () => this.show(index));
    return chip;
  }

  show(index) {
    if (index === this.index) return;
    this.strip.children[this.index]?.classList.remove("at");
    this.strip.children[index].classList.add("at");
    this.index = index;
    const { steps } = this.page;
    const step = steps[index];
    this.slider.value = index;
    this.slider.setAttribute("aria-valuetext", `step ${index + 1} of ${steps.length}: ${plain(step.token)}`);
    document.getElementById("step-number").textContent = `Step ${index + 1} of ${steps.length}`;
    const prefix = document.getElementById("step-prefix");
    prefix.dir = this.strip.dir;
    const before = steps.slice(0, index).map((one) => one.token);
    const muted = element("span", { class: "muted" }, joined(before));
    prefix.replaceChildren(muted, element("strong", {}, plain(step.token)));
    const equal = Math.exp(step.entropy);
    document.getElementById("entropy").replaceChildren(
      "As uncertain as a choice among ",
      element("strong", {}, equal.toFixed(equal < 10 ? 1 : 0)),
      ` equally likely pieces (entropy: ${bits(step.entropy)} bits).`,
    );
    document.getElementById("candidates").replaceChildren(...this.candidates(step));
    this.onStep(index);
  }

  candidates(step) {
    const isAmong = step.candidates.some((one) => one.id === step.id);
    const shown = isAmong ? step.candidates : [...step.candidates, step];
    const share = ({ token, id, log_prob }) => ({ label: token, share: Math.exp(log_prob), isChosen: id === step.id });
    return shareRows(shown.map(share));
  }
}

/** Nats as bits, with two decimals. */
function bits(nats) {
  return (nats / Math.LN2).toFixed(2);
}

/** Pieces as a text that ends in a space where a word follows; SentencePiece's marks become spaces. */
function joined(tokens) {
  const hasMarks = tokens.some((token) => token.startsWith("▁"));
  const text = hasMarks ? withoutMarks(tokens.join("")).trimStart() : tokens.join(" ");
  return `${text} `;
}
