"use strict";

const NUM_SHOWN = 3; // source words, and alternatives, of a word

/** Both texts at the top: a word of the translation marks its source words, and shows what else it could be. */
class Headline {
  constructor(page, data) {
    Object.assign(this, { page, data });
    Object.assign(this, { src: byId("headline-src"), tgt: byId("headline-tgt"), box: byId("headline-word") });
    this.picture = page.picture ? new Picture(page.picture) : null;
    for (const part of [this.box, byId("headline-controls")]) part.hidden = false;
    follow(this.tgt, (index) => this.show(index ?? this.chosen), (index) => this.choose(index));
    this.tgt.addEventListener("keydown", (event) => {
      const at = this.buttons.indexOf(event.target);
      const [left, right] = direction(page.tgt) === "rtl" ? [at + 1, at - 1] : [at - 1, at + 1];
      const to = { ArrowLeft: left, ArrowRight: right, Home: 0, End: this.buttons.length - 1 };
      moveFocus(event, Object.fromEntries(Object.entries(to).map(([key, index]) => [key, this.buttons[index]])));
    });
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
    this.buttons = this.words.map((group, i) => this.button(group, i));
    this.tgt.replaceChildren(...spaced(this.page.tgt, this.words, this.buttons));
    this.choose(this.chances.indexOf(Math.min(...this.chances)));
    moveTabStop(this.tgt, this.buttons[this.chosen]);
  }

  /** A word whose tint grows with its uncertainty; below a half it is dotted, too. */
  button(group, index) {
    const made = element("button", { type: "button", class: "tgt-word", tabindex: "-1" }, plain(group.label));
    made.style.setProperty("--tint", `${Math.round(40 * (1 - this.chances[index]))}%`);
    made.classList.toggle("unsure", this.chances[index] < 0.5);
    made.shows = index;
    return made;
  }

  choose(index) {
    this.chosen = index;
    this.show(index);
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
    const own = { label: group.label, share: this.chances[index], mark: this.data.mark };
    const chances = [own, ...others.map((one) => ({ label: one.label, share: one.chance }))];
    chances.sort((a, b) => b.share - a.share);
    const said = element("p", {}, quoted(group.label), " had a probability of ");
    said.append(element("strong", {}, percent(own.share)), ".");
    const shares = read.map(({ index: column, weight }) => ({
      label: this.matrix.columns[column].label,
      share: weight,
    }));
    const from = this.picture ? this.seen(index) : shareList("Source words of this word", shares);
    const left = element("div", {}, element("p", { class: "muted" }, "It depends most on"), from);
    const right = element("div", {}, element("p", { class: "muted" }, "It could have been"));
    right.append(shareList("Alternatives to this word", chances));
    return this.box.replaceChildren(said, element("div", { class: "word-lists" }, left, right));
  }

  seen(index) {
    const weights = this.matrix.columns.map((_, column) => this.matrix.at(index, column));
    return this.picture.shown(weights, `What ${plain(this.words[index].label)} depends on`);
  }
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
