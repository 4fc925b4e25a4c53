"use strict";

const SHOWN = 112; // pixels of the screen, a side of a picture

/** The source picture, in which what has little weight is in the dark. */
class Picture {
  /** `picture`: {size, grid, rgb}: pixels and patches a side, and base64 of the pixels, row by row. */
  constructor(picture) {
    this.grid = picture.grid;
    const characters = atob(picture.rgb);
    const image = new ImageData(picture.size, picture.size);
    for (let i = 0; i < picture.size ** 2; i++) {
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = characters.charCodeAt(3 * i + c);
      image.data[4 * i + 3] = 255;
    }
    this.image = element("canvas", { width: picture.size, height: picture.size });
    this.image.getContext("2d").putImageData(image, 0, 0);
  }

  /** A canvas; the largest weight leaves its patch as bright as it is, and weight 0 a fifth of that. */
  shown(weights, label) {
    const canvas = element("canvas", { class: "patches", width: 2 * SHOWN, height: 2 * SHOWN, role: "img" });
    canvas.setAttribute("aria-label", label);
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, 0, 0, canvas.width, canvas.height);
    const [largest, side] = [Math.max(...weights, 1e-9), canvas.width / this.grid];
    weights.forEach((weight, i) => {
      context.fillStyle = `rgba(0, 0, 0, ${0.8 * (1 - weight / largest)})`;
      context.fillRect((i % this.grid) * side, Math.floor(i / this.grid) * side, side, side);
    });
    return canvas;
  }
}

/** The source picture once for each predicted word. */
class Pictures {
  constructor(box, picture, on) {
    Object.assign(this, { box, picture: new Picture(picture) });
    follow(box, on.preview, on.choose);
  }

  /** Draw a picture for each row of a matrix whose columns are the patches; null hides them. */
  setMatrix(matrix) {
    this.box.closest("figure").hidden = matrix === null;
    this.shown = matrix === null ? [] : matrix.rows.map((row, index) => this.shownRow(matrix, row, index));
    this.box.replaceChildren(...this.shown);
  }

  shownRow(matrix, row, index) {
    const weights = matrix.columns.map((_, column) => matrix.at(index, column));
    const canvas = this.picture.shown(weights, `Where it looks to predict ${plain(row.label)}`);
    const shown = element("button", { type: "button", class: "picture" }, canvas, tokenElement(row.label));
    shown.shows = [index, null];
    return shown;
  }

  highlight(row) {
    this.shown.forEach((shown, index) => shown.classList.toggle("chosen", index === row));
  }
}
