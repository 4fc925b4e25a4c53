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

const NO_CELL = [null, null];

/** What is shown: a kind, words or pieces, a head and a cell. Previews last while the pointer or the focus is there. */
class AttentionPage {
  constructor(page, bytes) {
    this.page = page;
    this.data = new AttentionData(page, bytes);
    this.palettes = { map: new Palette("map"), gradient: new Palette("gradient") };
    this.kind = "cross";
    this.head = { layer: this.data.numLayers("cross") - 1, head: null };
    this.previewHead = null;
    this.cell = NO_CELL;
    this.previewCell = null;
    const on = { preview: (cell) => this.setPreview(cell), choose: (cell) => this.chooseCell(cell) };
    this.heads = new HeadGrid(byId("heads"), this.palettes.map, {
      preview: (head) => this.setPreviewHead(head),
      choose: (head) => this.chooseHead(head),
    });
    this.map = new HeatMap(byId("map"), this.palettes.map, "Attention", on);
    this.gradient = new HeatMap(byId("gradient"), this.palettes.gradient, "Gradient times input", on);
    this.lines = new LinesView(byId("lines"), on);
    this.pictures = page.picture ? new Pictures(byId("pictures"), page.picture, on) : null;
    this.headline = new Headline(page, this.data);
    this.whatIf = new WhatIf(page, this.data, byId("what-if"), byId("what-if-result"));
    this.listen();
    this.setUnit("words");
  }

  /** The sections of the search, a task each, so that what is seen first answers while they are made. */
  async showChoices() {
    const nextTask = () => new Promise((resume) => setTimeout(resume));
    await nextTask();
    this.tree = new SearchTree(this.page.search, byId("tree"), byId("tree-readout"));
    await nextTask();
    this.steps = new Steps(this.page, this.data, (first, last) => this.tree.showSteps(first, last));
    this.steps.setUnit(this.unit);
  }

  listen() {
    const tabs = [...document.querySelectorAll("[role=tab]")];
    for (const tab of tabs) {
      tab.addEventListener("click", () => this.setKind(tab.dataset.kind));
      tab.addEventListener("keydown", (event) => {
        const at = tabs.indexOf(tab);
        const to = { ArrowRight: tabs[(at + 1) % tabs.length], ArrowLeft: tabs.at(at - 1) };
        if (moveFocus(event, to)) this.setKind(to[event.key].dataset.kind);
      });
    }
    for (const choice of document.querySelectorAll("[name=unit]")) {
      choice.addEventListener("change", () => this.setUnit(choice.value));
    }
    byId("show-pruned").addEventListener("change", (event) => {
      this.tree?.showPruned(event.target.checked);
    });
    byId("attention").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.chooseCell(NO_CELL);
    });
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.lines.draw()); // they would be missing on paper, which takes any colour
    for (const query of [dark, matchMedia("print")]) query.addEventListener("change", () => this.recolour());
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
    this.steps?.setUnit(unit);
    this.showKind();
  }

  /** After a change of what the rows and columns are. */
  showKind() {
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const isChosen = tab.dataset.kind === this.kind;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.setAttribute("tabindex", isChosen ? "0" : "-1");
    }
    byId("explained").textContent = EXPLAINED[this.kind](this.unit);
    const [left, right] = SIDES[this.kind];
    byId("lines-left").textContent = left;
    byId("lines-right").textContent = right;
    byId("gradient-figure").hidden = this.kind !== "cross";
    byId("map-figure").classList.toggle("alone", this.kind !== "cross");
    byId("masked-key").hidden = this.kind !== "decoder";
    this.cell = NO_CELL;
    this.previewCell = this.previewHead = null;
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
    byId("head-name").textContent = nameOfHead(shown);
    const matrix = this.matrixOf(shown.layer, shown.head);
    this.pictures?.setMatrix(this.kind === "cross" ? matrix : null);
    if (matrix !== this.map.matrix) {
      this.map.setMatrix(matrix);
      this.lines.setMatrix(matrix, ...SIDES[this.kind]);
    }
    this.showCell();
  }

  setPreview(cell) {
    this.previewCell = cell;
    this.showCell();
  }

  /** Keep a cell, a row or a column; choosing it again lets go of it. */
  chooseCell(cell) {
    this.cell = String(cell) === String(this.cell) ? NO_CELL : cell;
    this.previewCell = null;
    this.showCell();
    if (this.cell === NO_CELL) return;
    for (const view of [this.map, this.gradient, this.lines]) view.reveal();
  }

  showCell() {
    const [row, column] = this.previewCell ?? this.cell;
    this.map.highlight(row, column);
    this.gradient.highlight(row, column);
    this.lines.highlight(row, column);
    this.pictures?.highlight(row);
    byId("readout").replaceChildren(...this.said(row, column));
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
  }
}

async function start() {
  if (typeof DecompressionStream === "undefined") {
    byId("too-old").hidden = false;
    return null;
  }
  const [json, weights] = await Promise.all(
    ["explanation", "weights"].map((id) => unpack(byId(id).textContent)),
  );
  const made = new AttentionPage(JSON.parse(new TextDecoder().decode(json)), weights);
  document.documentElement.dataset.interactive = Math.round(performance.now());
  await made.showChoices();
  document.documentElement.dataset.ready = Math.round(performance.now());
  return made;
}

const attentionPage = start();
