"use strict";

const LINE_HEIGHT = 26; // pixels; what can be tapped is at least 24 high

/** What is read at the left, what reads at the right, and a line for every weight: the stronger, the more opaque. */
class LinesView {
  /** `on.preview(cell)` and `on.choose(cell)`, a cell being [row, column], either of which may be null. */
  constructor(box, on) {
    Object.assign(this, { box, matrix: null, row: null, column: null });
    this.all = element("canvas", { class: "lines-all", "aria-hidden": "true" });
    this.chosen = element("canvas", { class: "lines-chosen", "aria-hidden": "true" });
    this.left = element("div", { class: "lines-side lines-left", role: "group" });
    this.right = element("div", { class: "lines-side", role: "group" });
    this.middle = element("div", { class: "lines-middle" }, this.all, this.chosen);
    box.replaceChildren(element("div", { class: "lines" }, this.left, this.middle, this.right));
    follow(box, on.preview, on.choose);
    box.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(() => this.matrix && this.draw()).observe(this.middle);
  }

  setMatrix(matrix, leftLabel, rightLabel) {
    const isNewAxes = this.matrix?.rows !== matrix.rows || this.matrix?.columns !== matrix.columns;
    this.matrix = matrix;
    this.left.setAttribute("aria-label", leftLabel);
    this.right.setAttribute("aria-label", rightLabel);
    if (isNewAxes) {
      this.left.replaceChildren(...matrix.columns.map((group, column) => tokenButton(group, [null, column])));
      this.right.replaceChildren(...matrix.rows.map((group, row) => tokenButton(group, [row, null])));
      moveTabStop(this.box, this.right.firstChild);
    }
    this.draw();
  }

  draw() {
    const [width, height] = [this.middle.clientWidth, this.middle.clientHeight];
    const ratio = Math.min(devicePixelRatio, 2);
    for (const canvas of [this.all, this.chosen]) {
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      canvas.getContext("2d").scale(ratio, ratio);
    }
    const { rows, columns } = this.matrix;
    const context = this.all.getContext("2d");
    for (let row = 0; row < rows.length; row++) {
      for (let column = 0; column < columns.length; column++) this.line(context, row, column, 0.02, 1);
    }
    this.highlight(this.row, this.column);
  }

  /** One line, unless its weight is below `least`; its opacity grows with the weight to the power `contrast`. */
  line(context, row, column, least, contrast) {
    const weight = this.matrix.at(row, column);
    if (weight < least || this.matrix.isMasked(row, column)) return;
    const width = this.middle.clientWidth;
    const [from, to] = [(column + 0.5) * LINE_HEIGHT, (row + 0.5) * LINE_HEIGHT];
    context.strokeStyle = this.colour;
    context.globalAlpha = Math.min(1, 0.05 + 0.95 * weight ** contrast);
    context.lineWidth = 0.75 + 2.75 * weight;
    context.beginPath();
    context.moveTo(0, from);
    context.bezierCurveTo(width / 2, from, width / 2, to, width, to);
    context.stroke();
  }

  highlight(row, column) {
    for (const [side, old, now] of [
      [this.right, this.row, row],
      [this.left, this.column, column],
    ]) {
      side.children[old]?.classList.remove("at");
      side.children[now]?.classList.add("at");
    }
    Object.assign(this, { row, column });
    const isAny = row !== null || column !== null;
    this.box.classList.toggle("has-choice", isAny);
    const context = this.chosen.getContext("2d");
    context.clearRect(0, 0, this.chosen.width, this.chosen.height);
    if (!isAny) return;
    const { rows, columns } = this.matrix;
    const [firstRow, lastRow] = row === null ? [0, rows.length - 1] : [row, row];
    const [firstColumn, lastColumn] = column === null ? [0, columns.length - 1] : [column, column];
    for (let i = firstRow; i <= lastRow; i++) {
      for (let j = firstColumn; j <= lastColumn; j++) this.line(context, i, j, 0, 0.5);
    }
  }

  /** Scroll the box, never the page, until the highlighted token is seen. */
  reveal() {
    const top = (this.row ?? this.column ?? 0) * LINE_HEIGHT;
    this.box.scrollTop = Math.min(Math.max(this.box.scrollTop, top + LINE_HEIGHT - this.box.clientHeight), top);
  }

  get colour() {
    return getComputedStyle(this.box).getPropertyValue("--accent");
  }

  pressed(event) {
    const side = [...event.target.parentElement.children];
    const index = side.indexOf(event.target);
    const beside = ({ children }) => children[Math.min(index, children.length - 1)];
    moveFocus(event, {
      ArrowLeft: beside(this.left),
      ArrowRight: beside(this.right),
      ArrowUp: side[index - 1],
      ArrowDown: side[index + 1],
      Home: side[0],
      End: side.at(-1),
    });
  }
}

function tokenButton(group, cell) {
  const made = element("button", { type: "button", tabindex: "-1" }, tokenElement(group.label));
  made.shows = cell;
  return made;
}
