"use strict";
// Search, order and filters of the sentences that differ. Without scripts all of them are shown.

const PAGE = 10; // sentences shown at first, and more at each click

const ORDERS = {
  change: (a, b) => Math.abs(b.change) - Math.abs(a.change),
  up: (a, b) => b.change - a.change,
  down: (a, b) => a.change - b.change,
  line: (a, b) => a.line - b.line,
  length: (a, b) => b.text.length - a.text.length,
};
const KINDS = { all: () => true, up: (one) => one.change > 0, down: (one) => one.change < 0, same: (one) => one.change === 0 };

/** The sentences of one system against the baseline -> a function that filters them by a row of a table, or by none. */
function explorer(block) {
  const list = block.querySelector(".sentences");
  if (!list) return () => {};
  const [search, show, sort, clear, count] = [".tools input", ".show", ".sort", ".clear", ".count"].map((one) => block.querySelector(one));
  const more = block.querySelector(".more");
  const all = [...list.children].map((element) => ({
    element,
    text: [...element.querySelectorAll("dd")].map((dd) => dd.textContent).join("\n").toLowerCase(),
    change: Number(element.dataset.change),
    line: Number(element.dataset.line),
    tags: element.dataset.tags,
  }));
  let limit = PAGE;
  let row = null;

  function update() {
    const wanted = search.value.trim().toLowerCase();
    const found = all.filter((one) => KINDS[show.value](one) && one.text.includes(wanted) && (!row || one.tags.includes(`|${row}|`)));
    found.sort((a, b) => ORDERS[sort.value](a, b) || a.line - b.line);
    list.replaceChildren(...found.slice(0, limit).map((one) => one.element));
    const left = found.length - limit;
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(PAGE, left)} more of ${left.toLocaleString("en")}`;
    count.textContent = `${found.length.toLocaleString("en")} ${found.length === 1 ? "sentence" : "sentences"}`;
    clear.hidden = !row;
    clear.textContent = row ? `Remove the filter “${row}”` : "";
  }

  function restart() {
    limit = PAGE;
    update();
  }
  search.addEventListener("input", restart);
  for (const choice of [show, sort]) choice.addEventListener("change", restart);
  more.addEventListener("click", () => {
    limit += PAGE;
    update();
  });
  for (const hidden of block.querySelectorAll(".tools, .tools-note")) hidden.hidden = false;
  update();
  return (filter) => {
    row = filter;
    restart();
  };
}

for (const section of document.querySelectorAll(".test-set")) {
  const blocks = [...section.querySelectorAll(".differences")];
  const filters = new Map(blocks.map((block) => [block, explorer(block)]));

  /** Filter some blocks by the row of a button, or by nothing. */
  const choose = (button, chosen) => {
    for (const block of chosen) filters.get(block)(button?.dataset.tag);
    for (const other of section.querySelectorAll("button.row")) {
      const owner = other.closest(".differences");
      if (other === button) other.setAttribute("aria-pressed", "true");
      else if (!owner || chosen.includes(owner)) other.setAttribute("aria-pressed", "false");
    }
  };
  for (const button of section.querySelectorAll("button.row")) {
    button.disabled = false;
    button.addEventListener("click", () => {
      const owner = button.closest(".differences");
      const chosen = owner ? [owner] : blocks;
      const isOn = button.getAttribute("aria-pressed") === "true";
      choose(isOn ? null : button, chosen);
      if (isOn) return;
      chosen[0].querySelector(".tools")?.scrollIntoView({ block: "start" });
      chosen[0].querySelector(".clear")?.focus({ preventScroll: true });
    });
  }
  for (const block of blocks) block.querySelector(".clear")?.addEventListener("click", () => choose(null, [block]));
}
document.documentElement.dataset.ready = "true";
