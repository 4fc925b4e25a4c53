"use strict";

/** For every position the next-best pieces, and the translation that would have followed. */
class WhatIf {
  constructor(page, box, result) {
    Object.assign(this, { page, box, result, chosen: null });
    box.dir = isRightToLeft(page.tgt) ? "rtl" : "ltr";
    this.columns = page.steps.map((_, position) => page.what_if.filter((one) => one.position === position));
    box.replaceChildren(...page.steps.map((step, position) => this.column(step, position)));
    this.buttons = [...box.querySelectorAll("button")];
    this.moveTabStop(this.buttons[0]);
    box.addEventListener("focusin", (event) => {
      this.moveTabStop(event.target);
      if (event.target.matches(":focus-visible")) this.show(event.target.alternative);
    });
    box.addEventListener("focusout", () => this.show(this.chosen));
    box.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") this.show(event.target.closest("button")?.alternative ?? this.chosen);
    });
    box.addEventListener("pointerleave", () => this.show(this.chosen));
    box.addEventListener("click", (event) => this.choose(event.target.closest("button")));
    box.addEventListener("keydown", (event) => this.pressed(event));
    this.show(null);
    // The closest call first.
    const chance = (button) => button.alternative.log_prob;
    this.choose(this.buttons.reduce((best, one) => (best && chance(best) >= chance(one) ? best : one), null));
  }

  column(step, position) {
    const was = element("div", { class: "was" }, tokenElement(step.token), share(step.log_prob));
    const made = element("div", { class: "what-if-column" }, was);
    for (const alternative of this.columns[position]) {
      const label = `Position ${position + 1}: ${plain(alternative.token)} instead of ${plain(step.token)}`;
      const button = element("button", { type: "button", tabindex: "-1", "aria-label": label });
      button.append(tokenElement(alternative.token), share(alternative.log_prob));
      button.alternative = alternative;
      made.append(button);
    }
    return made;
  }

  choose(button) {
    if (!button) return;
    const isSame = button.alternative === this.chosen;
    for (const one of this.buttons) one.setAttribute("aria-pressed", String(one === button && !isSame));
    this.chosen = isSame ? null : button.alternative;
    this.show(this.chosen);
  }

  /** The alternative's translation; what differs from the page's translation is marked. */
  show(alternative) {
    if (!alternative) {
      this.result.replaceChildren(element("p", { class: "muted" }, "Choose a piece to see what would have followed it."));
      return;
    }
    const { page } = this;
    const step = page.steps[alternative.position];
    const [before, after] = differences(wordsOf(page.tgt, page.tgt_lang), wordsOf(alternative.text, page.tgt_lang));
    const said = element("p", { class: "what-if-head" }, "If position ", String(alternative.position + 1), " were ");
    said.append(quoted(alternative.token), ` (${percent(Math.exp(alternative.log_prob))}) instead of `);
    said.append(quoted(step.token), ` (${percent(Math.exp(step.log_prob))}):`);
    const score = element("p", { class: "muted" }, `Score ${decimal(alternative.score)}`);
    const best = page.search?.nodes.find((node) => node.id === page.search.best);
    if (best && page.is_own) score.append(`; that of the translation is ${decimal(best.score)}.`);
    this.result.replaceChildren(said, marked(after, "ins", page.tgt_lang), marked(before, "del", page.tgt_lang), score);
  }

  moveTabStop(button) {
    this.box.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    button?.setAttribute("tabindex", "0");
  }

  pressed(event) {
    const button = event.target;
    const column = button.parentElement;
    const forward = this.box.dir === "rtl" ? "ArrowLeft" : "ArrowRight";
    const place = [...column.children].indexOf(button);
    const beside = { true: column.nextElementSibling, false: column.previousElementSibling }[event.key === forward];
    const target = {
      ArrowUp: button.previousElementSibling,
      ArrowDown: button.nextElementSibling,
      ArrowLeft: beside?.children[place],
      ArrowRight: beside?.children[place],
      Home: this.buttons[0],
      End: this.buttons.at(-1),
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    if (target?.alternative) target.focus();
  }
}

function share(logProb) {
  return element("span", { class: "share" }, percent(Math.exp(logProb)));
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
