"use strict";

const NUM_SHOWN = 3; // source words, and alternatives, of a word

/** Both texts at the top: a word of the translation marks its source words, and shows what else it could be. */
class Headline {
  constructor(page, data) {
    Object.assign(this, { page, data });
    const box = (id) => document.getElementById(id);
    Object.assign(this, { src: box("headline-src"), tgt: box("headline-tgt"), box: box("headline-word") });
    this.picture = page.picture ? new Picture(page.picture) : null;
    for (const part of [this.box, box("headline-controls")]) part.hidden = false;
    this.listen();
  }

  /** Show words or pieces; the least certain one is chosen. */
  setUnit(unit) {
    this.unit = unit;
    this.matrix = this.data.gradients(unit);
    // Neither the end of the source nor that of the translation is part of the texts.
    this.words = this.matrix.rows.slice(0, -1);
    this.chances = this.words.map((group) => Math.exp(logProb(this.page, group)));
    const sources = this.matrix.columns.slice(0, -1);
    this.sources = sources.map((group) => element("span", { class: "src-word" }, plain(group.label)));
    if (!this.picture) this.src.replaceChildren(...spaced(this.page.src, sources, this.sources));
    this.buttons = this.words.map((group, i) => this.button(group, this.chances[i]));
    this.tgt.replaceChildren(...spaced(this.page.tgt, this.words, this.buttons));
    this.chosen = this.chances.indexOf(Math.min(...this.chances));
    this.moveTabStop(Math.max(0, this.chosen));
    this.show(this.chosen);
  }

  /** A word whose tint grows with its uncertainty; below a half it is dotted, too. */
  button(group, chance) {
    const made = element("button", { type: "button", class: "tgt-word", tabindex: "-1" }, plain(group.label));
    made.style.setProperty("--tint", `${Math.round(40 * (1 - chance))}%`);
    made.classList.toggle("unsure", chance < 0.5);
    return made;
  }

  /** Show the word of a number; -1 of an empty translation. */
  show(index) {
    this.buttons.forEach((button, i) => {
      button.classList.toggle("at", i === index);
      button.setAttribute("aria-pressed", String(i === this.chosen));
    });
    const group = this.words[index];
    if (!group) return this.box.replaceChildren("The translation is empty.");
    const read = this.matrix.largest("row", index, NUM_SHOWN);
    this.sources.forEach((source, column) => {
      source.style.setProperty("--tint", `${Math.round(40 * this.matrix.at(index, column))}%`);
      source.classList.toggle("at", read.some((one) => one.index === column && one.weight >= 0.1));
    });
    const others = alternatives(this.page, group, this.unit).slice(0, NUM_SHOWN);
    const own = { label: group.label, share: this.chances[index], isChosen: true };
    const chances = [own, ...others.map((one) => ({ label: one.label, share: one.chance }))];
    chances.sort((a, b) => b.share - a.share);
    const said = element("p", {}, quoted(group.label), " had a probability of ");
    said.append(element("strong", {}, percent(own.share)), ".");
    const shares = read.map(({ index: column, weight }) => ({
      label: this.matrix.columns[column].label,
      share: weight,
    }));
    const from = this.picture ? this.seen(index) : list(shareRows(shares), "Source words of this word");
    const left = element("div", {}, element("p", { class: "muted" }, "It depends most on"), from);
    const right = element("div", {}, element("p", { class: "muted" }, "It could have been"));
    right.append(list(shareRows(chances), "Alternatives to this word"));
    return this.box.replaceChildren(said, element("div", { class: "word-lists" }, left, right));
  }

  seen(index) {
    const weights = this.matrix.columns.map((_, column) => this.matrix.at(index, column));
    return this.picture.shown(weights, `What ${plain(this.words[index].label)} depends on`);
  }

  moveTabStop(index) {
    this.buttons.forEach((button, i) => button.setAttribute("tabindex", i === index ? "0" : "-1"));
  }

  listen() {
    const indexOf = (event) => this.buttons.indexOf(event.target.closest("button"));
    const preview = (event) => this.show(indexOf(event) < 0 ? this.chosen : indexOf(event));
    this.tgt.addEventListener("pointerover", (event) => event.pointerType !== "touch" && preview(event));
    this.tgt.addEventListener("pointerleave", () => this.show(this.chosen));
    this.tgt.addEventListener("focusin", (event) => {
      this.moveTabStop(indexOf(event));
      if (event.target.matches(":focus-visible")) preview(event);
    });
    this.tgt.addEventListener("focusout", () => this.show(this.chosen));
    this.tgt.addEventListener("click", (event) => {
      if (indexOf(event) < 0) return;
      this.chosen = indexOf(event);
      this.show(this.chosen);
    });
    this.tgt.addEventListener("keydown", (event) => {
      const forward = isRightToLeft(this.page.tgt) ? "ArrowLeft" : "ArrowRight";
      const step = { ArrowRight: -1, ArrowLeft: -1, [forward]: 1 }[event.key];
      const last = this.buttons.length - 1;
      const to = { Home: 0, End: last }[event.key] ?? (step && indexOf(event) + step);
      if (to === undefined) return;
      event.preventDefault();
      this.buttons[to]?.focus();
    });
  }
}

function list(rows, label) {
  return element("ul", { class: "candidates", "aria-label": label }, ...rows);
}

/** A text with an element in the place of each of its words, or these elements alone if they are not in the text. */
function spaced(text, words, elements) {
  const parts = [];
  let from = 0;
  for (const [i, { label }] of words.entries()) {
    const start = from + text.slice(from).search(/\S|$/);
    const word = withoutMarks(label).trim(); // nothing for a piece that is a space
    if (!text.startsWith(word, start)) return inARow(words, elements);
    parts.push(text.slice(from, start), elements[i]);
    from = start + word.length;
  }
  return [...parts, text.slice(from)]; // a long source is cut: the rest is text, too
}

function inARow(words, elements) {
  const hasMarks = words.some((word) => word.isSpaced);
  return elements.flatMap((made, i) => [i && (!hasMarks || words[i].isSpaced) ? " " : "", made]);
}
