"use strict";

const LINE_HEIGHT = 26; // pixels; what can be tapped is at least 24 high

/** What is read at the left, what reads at the right, and a line for every weight: the stronger, the more opaque. */
class LinesView {
  /** `on.preview(row, column)` and `on.choose(row, column)`; either may be null. */
  constructor(box, on) {
    Object.assign(this, { box, on, matrix: null, row: null, column: null });
    this.all = element("canvas", { class: "lines-all", "aria-hidden": "true" });
    this.chosen = element("canvas", { class: "lines-chosen", "aria-hidden": "true" });
    this.left = element("div", { class: "lines-side lines-left", role: "group" });
    this.right = element("div", { class: "lines-side", role: "group" });
    this.middle = element("div", { class: "lines-middle" }, this.all, this.chosen);
    box.replaceChildren(element("div", { class: "lines" }, this.left, this.middle, this.right));
    for (const side of [this.left, this.right]) this.listen(side);
    new ResizeObserver(() => this.matrix && this.draw()).observe(this.middle);
  }

  setMatrix(matrix, leftLabel, rightLabel) {
    const isNewAxes = this.matrix?.rows !== matrix.rows || this.matrix?.columns !== matrix.columns;
    this.matrix = matrix;
    this.left.setAttribute("aria-label", leftLabel);
    this.right.setAttribute("aria-label", rightLabel);
    if (isNewAxes) {
      this.left.replaceChildren(...matrix.columns.map(tokenButton));
      this.right.replaceChildren(...matrix.rows.map(tokenButton));
      this.moveTabStop(this.right.firstChild);
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

  moveTabStop(button) {
    this.box.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    button.setAttribute("tabindex", "0");
  }

  listen(side) {
    const cellOf = (target) => {
      const index = [...side.children].indexOf(target.closest("button"));
      return index < 0 ? null : side === this.right ? [index, null] : [null, index];
    };
    const preview = (event) => {
      const cell = cellOf(event.target);
      if (cell && event.pointerType !== "touch") this.on.preview(...cell);
    };
    side.addEventListener("pointerover", preview);
    side.addEventListener("pointerleave", () => this.on.preview(null, null));
    side.addEventListener("focusin", (event) => {
      this.moveTabStop(event.target);
      if (event.target.matches(":focus-visible")) preview(event);
    });
    side.addEventListener("focusout", () => this.on.preview(null, null));
    side.addEventListener("click", (event) => cellOf(event.target) && this.on.choose(...cellOf(event.target)));
    side.addEventListener("keydown", (event) => this.pressed(event, side));
  }

  pressed(event, side) {
    const index = [...side.children].indexOf(event.target);
    const other = { ArrowLeft: this.left, ArrowRight: this.right }[event.key];
    const to = { ArrowUp: index - 1, ArrowDown: index + 1, Home: 0, End: side.children.length - 1 }[event.key];
    const target = other ? other.children[Math.min(index, other.children.length - 1)] : side.children[to];
    if (!other && to === undefined) return;
    event.preventDefault();
    target?.focus();
  }
}

function tokenButton(group) {
  return element("button", { type: "button", tabindex: "-1" }, tokenElement(group.label));
}
