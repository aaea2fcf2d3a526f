// What a page can do beyond showing: values under the pointer, zoom on time axes, marked rows, sorted tables, CSV.
// Nothing is loaded and nothing is hidden: without this script every figure is on the page all the same.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);

  // A value in the unit of its axis, with four digits.
  function digits(value) {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size < 1e-3 || size >= 1e6) return value.toExponential(2);
    return value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3);
  }
  function show(value, unit) {
    if (unit === "ratio") return (value * 100).toFixed(1) + " %";
    if (unit === "10^s") return show(10 ** value, "s");
    if (unit === "usd") return "$ " + digits(value);
    if (unit !== "s") return digits(value) + (unit ? " " + unit : "");
    const size = Math.abs(value);
    const steps = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
    const [factor, name] = size === 0 ? steps[0] : steps.find(([least]) => size >= least) || steps[3];
    return digits(value / factor) + " " + name;
  }

  // An axis as the page wrote it: pixel of its start, pixels, first and last value, unit.
  function axis(text) {
    if (!text) return null;
    const [start, length, from, to, unit] = text.split(" ");
    return { start: +start, length: +length, from: +from, to: +to, unit: unit || "" };
  }
  const valueAt = (a, pixel) => a.from + ((pixel - a.start) / a.length) * (a.to - a.from);
  const pixelAt = (a, value) => a.start + ((value - a.from) / (a.to - a.from)) * a.length;

  // Points of a path that is made of M and L alone.
  function points(path) {
    path.points ??= path.getAttribute("d").slice(1).split(/[ML]/).map(pair => pair.trim().split(/[ ,]+/).map(Number));
    return path.points;
  }
  // Bars of a lane: where each begins and how long it is.
  function bars(path) {
    path.bars ??= [...path.getAttribute("d").matchAll(/M([\d.]+) [\d.]+h([\d.]+)/g)].map(bar => [+bar[1], +bar[2]]);
    return path.bars;
  }
  function place(svg, event) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return at.x;
  }
  function tell(text, event) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4)) + "px";
  }

  // Pictures with time below: what is seen of the axis, and the same for every panel of the picture.
  function zoom(svg, range) {
    for (const plot of svg.querySelectorAll(".plot[data-zoom]")) {
      const whole = axis(plot.dataset.x), ink = plot.querySelector(".ink");
      const [from, to] = range || [whole.from, whole.to];
      const box = ink.getAttribute("viewBox").split(" ").map(Number);
      const left = pixelAt(whole, from), right = pixelAt(whole, to);
      ink.setAttribute("viewBox", [left, box[1], right - left, box[3]].join(" "));
      plot.view = range ? [from, to] : null;
      ticks(plot, { ...whole, from, to });
    }
    svg.reset.hidden = !range;
  }
  function ticks(plot, a) {
    const group = plot.querySelector(".ticks");
    if (!group) return;
    const labels = group.dataset.labels !== "none", [top, bottom] = group.dataset.y.split(" ").map(Number);
    const rough = (a.to - a.from) / 6, ten = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find(times => times * ten >= rough * 0.999) * ten;
    group.replaceChildren();
    for (let value = Math.ceil(a.from / step) * step; value <= a.to + step * 1e-6; value += step) {
      const x = pixelAt(a, value), line = document.createElementNS(SVG, "path");
      line.setAttribute("d", `M${x} ${top}V${bottom}`);
      line.setAttribute("stroke", "currentColor");
      line.setAttribute("stroke-opacity", ".2");
      group.append(line);
      if (!labels) continue;
      const text = document.createElementNS(SVG, "text");
      text.setAttribute("x", x);
      text.setAttribute("y", bottom + 18);
      text.setAttribute("text-anchor", "middle");
      text.textContent = show(value, a.unit);
      group.append(text);
    }
  }
  function seen(plot) {
    const a = axis(plot.dataset.x);
    return plot.view ? { ...a, from: plot.view[0], to: plot.view[1] } : a;
  }

  // Values under the pointer.
  function hover(svg, plot, event) {
    const view = seen(plot), whole = axis(plot.dataset.x), y = axis(plot.dataset.y);
    const x = valueAt(view, place(svg, event)), pixel = pixelAt(whole, x);
    const lines = [show(x, view.unit)], bar = event.target.closest("[data-what]");
    if (bar) {
      const found = bars(bar).find(([start, length]) => pixel >= start - 1 && pixel <= start + length + 1);
      lines.push(bar.dataset.what);
      if (found) {
        const [from, to] = [valueAt(whole, found[0]), valueAt(whole, found[0] + found[1])];
        lines.push(`${show(to - from, view.unit)}, from ${show(from, view.unit)}`);
      }
    }
    let below = 0;
    for (const path of y ? plot.querySelectorAll(".series") : []) {
      const all = points(path), after = all.findIndex(point => point[0] >= pixel);
      if (after < 0 || (after === 0 && all[0][0] > pixel + 1)) continue;
      const value = valueAt(y, (all[after - 1] && all[after][0] > pixel ? all[after - 1] : all[after])[1]);
      lines.push(`${path.dataset.name}: ${show("stack" in path.dataset ? value - below : value, y.unit)}`);
      below = value;
    }
    tell(lines.join("\n"), event);
  }

  function brush(svg, plot) {
    let from = null, box = null;
    const ink = plot.querySelector(".ink");
    plot.addEventListener("pointerdown", event => {
      if (event.button !== 0) return;
      from = place(svg, event);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", event => {
      if (from === null) return;
      const to = place(svg, event);
      box ??= plot.appendChild(document.createElementNS(SVG, "rect"));
      box.setAttribute("class", "brush");
      box.setAttribute("x", Math.min(from, to));
      box.setAttribute("y", ink.getAttribute("y"));
      box.setAttribute("width", Math.abs(to - from));
      box.setAttribute("height", ink.getAttribute("height"));
    });
    plot.addEventListener("pointerup", event => {
      const start = from, to = place(svg, event), view = seen(plot);
      from = null;
      box?.remove();
      box = null;
      if (start === null || Math.abs(to - start) < 4) return;
      const ends = [start, to].sort((a, b) => a - b).map(pixel => valueAt(view, pixel));
      const whole = axis(plot.dataset.x);
      zoom(svg, [Math.max(whole.from, ends[0]), Math.min(whole.to, ends[1])]);
    });
    plot.addEventListener("dblclick", () => zoom(svg, null));
    plot.addEventListener("keydown", event => {
      const whole = axis(plot.dataset.x), view = seen(plot), size = view.to - view.from;
      const moves = { "+": [size / 4, -size / 4], "=": [size / 4, -size / 4], "-": [-size / 2, size / 2], ArrowLeft: [-size / 4, -size / 4], ArrowRight: [size / 4, size / 4] };
      if (event.key === "0" || event.key === "Escape") return zoom(svg, null);
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      const range = [Math.max(whole.from, view.from + move[0]), Math.min(whole.to, view.to + move[1])];
      if (range[1] - range[0] > 1e-9 * (whole.to - whole.from)) zoom(svg, range);
    });
  }

  function tools(before) {
    const bar = document.createElement("div");
    bar.className = "tools";
    before.before(bar);
    return (name, act) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.addEventListener("click", () => act(button));
      bar.append(button);
      return button;
    };
  }

  for (const svg of document.querySelectorAll("figure svg:not(.ink)")) {
    const plots = [...svg.querySelectorAll(".plot")];
    if (plots.some(plot => "zoom" in plot.dataset)) {
      svg.reset = tools(svg.closest(".scroll"))("Whole axis", () => zoom(svg, null));
      svg.reset.hidden = true;
    }
    for (const plot of plots) {
      plot.addEventListener("pointermove", event => hover(svg, plot, event));
      plot.addEventListener("pointerleave", () => { tip.hidden = true; });
      if (!("zoom" in plot.dataset)) continue;
      plot.setAttribute("tabindex", "0");
      plot.setAttribute("role", "group");
      plot.setAttribute("aria-label", "Drag to zoom; plus, minus, arrows and 0 do the same");
      brush(svg, plot);
    }
  }

  // A point of a picture marks its row; the link does it without a script as well.
  for (const link of document.querySelectorAll("figure a[href^='#row']")) {
    link.addEventListener("click", () => {
      const row = document.getElementById(link.getAttribute("href").slice(1));
      for (const other of document.querySelectorAll("tr.marked")) other.classList.remove("marked");
      row?.classList.add("marked");
    });
  }

  // Tables: sorted by the number in a cell where it begins with one, in the unit behind it, else by its text.
  const FACTORS = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
  function key(cell) {
    const text = cell?.textContent.trim() ?? "", number = text.match(/^\$? ?(-?\d[\d.]*(?:e[+-]?\d+)?)/);
    return number ? +number[1] * (FACTORS[text.split(" (")[0].split(" ").at(-1)] ?? 1) : text;
  }
  function sort(table, column, heading) {
    const up = heading.getAttribute("aria-sort") !== "ascending", body = table.tBodies[0];
    for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : typeof a === "number" ? -1 : typeof b === "number" ? 1 : a.localeCompare(b));
    const rows = [...body.rows].sort((a, b) => order(key(a.cells[column]), key(b.cells[column])) * (up ? 1 : -1));
    body.append(...rows);
  }
  const quoted = text => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const csv = table => [...table.rows].map(row => [...row.cells].map(cell => quoted(cell.textContent.trim())).join(",")).join("\n") + "\n";
  function copy(text, button) {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    button.textContent = done ? "Copied" : "Not allowed here";
    setTimeout(() => { button.textContent = "Copy as CSV"; }, 1500);
  }
  for (const table of document.querySelectorAll("table:not(.words)")) {
    [...table.querySelectorAll("thead th")].forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent;
      heading.replaceChildren(button);
      button.addEventListener("click", () => sort(table, column, heading));
    });
    tools(table.closest(".scroll"))("Copy as CSV", button => copy(csv(table), button));
  }
  document.documentElement.dataset.script = "ran";
})();
