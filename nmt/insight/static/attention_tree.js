"use strict";

const SVG = "http://www.w3.org/2000/svg";
const ROW = 46; // pixels from node to node in a column
const NODE_HEIGHT = 36;
const GAP = 30; // between columns, for the edges
const MARGIN = 10;
const PREFIX = 16; // the last pieces of a path that the readout repeats

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** The beam search as a tree: a column a step, the best path along the top. No two edges cross. */
class SearchTree {
  constructor(search, box, readout) {
    Object.assign(this, { search, box, readout, chosen: null, steps: [0, 0], showsPruned: true });
    this.nodes = new Map(search.nodes.map((node) => [node.id, { ...node, children: [] }]));
    for (const node of this.nodes.values()) {
      node.from = node.parent === null ? null : this.nodes.get(node.parent);
      node.depth = node.from ? node.from.depth + 1 : 0;
      node.chance = node.from ? Math.exp(node.log_prob - node.from.log_prob) : 1;
      node.from?.children.push(node);
    }
    this.root = [...this.nodes.values()].find((node) => !node.from);
    this.root.token = "<s>"; // some imported models begin with another piece
    for (let node = this.nodes.get(search.best); node; node = node.from) node.isBest = true;
    for (const node of this.nodes.values()) {
      node.children.sort((a, b) => Number(b.isBest ?? 0) - Number(a.isBest ?? 0) || b.log_prob - a.log_prob);
    }
    this.listen();
    this.draw();
    this.choose(this.nodes.get(search.best) ?? this.root);
  }

  /** The nodes of each step, in the order of their parents. */
  columns() {
    const found = [[this.root]];
    while (found.at(-1).length) {
      const next = found.at(-1).flatMap((node) => node.children);
      found.push(next.filter((node) => this.showsPruned || node.state !== "pruned"));
    }
    return found.slice(0, -1);
  }

  draw() {
    const measure = document.createElement("canvas").getContext("2d");
    measure.font = `14px ${getComputedStyle(document.body).fontFamily}`;
    const columns = this.columns();
    let x = MARGIN;
    this.places = columns.map((column) => {
      const widest = Math.max(...column.map((node) => measure.measureText(node.token).width));
      const place = { x, width: Math.min(150, Math.max(54, widest + 26)) };
      x += place.width + GAP;
      return place;
    });
    const height = Math.max(...columns.map((column) => column.length)) * ROW + 2 * MARGIN;
    const width = x - GAP + MARGIN;
    this.edges = svg("g", {});
    const nodes = svg("g", {});
    this.band = svg("rect", { class: "tree-band", y: 0, height, rx: 6 });
    columns.forEach((column, depth) => {
      column.forEach((node, i) => {
        Object.assign(node, { ...this.places[depth], y: MARGIN + i * ROW, column, place: i });
        if (node.from) this.edges.append(this.edge(node));
        nodes.append(this.shape(node));
      });
    });
    const label = "Beam search. Right: to the best child. Left: to the parent. Up and down: within the step.";
    const viewBox = `0 0 ${width} ${height}`;
    const attributes = { width, height, viewBox, role: "tree", "aria-label": label };
    this.drawing = svg("svg", attributes, this.band, this.edges, nodes);
    this.box.replaceChildren(this.drawing);
    this.showSteps(...this.steps, false);
  }

  edge(node) {
    const [x0, x1] = [node.from.x + node.from.width, node.x];
    const [y0, y1] = [node.from.y + NODE_HEIGHT / 2, node.y + NODE_HEIGHT / 2];
    const middle = (x0 + x1) / 2;
    const path = `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`;
    node.line = svg("path", { d: path, class: `edge ${node.state} ${node.isBest ? "best" : ""}` });
    return node.line;
  }

  /** Kept: a rounded box. Pruned: a dashed one with a cross. Finished: a double one with a square. */
  shape(node) {
    const { x, y, width } = node;
    const outline = { x, y, width, height: NODE_HEIGHT, rx: node.state === "pruned" ? 0 : 9, class: "outline" };
    const piece = svg("text", { x: x + 9, y: y + 16, class: "piece" }, ...nodeLabel(node.token));
    const chance = svg("text", { x: x + 9, y: y + 30, class: "chance" }, node.from ? percent(node.chance) : "");
    const attributes = {
      class: `node ${node.state} ${node.isBest ? "best" : ""}`, role: "treeitem", tabindex: "-1",
      "data-id": node.id, "aria-level": node.depth + 1, "aria-label": this.describe(node),
    };
    node.group = svg("g", attributes, svg("rect", outline), piece, " ", chance);
    node.group.shows = node;
    const [right, top] = [x + width - 13, y + 7];
    if (node.state === "pruned") {
      node.group.append(svg("path", { d: `M${right} ${top}l6 6m0 -6l-6 6`, class: "cross" }));
    } else if (node.state === "finished") {
      const inner = { x: x + 3, y: y + 3, width: width - 6, height: NODE_HEIGHT - 6, rx: 6, class: "inner" };
      const end = { x: right - 1, y: top + 1, width: 6, height: 6, class: "end" };
      node.group.append(svg("rect", inner), svg("rect", end));
    }
    return node.group;
  }

  describe(node) {
    if (!node.from) return "start of the sentence";
    const best = node.id === this.search.best ? ", the model’s translation" : "";
    const all = `all pieces up to here ${percent(Math.exp(node.log_prob))}`;
    const score = `score ${decimal(node.score)} (nearer to 0 is better)`;
    return `${plain(node.token)} ${percent(node.chance)}, step ${node.depth}: ${node.state}${best}; ${all}; ${score}`;
  }

  /** Show a node: its path is emphasised, and the readout describes it. */
  show(node) {
    this.shown = node;
    for (const old of this.drawing.querySelectorAll(".on-path, .at")) old.classList.remove("on-path", "at");
    const tokens = [];
    for (let one = node; one.from; one = one.from) {
      tokens.unshift(one.token);
      for (const part of [one.line, one.group]) part.classList.add("on-path");
    }
    node.group.classList.add("at");
    const before = tokens.slice(0, -1);
    const text = before.length > PREFIX ? `… ${joined(before.slice(-PREFIX))}` : joined(before);
    const prefix = element("bdi", { dir: "auto" }, text);
    if (tokens.length) prefix.append(element("strong", {}, tokenElement(node.token)));
    this.readout.replaceChildren(prefix, element("span", { class: "muted" }, this.describe(node)));
  }

  choose(node) {
    this.chosen?.group.setAttribute("aria-selected", "false");
    this.chosen = node;
    moveTabStop(this.box, node.group);
    node.group.setAttribute("aria-selected", "true");
    this.show(node);
  }

  /** Mark the columns of the steps of decoding from `first` to `last`, and scroll to them unless they are in view. */
  showSteps(first, last, scrolls = true) {
    this.steps = [first, last];
    const places = this.places.slice(first + 1, last + 2);
    this.band.classList.toggle("hidden", !places.length);
    if (!places.length) return;
    const [start, end] = [places[0].x, places.at(-1).x + places.at(-1).width];
    this.band.setAttribute("x", start - 6);
    this.band.setAttribute("width", end - start + 12);
    const { scrollLeft, clientWidth } = this.box;
    const isSeen = start >= scrollLeft && end <= scrollLeft + clientWidth;
    if (scrolls && !isSeen) this.box.scrollLeft = start - clientWidth / 3;
  }

  showPruned(isShown) {
    this.showsPruned = isShown;
    let chosen = this.chosen;
    while (!isShown && chosen.state === "pruned") chosen = chosen.from;
    this.draw();
    this.choose(chosen);
  }

  listen() {
    follow(this.box, (node) => this.show(node ?? this.chosen), (node) => this.choose(node));
    this.box.addEventListener("keydown", (event) => {
      const node = this.chosen;
      const target = moveFocus(event, {
        ArrowRight: node.children.find((child) => this.showsPruned || child.state !== "pruned")?.group,
        ArrowLeft: node.from?.group,
        ArrowUp: node.column[node.place - 1]?.group,
        ArrowDown: node.column[node.place + 1]?.group,
        Home: this.root.group,
        End: this.nodes.get(this.search.best)?.group,
      });
      if (target) this.choose(target.shows);
    });
  }
}

/** A piece that fits into a node, its mark of a beginning apart. */
function nodeLabel(token) {
  if (SPECIAL[token]) return [svg("tspan", { class: "special" }, SPECIAL[token])];
  const isMarked = token.startsWith("▁") && token.length > 1;
  const characters = [...(isMarked ? token.slice(1) : token)];
  const shown = characters.length > 14 ? `${characters.slice(0, 13).join("")}…` : characters.join("");
  return isMarked ? [svg("tspan", { class: "mark" }, "▁"), shown] : [shown];
}
