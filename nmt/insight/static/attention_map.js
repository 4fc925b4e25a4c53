"use strict";

/** Colours of weights from 0 to 1, from the style sheet's `--NAME-0` to `--NAME-4`. They follow the square root. */
class Palette {
  constructor(name) {
    this.name = name;
    this.read();
  }

  /** Read again after a change between light and dark. */
  read() {
    const style = getComputedStyle(document.documentElement);
    const stops = [0, 1, 2, 3, 4].map((i) => {
      const hex = style.getPropertyValue(`--${this.name}-${i}`).trim();
      return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    });
    this.colours = new Uint8ClampedArray(256 * 3);
    for (let i = 0; i < 256; i++) {
      const place = Math.min((i / 255) * 4, 3.999);
      const [low, high] = [stops[Math.floor(place)], stops[Math.floor(place) + 1]];
      for (let c = 0; c < 3; c++) this.colours[3 * i + c] = low[c] + (place % 1) * (high[c] - low[c]);
    }
  }

  /** Draw one pixel a cell; the style sheet enlarges them. Masked cells stay transparent. */
  paint(canvas, matrix) {
    const [height, width] = [matrix.rows.length, matrix.columns.length];
    canvas.width = width;
    canvas.height = height;
    const image = new ImageData(width, height);
    for (let i = 0; i < height; i++) {
      for (let j = 0; j < width && !matrix.isMasked(i, j); j++) {
        const colour = 3 * Math.round(255 * Math.sqrt(Math.min(1, matrix.values[i * width + j])));
        image.data.set(this.colours.subarray(colour, colour + 3), 4 * (i * width + j));
        image.data[4 * (i * width + j) + 3] = 255;
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }
}

/** At most `size` rows and columns, each cell the largest weight of those that it shows: for thumbnails. */
function reduced(matrix, size) {
  const step = Math.max(1, Math.ceil(Math.max(matrix.rows.length, matrix.columns.length) / size));
  if (step === 1) return matrix;
  const every = (groups) => groups.filter((_, i) => i % step === 0);
  const [rows, columns] = [every(matrix.rows), every(matrix.columns)];
  const values = new Float32Array(rows.length * columns.length);
  matrix.values.forEach((weight, i) => {
    const row = Math.floor(Math.floor(i / matrix.columns.length) / step);
    const at = row * columns.length + Math.floor((i % matrix.columns.length) / step);
    values[at] = Math.max(values[at], weight);
  });
  const firstMasked = rows.map((_, i) => {
    const last = Math.min((i + 1) * step, matrix.rows.length) - 1;
    return Math.ceil(matrix.firstMasked[last] / step);
  });
  return new Matrix(rows, columns, values, firstMasked);
}

/** An element that hatches the masked cells of a matrix, or hides where it has none. */
function hatch(layer, matrix) {
  const [height, width] = [matrix.rows.length, matrix.columns.length];
  layer.hidden = matrix.firstMasked.every((first) => first >= width);
  const steps = matrix.firstMasked.flatMap((first, i) => {
    const x = `${(100 * first) / width}%`;
    return [`${x} ${(100 * i) / height}%`, `${x} ${(100 * (i + 1)) / height}%`];
  });
  layer.style.clipPath = `polygon(${[...steps, "100% 100%", "100% 0%"].join(",")})`;
}

/** A heat map with its tokens: hovering and the arrow keys preview a cell, clicking and Enter choose it. */
class HeatMap {
  /** `on.preview(cell)` and `on.choose(cell)`, a cell being [row, column], either of which may be null. */
  constructor(box, palette, label, on) {
    Object.assign(this, { box, palette, label, on, row: null, column: null, matrix: null });
    this.columnLabels = element("div", { class: "map-columns" });
    this.rowLabels = element("div", { class: "map-rows" });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.hatching = element("div", { class: "hatched" });
    this.rowBand = element("div", { class: "band row" });
    this.columnBand = element("div", { class: "band column" });
    this.cells = element("div", { class: "map-cells", tabindex: "0", role: "application" });
    this.cells.append(this.canvas, this.hatching, element("div", { class: "gaps" }), this.rowBand, this.columnBand);
    this.map = element("div", { class: "map" }, element("div", { class: "map-corner" }), this.columnLabels);
    this.map.append(this.rowLabels, this.cells);
    box.replaceChildren(this.map);
    this.listen();
    new ResizeObserver(() => this.fit()).observe(box);
  }

  setMatrix(matrix) {
    const isNewAxes = this.matrix?.rows !== matrix.rows || this.matrix?.columns !== matrix.columns;
    this.matrix = matrix;
    if (isNewAxes) {
      this.rowLabels.replaceChildren(...matrix.rows.map((group, row) => axisLabel(group, [row, null])));
      this.columnLabels.replaceChildren(...matrix.columns.map((group, column) => axisLabel(group, [null, column])));
      this.map.style.setProperty("--rows", matrix.rows.length);
      this.map.style.setProperty("--columns", matrix.columns.length);
      this.fit();
    }
    this.paint();
    this.highlight(null, null);
  }

  paint() {
    this.palette.paint(this.canvas, this.matrix);
    hatch(this.hatching, this.matrix);
    this.cells.setAttribute("aria-label", `${this.label}. Arrow keys move from cell to cell, Enter keeps one.`);
  }

  /** Cells as large as the box allows, within limits; a larger map scrolls in its box. */
  fit() {
    if (!this.matrix || !this.box.clientWidth) return;
    const space = this.box.clientWidth - this.rowLabels.offsetWidth - 2;
    const most = Math.max(this.matrix.columns.length, 1);
    this.cell = Math.max(13, Math.min(30, Math.floor(space / most)));
    this.map.style.setProperty("--cell", `${this.cell}px`);
  }

  highlight(row, column) {
    for (const [labels, old, now] of [
      [this.rowLabels, this.row, row],
      [this.columnLabels, this.column, column],
    ]) {
      labels.children[old]?.classList.remove("at");
      labels.children[now]?.classList.add("at");
    }
    Object.assign(this, { row, column });
    this.rowBand.hidden = row === null;
    this.columnBand.hidden = column === null;
    this.map.style.setProperty("--row", row);
    this.map.style.setProperty("--column", column);
  }

  /** Scroll the box, never the page, until the highlighted cell is seen. */
  reveal() {
    const { box, cell } = this;
    const [left, top] = [this.rowLabels.offsetWidth, this.columnLabels.offsetHeight];
    const scrolled = (position, start, label, size) =>
      Math.min(Math.max(position, start + cell + label - size + 4), start);
    if (this.column !== null) box.scrollLeft = scrolled(box.scrollLeft, this.column * cell, left, box.clientWidth);
    if (this.row !== null) box.scrollTop = scrolled(box.scrollTop, this.row * cell, top, box.clientHeight);
  }

  listen() {
    const cellAt = (event) => {
      const area = this.cells.getBoundingClientRect();
      const limit = (value, size) => Math.max(0, Math.min(size - 1, Math.floor(value / this.cell)));
      const row = limit(event.clientY - area.top, this.matrix.rows.length);
      return [row, limit(event.clientX - area.left, this.matrix.columns.length)];
    };
    this.cells.addEventListener("pointermove", (event) => {
      const [row, column] = cellAt(event);
      if (event.pointerType !== "touch" && (row !== this.row || column !== this.column)) this.on.preview([row, column]);
    });
    this.cells.addEventListener("click", (event) => this.on.choose(cellAt(event)));
    this.map.addEventListener("pointerleave", () => this.on.preview(null));
    this.cells.addEventListener("focus", () => {
      if (this.cells.matches(":focus-visible")) this.on.preview([this.row ?? 0, this.column ?? 0]);
    });
    this.cells.addEventListener("blur", () => this.on.preview(null));
    this.cells.addEventListener("keydown", (event) => this.pressed(event));
    for (const labels of [this.rowLabels, this.columnLabels]) follow(labels, this.on.preview, this.on.choose);
  }

  pressed(event) {
    const [row, column] = [this.row ?? 0, this.column ?? 0];
    const [numRows, numColumns] = [this.matrix.rows.length, this.matrix.columns.length];
    const moves = {
      ArrowUp: [Math.max(0, row - 1), column],
      ArrowDown: [Math.min(numRows - 1, row + 1), column],
      ArrowLeft: [row, Math.max(0, column - 1)],
      ArrowRight: [row, Math.min(numColumns - 1, column + 1)],
      Home: [row, 0],
      End: [row, numColumns - 1],
    };
    if (moves[event.key]) {
      this.on.preview(moves[event.key]);
      this.reveal();
    } else if (event.key === "Enter" || event.key === " ") {
      this.on.choose([row, column]);
    } else {
      return;
    }
    event.preventDefault();
  }
}

function axisLabel(group, cell) {
  const upright = /^[▁\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{P}]+$/u;
  const shown = element("span", { class: upright.test(group.label) ? "label upright" : "label" });
  shown.append(tokenElement(group.label));
  shown.shows = cell;
  return shown;
}
