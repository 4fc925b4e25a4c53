"use strict";

const LONG = 280; // characters of a translation; a longer one scrolls away

/** For every word, or piece, the next-best choices, and the translation that would have followed. */
class WhatIf {
  constructor(page, data, box, result) {
    Object.assign(this, { page, data, box, result, chosen: null });
    box.dir = direction(page.tgt);
    box.lang = page.tgt_lang.replace("_", "-"); // for hyphens
    result.classList.toggle("stays", page.tgt.length < LONG);
    follow(box, (alternative) => this.show(alternative ?? this.chosen), (alternative) => this.choose(alternative));
    box.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** Show words or pieces; the closest call is chosen. */
  setUnit(unit) {
    this.chosen = null;
    this.box.replaceChildren(...this.data.rows("cross", unit).map((group) => this.column(group, unit)));
    this.buttons = [...this.box.querySelectorAll("button")];
    moveTabStop(this.box, this.buttons[0]);
    const all = this.buttons.map((button) => button.shows);
    this.choose(all.reduce((best, one) => (best && best.chance >= one.chance ? best : one), null));
  }

  column(group, unit) {
    const own = Math.exp(logProb(this.page, group));
    const was = element("div", { class: "was" }, tokenElement(group.label), " ", share(own));
    const made = element("div", { class: "what-if-column" }, was);
    const shown = alternatives(this.page, group, unit).slice(0, NUM_SHOWN);
    for (const alternative of shown) {
      const button = element("button", { type: "button", tabindex: "-1" }, tokenElement(alternative.label), " ");
      const instead = element("span", { class: "hidden-text" }, ` instead of ${plain(group.label)}`);
      button.append(share(alternative.chance), instead);
      button.shows = { ...alternative, was: group.label, own };
      made.append(button);
    }
    const rest = shown.reduce((sum, one) => sum - one.chance, 1 - own);
    if (rest >= MIN_REST) made.append(element("div", { class: "share" }, `all others: ${percent(rest)}`));
    return made;
  }

  choose(alternative) {
    this.chosen = alternative === this.chosen ? null : alternative;
    for (const one of this.buttons) one.setAttribute("aria-pressed", String(one.shows === this.chosen));
    this.show(this.chosen);
  }

  /** The alternative's translation; what differs from the page's translation is marked. */
  show(alternative) {
    if (!alternative) {
      this.result.replaceChildren(element("p", { class: "muted" }, "Choose one to see what would have followed it."));
      return;
    }
    const { page } = this;
    const [before, after] = differences(wordsOf(page.tgt, page.tgt_lang), wordsOf(alternative.text, page.tgt_lang));
    const said = element("p", { class: "what-if-head" }, "With ", quoted(alternative.label));
    said.append(` (${percent(alternative.chance)}) instead of `, quoted(alternative.was));
    said.append(` (${percent(alternative.own)}):`);
    const score = element("p", { class: "muted" }, this.compared(alternative.score));
    this.result.replaceChildren(said, marked(after, "ins", page.tgt_lang), marked(before, "del", page.tgt_lang), score);
  }

  /** What the score says of another translation. */
  compared(score) {
    const { search, is_own, steps } = this.page;
    const best = search.nodes.find((node) => node.id === search.best);
    const length = Math.max(1, steps.length - 1); // without the end
    const sum = logProb(this.page, { start: 0, end: steps.length });
    const own = is_own && best ? best.score : sum / length ** search.length_penalty;
    const likes = decimal(score) === decimal(own) ? "it as much" : score < own ? "it less" : "it more";
    return `The model likes ${likes}: score ${decimal(score)} instead of ${decimal(own)} (nearer to 0 is better).`;
  }

  pressed(event) {
    const columns = [...this.box.children].map((column) => [...column.querySelectorAll("button")]);
    const reached = columns.filter((column) => column.length);
    const at = reached.findIndex((column) => column.includes(event.target));
    const place = reached[at].indexOf(event.target);
    const forward = this.box.dir === "rtl" ? -1 : 1;
    const beside = (step) => reached[at + step]?.[Math.min(place, reached[at + step].length - 1)];
    moveFocus(event, {
      ArrowUp: reached[at][place - 1],
      ArrowDown: reached[at][place + 1],
      ArrowLeft: beside(-forward),
      ArrowRight: beside(forward),
      Home: this.buttons[0],
      End: this.buttons.at(-1),
    });
  }
}

function share(chance) {
  return element("span", { class: "share" }, percent(chance));
}

/** A text's words and what is between them, also in languages without spaces. */
function wordsOf(text, language) {
  if (!Intl.Segmenter) return text.split(/(?<=\s)/);
  const locale = Intl.Segmenter.supportedLocalesOf([language.replace("_", "-") || "en"])[0] ?? "en";
  return [...new Intl.Segmenter(locale, { granularity: "word" }).segment(text)].map((part) => part.segment);
}

/** Two lists of words, each as [{word, isCommon}], by their longest common subsequence. */
function differences(before, after) {
  const longest = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      const skipping = Math.max(longest[i + 1][j], longest[i][j + 1]);
      longest[i][j] = before[i] === after[j] ? longest[i + 1][j + 1] + 1 : skipping;
    }
  }
  const [old, now] = [before, after].map((words) => words.map((word) => ({ word, isCommon: false })));
  for (let i = 0, j = 0; i < before.length && j < after.length; ) {
    if (before[i] === after[j]) old[i++].isCommon = now[j++].isCommon = true;
    else if (longest[i + 1][j] >= longest[i][j + 1]) i++;
    else j++;
  }
  return [old, now];
}

/** A line of text whose words that are not common are in `ins` or `del` elements; neighbours share one. */
function marked(words, name, language) {
  const line = element("p", { class: `what-if-line ${name}`, dir: "auto", lang: language || null });
  let part = null;
  words.forEach(({ word, isCommon }, i) => {
    const isBetween = word.trim() === "" && words[i - 1]?.isCommon === false && words[i + 1]?.isCommon === false;
    if (isCommon && !isBetween) {
      part = null;
      line.append(word);
    } else {
      part ??= line.appendChild(element(name));
      part.append(word);
    }
  });
  return line;
}
