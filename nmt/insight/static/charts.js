"use strict";
// The values of a chart's curves at an update: the last one, then that under the pointer or chosen by keys.

const MOVES = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };

function showValues(chart) {
  const curves = JSON.parse(chart.dataset.curves);
  const points = curves.flatMap((curve) => curve[2]);
  const steps = [...new Set(points.map(([step]) => step))].sort((a, b) => a - b);
  const svg = chart.querySelector("svg");
  const { width, height } = svg.viewBox.baseVal;
  const marks = curves.map(() => svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "circle")));
  const readout = document.createElement("p");
  readout.className = "readout";
  chart.after(readout);
  const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
  /** The point whose coordinate `index` is nearest to `wanted`. */
  const nearest = (among, index, wanted) =>
    among.reduce((best, one) => (Math.abs(one[index] - wanted) < Math.abs(best[index] - wanted) ? one : best));
  let at = 0;

  function show(step) {
    at = steps.indexOf(step);
    const values = curves.map(([label, colour, own], i) => {
      const [x, y, left, bottom] = nearest(own, 0, step);
      for (const [name, value] of Object.entries({ cx: left * width, cy: (1 - bottom) * height, r: 4 })) marks[i].setAttribute(name, value);
      marks[i].style.fill = `var(${colour})`;
      const span = document.createElement("span");
      span.style.borderColor = `var(${colour})`;
      span.textContent = `${label} ${number(y)}${x === step ? "" : ` (update ${x.toLocaleString("en")})`}`;
      return span;
    });
    readout.replaceChildren(`update ${step.toLocaleString("en")}`, ...values);
    chart.ariaValueNow = at;
    chart.ariaValueText = [...readout.childNodes].map((node) => node.textContent).join(", ");
  }
  Object.assign(chart, { role: "slider", tabIndex: 0, ariaValueMin: 0, ariaValueMax: steps.length - 1 });
  for (const kind of ["pointerdown", "pointermove"]) {
    chart.addEventListener(kind, (event) => {
      const area = svg.getBoundingClientRect();
      show(nearest(points, 2, (event.clientX - area.left) / area.width)[0]);
    });
  }
  chart.addEventListener("keydown", (event) => {
    if (!(event.key in MOVES)) return;
    event.preventDefault();
    show(steps[Math.min(Math.max(at + MOVES[event.key], 0), steps.length - 1)]);
  });
  show(steps.at(-1));
}

for (const chart of document.querySelectorAll(".chart")) if (chart.dataset.curves !== "[]") showValues(chart);
