"use strict";

/** The arrays of a page's bytes, in their order. */
const ARRAYS = ["encoder", "decoder", "cross", "gradients"];
const MIN_REST = 0.0005; // a smaller rest of a sum of 1 is rounding
/** Names of the positions that are no text. */
const SPECIAL = { "<s>": "start", "</s>": "end" };

/** Attention weights by kind, layer and head, of pieces or of words. Rows read, columns are read. */
class AttentionData {
  /** `page`: the page's JSON; `bytes`: its weights as uint8, 255 is 1, array after array. */
  constructor(page, bytes) {
    this.page = page;
    this.mark = page.is_own ? "chosen" : "given"; // of the translation's own words in lists
    page.tgt_tokens[0] = "<s>"; // some imported models begin with another piece
    this.arrays = {};
    this.made = new Map();
    let start = 0;
    for (const name of ARRAYS) {
      const shape = page.shapes[name];
      const end = start + shape.reduce((product, size) => product * size, 1);
      this.arrays[name] = { shape, bytes: bytes.subarray(start, end) };
      start = end;
    }
  }

  numLayers(kind) {
    return this.arrays[kind].shape[0];
  }

  numHeads(kind) {
    return this.arrays[kind].shape[1];
  }

  /** The weights of a head; of the mean of a layer's heads where `head` is null, of all heads where both are null. */
  matrix(kind, layer, head, unit) {
    const [layers, heads, numRows, numColumns] = this.arrays[kind].shape;
    const first = (layer ?? 0) * heads + (head ?? 0);
    const count = head !== null ? 1 : layer !== null ? heads : layers * heads;
    const isMasked = kind === "decoder";
    return this.remembered(`${kind} ${layer} ${head} ${unit}`, () => {
      const weights = meanOf(this.arrays[kind].bytes, first, count, numRows * numColumns);
      return grouped(weights, this.rows(kind, unit), this.columns(kind, unit), numColumns, isMasked);
    });
  }

  /** Gradient times input: for each predicted token its share of every source token. */
  gradients(unit) {
    const { shape, bytes } = this.arrays.gradients;
    return this.remembered(`gradients ${unit}`, () => {
      const weights = meanOf(bytes, 0, 1, bytes.length);
      return grouped(weights, this.rows("cross", unit), this.columns("cross", unit), shape[1], false);
    });
  }

  rows(kind, unit) {
    return this.groups(kind === "encoder" ? "src" : "out", unit);
  }

  columns(kind, unit) {
    return this.groups(kind === "decoder" ? "tgt" : "src", unit);
  }

  /** The same array for all matrices with these tokens, so that a figure sees that its axes stay. */
  groups(side, unit) {
    const make = () => groups(this.page[`${side}_tokens`], this.page[`${side}_words`], unit);
    return this.remembered(`${side} ${unit}`, make);
  }

  remembered(key, make) {
    if (!this.made.has(key)) this.made.set(key, make());
    return this.made.get(key);
  }
}

/** Weights between groups of pieces; `values` by row. The columns of row i from `firstMasked[i]` on are masked. */
class Matrix {
  constructor(rows, columns, values, firstMasked) {
    Object.assign(this, { rows, columns, values, firstMasked });
  }

  at(row, column) {
    return this.values[row * this.columns.length + column];
  }

  isMasked(row, column) {
    return column >= this.firstMasked[row];
  }

  /** The largest weights of a row, or of a column: [{index, weight}], at most `count`. */
  largest(axis, index, count) {
    const other = axis === "row" ? this.columns : this.rows;
    const weights = other.map((_, i) => ({
      index: i,
      weight: axis === "row" ? this.at(index, i) : this.at(i, index),
    }));
    return weights.sort((a, b) => b.weight - a.weight).slice(0, count);
  }
}

/** The pieces, or the words that they form: [{label, start, end, isSpaced}], `end` excluded. */
function groups(tokens, words, unit) {
  const isSpaced = (label) => label.startsWith("▁");
  if (unit === "pieces") {
    return tokens.map((label, start) => ({ label, start, end: start + 1, isSpaced: isSpaced(label) }));
  }
  const found = [];
  tokens.forEach((token, i) => {
    if (i > 0 && words[i] === words[i - 1]) {
      found.at(-1).label += token;
      found.at(-1).end = i + 1;
    } else {
      found.push({ label: token, start: i, end: i + 1, isSpaced: isSpaced(token) });
    }
  });
  return found.map((group) => ({ ...group, label: withoutMarks(group.label).trim() || group.label }));
}

/** A piece without SentencePiece's mark of a word's beginning; a word for the start and the end. */
function plain(token) {
  return SPECIAL[token] ?? (withoutMarks(token).trim() || token);
}

/** Pieces in a row as text: marks become spaces, and the bytes of whole characters these characters. */
function withoutMarks(pieces) {
  return pieces.replaceAll("▁", " ").replace(/(<0x[0-9A-F]{2}>)+/g, (run) => {
    const bytes = run.match(/[0-9A-F]{2}/g).map((byte) => parseInt(byte, 16));
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes));
    } catch {
      return run;
    }
  });
}

/** The mean of `count` arrays of `size` uint8 from the one numbered `first` on -> Float32Array from 0 to 1. */
function meanOf(bytes, first, count, size) {
  const mean = new Float32Array(size);
  for (let array = first; array < first + count; array++) {
    for (let i = 0, from = array * size; i < size; i++, from++) mean[i] += bytes[from];
  }
  return mean.map((sum) => sum / (255 * count));
}

/** Weights of pieces -> Matrix of groups: those of a group's columns are summed, those of its rows averaged. */
function grouped(weights, rows, columns, numColumns, isMasked) {
  const values = new Float32Array(rows.length * columns.length);
  rows.forEach((row, i) => {
    columns.forEach((column, j) => {
      let sum = 0;
      for (let r = row.start; r < row.end; r++) {
        for (let c = column.start; c < column.end; c++) sum += weights[r * numColumns + c];
      }
      values[i * columns.length + j] = sum / (row.end - row.start);
    });
  });
  // Row t reads the columns up to t; a group of rows reads what its last row reads.
  const firstMasked = rows.map((row) =>
    isMasked ? columns.filter((column) => column.start < row.end).length : columns.length,
  );
  return new Matrix(rows, columns, values, firstMasked);
}

/** 0.8312 -> "83%"; below ten per cent with a decimal. It never breaks into two lines. */
function percent(share) {
  if (share > 0 && share < 0.0005) return "<\u00a00.1%";
  return `${(100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0)}%`;
}

/** A number with two decimals and a real minus sign. */
function decimal(number) {
  return number.toFixed(2).replace("-", "−");
}

function byId(id) {
  return document.getElementById(id);
}

/** An element with attributes and children; `dataset`, `style` and listeners are set on the result. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== null && value !== false) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** A token as a page shows it: isolated from its surroundings' direction, its mark of a beginning in grey. */
function tokenElement(label) {
  if (SPECIAL[label]) return element("bdi", { class: "token special" }, SPECIAL[label]);
  const isMarked = label.startsWith("▁") && label.length > 1;
  const shown = element("bdi", { class: "token", dir: "auto" });
  if (isMarked) shown.append(element("span", { class: "mark" }, "▁"));
  shown.append(isMarked ? label.slice(1) : label);
  return shown;
}

/**
 * A list of probabilities, [{label, share, mark}], with a row for what is missing to 1. `mark` is what a row that
 * stands out is marked with: "chosen" by the model, or "given" to it.
 */
function shareList(name, shares) {
  const rest = 1 - shares.reduce((sum, one) => sum + one.share, 0);
  const rows = shares.map(({ label, share, mark }) => shareRow(tokenElement(label), share, mark));
  if (rest >= MIN_REST) rows.push(shareRow("all others", rest));
  return element("ul", { class: "candidates", "aria-label": name }, ...rows);
}

function shareRow(label, share, mark) {
  const bar = element("span", { class: "bar", "aria-hidden": "true" }, element("span"));
  bar.firstChild.style.width = `${100 * share}%`;
  const kind = mark ? "chosen" : typeof label === "string" ? "others" : null;
  const row = element("li", { class: kind }, element("span", { class: "candidate-name" }, label), bar);
  row.append(element("span", { class: "candidate-value" }, percent(share)));
  row.append(element("span", { class: "candidate-mark" }, mark ? `✓ ${mark}` : ""));
  return row;
}

/**
 * The alternatives of a group of pieces, likeliest first: what-ifs with their `chance` and `label`, without those
 * that say the same as the translation or as a likelier one.
 */
function alternatives(page, { label, start, end }, unit) {
  const texts = new Set([page.tgt]);
  const words = new Set([label]);
  const before = (position) => logProb(page, { start, end: position });
  return page.what_if
    .filter((one) => one.position >= start && one.position < end)
    .map((one) => ({ ...one, chance: Math.exp(before(one.position) + one.log_prob) }))
    .map((one) => ({ ...one, label: unit === "words" ? one.word : one.token }))
    .sort((a, b) => b.chance - a.chance)
    .filter((one) => !words.has(one.label) && !texts.has(one.text) && words.add(one.label) && texts.add(one.text));
}

/** The log-probability of the pieces of a group. */
function logProb(page, { start, end }) {
  return page.steps.slice(start, end).reduce((sum, step) => sum + step.log_prob, 0);
}

/** A quoted token in running text; the start and the end are not quoted. */
function quoted(label) {
  if (SPECIAL[label]) return element("em", {}, SPECIAL[label]);
  return element("span", {}, "“", element("bdi", { dir: "auto" }, plain(label)), "”");
}

/** One of several groups, quoted; of the second that reads the same, a small 2 says so. */
function quotedOne(groups, index) {
  const shown = quoted(groups[index].label);
  const alike = groups.filter((group) => plain(group.label) === plain(groups[index].label));
  if (alike.length > 1) shown.append(element("sub", {}, String(alike.indexOf(groups[index]) + 1)));
  return shown;
}

/** The direction of a text, by its first letter. */
function direction(text) {
  const first = text.match(/\p{L}/u)?.[0] ?? "";
  return /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}]/u.test(first) ? "rtl" : "ltr";
}

/**
 * Follow the pointer and the focus in a box: `preview` is called with what the element under them `shows`, with null
 * when they leave, and `choose` on a click. Tab comes back to the element that had the focus last.
 */
function follow(box, preview, choose) {
  const shown = (event) => event.target.closest("button, .node, .label")?.shows ?? null;
  box.addEventListener("pointerover", (event) => event.pointerType !== "touch" && preview(shown(event)));
  for (const end of ["pointerleave", "focusout"]) box.addEventListener(end, () => preview(null));
  box.addEventListener("focusin", (event) => {
    moveTabStop(box, event.target);
    if (event.target.matches(":focus-visible")) preview(shown(event));
  });
  box.addEventListener("click", (event) => shown(event) !== null && choose(shown(event)));
}

function moveTabStop(box, target) {
  box.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
  target?.setAttribute("tabindex", "0");
}

/** Move the focus to the element that `targets` has for the pressed key; returns it. */
function moveFocus(event, targets) {
  if (!(event.key in targets)) return null;
  event.preventDefault();
  targets[event.key]?.focus();
  return targets[event.key] ?? null;
}
