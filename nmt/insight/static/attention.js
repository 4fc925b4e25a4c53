"use strict";

const EXPLAINED = {
  cross: (unit) => `Rows: the ${unit} of the translation. Columns: the source ${unit} that are read to predict them.`,
  encoder: (unit) => `Rows: the source ${unit} that read. Columns: the source ${unit} that they read, all of them.`,
  decoder: (unit) => `Rows: the ${unit} that are predicted. Columns: the ${unit} so far. Later ones are masked.`,
};
const SIDES = {
  cross: ["Source", "Translation"],
  encoder: ["Is read", "Reads"],
  decoder: ["Read so far", "Is predicted"],
};

/** What is shown: a kind, words or pieces, a head and a cell. Previews last while the pointer or the focus is there. */
class AttentionPage {
  constructor(page, bytes) {
    this.page = page;
    this.data = new AttentionData(page, bytes);
    this.palettes = { map: new Palette("map"), gradient: new Palette("gradient") };
    this.kind = "cross";
    this.head = { layer: this.data.numLayers("cross") - 1, head: null };
    this.previewHead = null;
    this.cell = [null, null];
    this.previewCell = [null, null];
    const on = {
      preview: (row, column) => this.setPreview(row, column),
      choose: (row, column) => this.chooseCell(row, column),
    };
    const box = (id) => document.getElementById(id);
    this.heads = new HeadGrid(box("heads"), this.palettes.map, {
      preview: (head) => this.setPreviewHead(head),
      choose: (head) => this.chooseHead(head),
    });
    this.map = new HeatMap(box("map"), this.palettes.map, "Attention", on);
    this.gradient = new HeatMap(box("gradient"), this.palettes.gradient, "Gradient times input", on);
    this.lines = new LinesView(box("lines"), on);
    this.pictures = page.picture ? new Pictures(box("pictures"), page.picture, on) : null;
    this.readout = box("readout");
    this.headline = new Headline(page, this.data);
    this.whatIf = new WhatIf(page, this.data, box("what-if"), box("what-if-result"));
    this.listen();
    this.setUnit("words");
  }

  /** The sections of the search, a task each, so that what is seen first answers while they are made. */
  async showChoices() {
    const box = (id) => document.getElementById(id);
    const nextTask = () => new Promise((resume) => setTimeout(resume));
    await nextTask();
    this.tree = new SearchTree(this.page.search, box("tree"), box("tree-readout"));
    await nextTask();
    this.steps = new Steps(this.page, (index) => this.tree.showStep(index));
  }

  listen() {
    const tabs = [...document.querySelectorAll("[role=tab]")];
    for (const tab of tabs) {
      tab.addEventListener("click", () => this.setKind(tab.dataset.kind));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
        this.setKind(next.dataset.kind);
        next.focus();
      });
    }
    for (const choice of document.querySelectorAll("[name=unit]")) {
      choice.addEventListener("change", () => this.setUnit(choice.value));
    }
    document.getElementById("show-pruned").addEventListener("change", (event) => {
      this.tree?.showPruned(event.target.checked);
    });
    document.getElementById("attention").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.chooseCell(null, null);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
  }

  setKind(kind) {
    this.kind = kind;
    const layer = Math.min(this.head.layer ?? 0, this.data.numLayers(kind) - 1);
    if (this.head.layer !== null) this.head = { ...this.head, layer };
    this.showKind();
  }

  setUnit(unit) {
    this.unit = document.documentElement.dataset.unit = unit;
    this.headline.setUnit(unit);
    this.whatIf.setUnit(unit);
    this.showKind();
  }

  /** After a change of what the rows and columns are. */
  showKind() {
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const isChosen = tab.dataset.kind === this.kind;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.setAttribute("tabindex", isChosen ? "0" : "-1");
    }
    document.getElementById("explained").textContent = EXPLAINED[this.kind](this.unit);
    const [left, right] = SIDES[this.kind];
    document.getElementById("lines-left").textContent = left;
    document.getElementById("lines-right").textContent = right;
    document.getElementById("gradient-figure").hidden = this.kind !== "cross";
    document.getElementById("map-figure").classList.toggle("alone", this.kind !== "cross");
    document.getElementById("masked-key").hidden = this.kind !== "decoder";
    this.cell = this.previewCell = [null, null];
    this.previewHead = null;
    this.matrixOf = (layer, head) => this.data.matrix(this.kind, layer, head, this.unit);
    this.heads.setKind(this.data.numLayers(this.kind), this.data.numHeads(this.kind), this.matrixOf);
    if (this.kind === "cross") this.gradient.setMatrix(this.data.gradients(this.unit));
    this.showHead();
  }

  setPreviewHead(head) {
    this.previewHead = head;
    this.showHead();
  }

  chooseHead(head) {
    this.head = head;
    this.previewHead = null;
    this.showHead();
  }

  showHead() {
    const shown = this.previewHead ?? this.head;
    this.heads.mark(this.head, shown);
    document.getElementById("head-name").textContent = nameOfHead(shown);
    const matrix = this.matrixOf(shown.layer, shown.head);
    this.pictures?.setMatrix(this.kind === "cross" ? matrix : null);
    if (matrix !== this.map.matrix) {
      this.map.setMatrix(matrix);
      this.lines.setMatrix(matrix, ...SIDES[this.kind]);
    }
    this.showCell();
  }

  setPreview(row, column) {
    this.previewCell = [row, column];
    this.showCell();
  }

  /** Keep a cell, a row or a column; choosing it again lets go of it. */
  chooseCell(row, column) {
    const isSame = row === this.cell[0] && column === this.cell[1];
    this.cell = isSame ? [null, null] : [row, column];
    this.previewCell = [null, null];
    this.showCell();
    if (this.cell.some((index) => index !== null)) {
      for (const view of [this.map, this.gradient, this.lines]) view.reveal();
    }
  }

  showCell() {
    const isPreview = this.previewCell.some((index) => index !== null);
    const [row, column] = isPreview ? this.previewCell : this.cell;
    this.map.highlight(row, column);
    this.gradient.highlight(row, column);
    this.lines.highlight(row, column);
    this.pictures?.highlight(row);
    this.readout.replaceChildren(...this.said(row, column));
  }

  /** The readout of a cell, a row, a column, or of nothing. */
  said(row, column) {
    const { matrix } = this.map;
    if (row === null && column === null) return ["Choose a label or a cell to read its weights."];
    if (column === null) {
      return [...this.reader(row), " reads ", ...this.list(matrix, "row", row), ".", ...this.compared(row)];
    }
    if (row === null) {
      return [quotedOne(matrix.columns, column), " is read by ", ...this.list(matrix, "column", column), "."];
    }
    const read = quotedOne(matrix.columns, column);
    if (matrix.isMasked(row, column)) return [...this.reader(row), " cannot read ", read, ": it comes later (masked)."];
    const weight = element("strong", {}, percent(matrix.at(row, column)));
    return [...this.reader(row), " reads ", weight, " from ", read, ".", ...this.compared(row, column)];
  }

  reader(row) {
    const label = quotedOne(this.map.matrix.rows, row);
    return this.kind === "encoder" ? [label] : ["Predicting ", label, ", the decoder"];
  }

  list(matrix, axis, index) {
    const groups = axis === "row" ? matrix.columns : matrix.rows;
    const largest = matrix.largest(axis, index, NUM_SHOWN);
    const said = largest.flatMap(({ index: other, weight }, i) => {
      const share = element("strong", {}, percent(weight));
      return [i ? ", " : "", quotedOne(groups, other), " ", share];
    });
    const rest = largest.reduce((sum, { weight }) => sum - weight, 1);
    // Weights sum to 1 in a row only. They are rounded, so there is a rest even where nothing else is read.
    return axis === "row" && largest.length < groups.length && rest >= 0.005
      ? [...said, ", all others: ", element("strong", {}, percent(rest))]
      : said;
  }

  compared(row, column = null) {
    if (this.kind !== "cross") return [];
    const { matrix } = this.gradient;
    const shown = element("span", { class: "gradient-readout" }, " Gradient times input: ");
    if (column === null) shown.append(...this.list(matrix, "row", row), ".");
    else shown.append(element("strong", {}, percent(matrix.at(row, column))), ".");
    return [shown];
  }

  recolour() {
    for (const palette of Object.values(this.palettes)) palette.read();
    this.heads.repaint();
    this.map.paint();
    if (this.gradient.matrix) this.gradient.paint();
    this.lines.draw();
  }
}

async function start() {
  if (typeof DecompressionStream === "undefined") {
    document.getElementById("too-old").hidden = false;
    return null;
  }
  const [json, weights] = await Promise.all(
    ["explanation", "weights"].map((id) => unpack(document.getElementById(id).textContent)),
  );
  const made = new AttentionPage(JSON.parse(new TextDecoder().decode(json)), weights);
  document.documentElement.dataset.interactive = Math.round(performance.now());
  await made.showChoices();
  document.documentElement.dataset.ready = Math.round(performance.now());
  return made;
}

const attentionPage = start();
