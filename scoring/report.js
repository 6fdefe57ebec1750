"use strict";
// The page: choosers, legend, charts and sortable tables over the data that report.py embedded. No network is used.

const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const percent = (x) => (100 * x).toFixed(1) + "%";
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const hidden = new Set(); // system ids switched off in the legend
const NO_LIMIT = 1000; // right end of the budget slider

function mflops(f) {
  if (f >= 1e12) return (f / 1e12).toLocaleString("en", { maximumSignificantDigits: 3 }) + " TFLOPs";
  const m = f / 1e6;
  const digits = m >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 };
  return m.toLocaleString("en", digits) + " MFLOPs";
}

// ---- state -------------------------------------------------------------------------------------------------------

function options(select, values, text) {
  const before = select.value;
  select.replaceChildren(...values.map((v) => new Option(text ? text(v) : v, v)));
  select.value = values.map(String).includes(before) ? before : String(values[0]);
}

const subject = () => DATA.subjects[Number($("subject").value)];
const queries = () => Number($("queries").value);
const style = (cell) => subject().systems[cell.s];
const cost = (cell) => (cell.write === null ? null : cell.write / queries() + cell.read);
const visible = (cell) => !hidden.has(style(cell).id);

function cellsAt(band, length) {
  return subject().cells.filter((c) => c.band === band && c.L === length);
}

function here(references = false) {
  const cells = cellsAt($("band").value, Number($("length").value));
  return cells.filter((c) => visible(c) && (references || !style(c).reference));
}

// ---- budget ------------------------------------------------------------------------------------------------------

function costRange() {
  const costs = subject().cells.filter((c) => !style(c).reference).map(cost).filter((c) => c > 0);
  return costs.length ? [Math.min(...costs) / 1.1, Math.max(...costs) * 1.1] : null;
}

function budget() {
  const at = Number($("budget").value), range = costRange();
  if (at >= NO_LIMIT || !range) return Infinity;
  return range[0] * (range[1] / range[0]) ** (at / (NO_LIMIT - 1));
}

function setBudget(flops) {
  const range = costRange();
  const at = range ? (NO_LIMIT - 1) * Math.log(flops / range[0]) / Math.log(range[1] / range[0]) : NO_LIMIT;
  $("budget").value = flops === Infinity ? NO_LIMIT : Math.ceil(Math.min(NO_LIMIT - 1, Math.max(0, at)));
  exactBudget = flops;
  drawFrontier();
}

let exactBudget = Infinity; // a button's budget, which the slider's steps would round

// Points that no other point dominates, by falling coverage. points: [{x, y, ...}].
function undominated(points) {
  const sorted = [...points].sort((p, q) => q.x - p.x || q.y - p.y);
  const kept = [];
  let best = -Infinity;
  for (const p of sorted) {
    const last = kept[kept.length - 1];
    if (p.y > best) { kept.push(p); best = p.y; }
    else if (last && p.x === last.x && p.y === last.y && p.cell !== last.cell) kept.push(p);
  }
  return kept;
}

// ---- charts ------------------------------------------------------------------------------------------------------

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };
const GREY = { gridcolor: "#e6e6e6", zerolinecolor: "#e6e6e6", linecolor: "#999", automargin: true, fixedrange: true };
const FONT = { family: "system-ui, DejaVu Sans, sans-serif", size: 12, color: "#1a1a1a" };
const COVERAGE_AXIS = {
  title: { text: "coverage: share of questions answered" }, tickformat: ".0%", range: [0, 1.02],
};

function plot(target, traces, xaxis, yaxis, extra = {}) {
  const layout = {
    margin: { l: 52, r: 12, t: extra.title ? 34 : 10, b: 48 }, showlegend: false, hovermode: "closest", font: FONT,
    plot_bgcolor: "#fff", hoverlabel: { align: "left" }, ...extra,
    xaxis: { ...GREY, ...xaxis }, yaxis: { ...GREY, ...yaxis },
  };
  Plotly.react(target, traces, layout, CONFIG);
}

// The accuracy axis reaches from below chance, or below the lowest value shown, to 100%.
function accuracyAxis(title, low) {
  const floor = Math.min(subject().chance, low);
  return { title: { text: title }, tickformat: ".0%", range: [Math.max(0, floor - 0.05), 1.03] };
}

function chanceLine() {
  const y = subject().chance, dotted = { color: "#555", width: 1, dash: "dot" };
  const text = { text: "chance", showarrow: false, yanchor: "bottom", font: { size: 10, color: "#555" } };
  return {
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: dotted }],
    annotations: [{ xref: "paper", x: 0.01, y, ...text }],
  };
}

const trace = (x, y, rest) => ({ type: "scatter", x, y, hoverinfo: rest.text ? "text" : "skip", ...rest });
const line = (cell, width = 2) => ({ color: style(cell).colour, dash: style(cell).dash, width });
const marker = (cell, size = 8) => ({ color: style(cell).colour, symbol: style(cell).symbol, size });
const bold = (cell) => `<b>${safe(style(cell).label)}</b>`;

// Whiskers from estimates [value, low, high]; an open end has none.
function whiskers(estimates, thickness = 1) {
  return {
    type: "data", symmetric: false, thickness, width: 0,
    array: estimates.map(([value, , high]) => (high ?? value) - value),
    arrayminus: estimates.map(([value, low]) => value - (low ?? value)),
  };
}

function withInterval([value, low, high]) {
  const ends = low === null || high === null ? "" : ` [${(100 * low).toFixed(1)}, ${(100 * high).toFixed(1)}]`;
  return percent(value) + ends;
}

function pointText(cell, i) {
  const c = cell.curve, flops = cost(cell);
  return [
    bold(cell),
    c.t[i] === null ? "no confidences" : `threshold ${c.t[i].toFixed(4)}`,
    `coverage ${percent(c.c[i])}`,
    `accuracy ${percent(c.a[i])}`,
    flops === null ? "FLOPs not known" : `${mflops(flops)} per answer`,
  ].join("<br>");
}

function curveTrace(cell, changes) {
  const c = cell.curve;
  const mode = c.c.length > 1 ? "lines" : "markers"; // a system without confidences is one point
  const text = c.c.map((_, i) => pointText(cell, i));
  return trace(c.c, c.a, { mode, text, line: line(cell, 1.2), marker: marker(cell), ...changes });
}

const lowest = (cells) => Math.min(1, ...cells.flatMap((c) => c.curve.a.filter((_, i) => c.curve.c[i] > 0.03)));

function drawFrontier() {
  const cells = here().filter((c) => c.curve), limit = exactBudget ?? budget();
  const fits = (c) => limit === Infinity || (cost(c) !== null && cost(c) <= limit);
  const inside = cells.filter(fits);
  const points = undominated(
    inside.flatMap((cell) => cell.curve.c.map((x, i) => ({ x, y: cell.curve.a[i], cell, i }))));
  const left = { line: { color: "#ccc", width: 1, dash: "dot" } };
  const traces = cells.map((c) => curveTrace(c, fits(c) ? { opacity: 0.45 } : left));
  const x = points.map((p) => p.x), y = points.map((p) => p.y);
  const colours = points.map((p) => style(p.cell).colour), symbols = points.map((p) => style(p.cell).symbol);
  traces.push(trace(x, y, { mode: "lines", line: { color: "#111", width: 1.5, shape: "hv" } }));
  traces.push(trace(x, y, {
    mode: "markers", text: points.map((p) => pointText(p.cell, p.i)), marker: { color: colours, symbol: symbols, size: 7 },
  }));
  plot("frontier", traces, COVERAGE_AXIS, accuracyAxis("accuracy among answers", lowest(cells)), chanceLine());
  const known = limit === Infinity ? "no budget" : `budget ≤ ${mflops(limit)} per answer`;
  $("budget-text").textContent = `${known}: ${inside.length} of ${cells.length} systems admitted`;
  for (const b of $("tiers").children) b.setAttribute("aria-pressed", String(Number(b.value) === limit));
  showHolders(points);
}

function showHolders(points) {
  const spans = new Map();
  for (const p of points) {
    const at = spans.get(p.cell.s) ?? [p.x, p.x];
    spans.set(p.cell.s, [Math.min(at[0], p.x), Math.max(at[1], p.x)]);
  }
  const items = [...spans].map(([s, [a, b]]) =>
    `${subject().systems[s].label} (coverage ${a === b ? percent(a) : percent(a) + " to " + percent(b)})`);
  $("holders").textContent = items.length ? "On the frontier: " + items.join("; ") + "." : "No system is admitted.";
}

function drawCurves() {
  const cells = here().filter((c) => c.curve), traces = [];
  for (const c of cells) {
    const grid = DATA.grid.filter((_, i) => c.curve.lo[i] !== null);
    const lo = c.curve.lo.filter((v) => v !== null), hi = c.curve.hi.filter((v) => v !== null);
    traces.push(trace([...grid, ...[...grid].reverse()], [...lo, ...[...hi].reverse()], {
      mode: "lines", fill: "toself", fillcolor: style(c).colour, opacity: 0.12, line: { width: 0 },
    }));
  }
  for (const c of cells) {
    const x = c.curve.c.at(-1), y = c.curve.a.at(-1);
    traces.push(curveTrace(c, { line: line(c) }), trace([x], [y], { mode: "markers", marker: marker(c) }));
  }
  plot("curves", traces, COVERAGE_AXIS, accuracyAxis("accuracy among answers", lowest(cells)), chanceLine());
}

function drawLengths() {
  const { bands, bandTitles, lengths } = subject();
  const panels = fill("lengths", bands.length);
  const xaxis = { title: { text: "stream length L" }, type: "log", tickvals: lengths, ticktext: lengths.map(String) };
  bands.forEach((band, k) => {
    const shown = subject().cells.filter((c) => c.band === band && visible(c));
    const traces = [...new Set(shown.map((c) => c.s))].map((s) => {
      const cells = shown.filter((c) => c.s === s).sort((a, b) => a.L - b.L);
      const estimates = cells.map((c) => c.acc);
      const text = cells.map((c) => `${bold(c)}<br>L = ${c.L}<br>accuracy ${withInterval(c.acc)}`);
      const kind = style(cells[0]).reference
        ? { mode: "lines", line: line(cells[0], 1.2) }
        : { mode: "lines+markers", line: line(cells[0]), marker: marker(cells[0]), error_y: whiskers(estimates) };
      return trace(cells.map((c) => c.L), estimates.map((e) => e[0]), { text, ...kind });
    });
    const low = Math.min(...shown.map((c) => c.acc[0]));
    const title = { text: bandTitles[band], font: { size: 13 } };
    plot(panels[k], traces, xaxis, accuracyAxis("accuracy", low), { title, ...chanceLine() });
  });
}

function drawCost() {
  const cells = here().filter((c) => cost(c) !== null);
  $("cost").parentElement.hidden = !cells.length;
  if (!cells.length) return;
  const best = undominated(cells.map((cell) => ({ x: -cost(cell), y: cell.acc[0], cell })));
  const on = new Set(best.map((p) => p.cell)), costs = cells.map(cost), dearest = Math.max(...costs);
  cells.sort((a, b) => on.has(b) - on.has(a));
  const low = Math.log10(Math.min(...costs)), span = Math.max(0.4, Math.log10(dearest) - low);
  const longest = 6.2 * Math.max(...cells.map((c) => style(c).label.length)) + 12; // pixels of the longest label
  const room = Math.max(160, $("cost").clientWidth - 64), perDecade = (room - Math.min(longest, room / 2)) / (span + 0.1);
  const traces = [trace([...best.map((p) => -p.x), dearest], [...best.map((p) => p.y), best.at(-1).y], {
    mode: "lines", line: { color: "#111", width: 1.2, shape: "hv" },
  })];
  const labelled = [];
  const covers = (a, b) =>
    Math.abs(Math.log10(cost(a) / cost(b))) * perDecade < longest && Math.abs(a.acc[0] - b.acc[0]) < 0.025;
  for (const c of cells) {
    // A label that would cover another is left to the legend and the hover text; systems on the frontier come first.
    const clear = !labelled.some((other) => covers(other, c));
    if (clear) labelled.push(c);
    const outline = { color: on.has(c) ? style(c).colour : "#fff", line: { color: style(c).colour, width: 2 } };
    traces.push(trace([cost(c)], [c.acc[0]], {
      mode: clear ? "markers+text" : "markers", text: [safe(style(c).label)], textposition: "top right",
      textfont: { size: 10 }, cliponaxis: false, error_y: whiskers([c.acc]), marker: { ...marker(c, 10), ...outline },
      hovertext: [`${bold(c)}<br>${mflops(cost(c))} per answer<br>accuracy ${withInterval(c.acc)}`],
    }));
  }
  const decades = Array.from({ length: 20 }, (_, i) => 10 ** i);
  const ticks = decades.flatMap((d) => (span < 1.5 ? [d, 2 * d, 5 * d] : [d]));
  const shared = queries() === 1 ? "one question per stream" : `${queries()} questions per stream`;
  const xaxis = {
    title: { text: `MFLOPs per answer, ${shared}` }, type: "log", range: [low - 0.1, low - 0.1 + room / perDecade],
    tickvals: ticks, ticktext: ticks.map((f) => (f / 1e6).toLocaleString("en")),
  };
  plot("cost", traces, xaxis, accuracyAxis("accuracy", Math.min(...cells.map((c) => c.acc[0]))), chanceLine());
}

function drawGroups() {
  $("groups").parentElement.hidden = !here().some((c) => c.ages.length || c.sizes.length);
  const panels = fill("groups", 2);
  const kinds = [["ages", "age of the latest match, steps", "recall"], ["sizes", "candidate length", "accuracy"]];
  kinds.forEach(([field, title, metric], k) => {
    const cells = here().filter((c) => c[field].length);
    const names = [...new Set(cells.flatMap((c) => c[field].map((g) => g[0])))].sort((a, b) => parseInt(a) - parseInt(b));
    const traces = cells.map((c) => {
      const estimates = c[field].map((g) => g.slice(1));
      const name = (group) => `${bold(c)}<br>${title.split(",")[0]} ${group[0]}`;
      const text = c[field].map((g) => `${name(g)}<br>${metric} ${withInterval(g.slice(1))}`);
      const rest = { mode: "lines+markers", line: line(c), marker: marker(c, 7), error_y: whiskers(estimates, 0.7), text };
      return trace(c[field].map((g) => g[0]), estimates.map((e) => e[0]), rest);
    });
    const xaxis = { title: { text: title }, type: "category", categoryorder: "array", categoryarray: names };
    plot(panels[k], traces, xaxis, { title: { text: metric }, tickformat: ".0%", range: [0, 1.04] });
  });
}

function fill(id, count) {
  const parent = $(id);
  while (parent.children.length > count) { Plotly.purge(parent.lastChild); parent.lastChild.remove(); }
  while (parent.children.length < count) parent.append(Object.assign(document.createElement("div"), { className: "chart" }));
  return [...parent.children];
}

// ---- legend and tables -------------------------------------------------------------------------------------------

const SHAPES = {
  circle: '<circle cx="16" cy="7" r="4"/>',
  "triangle-up": '<path d="M16 2 L21 11 L11 11 Z"/>',
  square: '<rect x="12" y="3" width="8" height="8"/>',
};
const DASHES = { solid: "", dash: "6 3", dot: "2 2", dashdot: "6 2 2 2" };

function drawLegend() {
  $("legend").replaceChildren(...subject().systems.map((s) => {
    const button = document.createElement("button");
    const shape = s.reference ? "" : SHAPES[s.symbol];
    const stroke = `<path d="M0 7 H32" stroke-width="2" stroke-dasharray="${DASHES[s.dash]}"/>`;
    button.innerHTML = `<svg width="32" height="14" fill="${s.colour}" stroke="${s.colour}">${stroke}${shape}</svg>`;
    button.append(s.label);
    button.setAttribute("aria-pressed", String(!hidden.has(s.id)));
    button.onclick = () => { hidden.has(s.id) ? hidden.delete(s.id) : hidden.add(s.id); draw(); };
    return button;
  }));
}

function showTable() {
  const want = `${$("subject").value}-${$("length").value}`;
  for (const t of $("tables").children) t.hidden = t.dataset.at !== want;
  for (const row of $("tables").querySelectorAll("tbody tr")) row.hidden = hidden.has(row.dataset.system);
}

function sortTable(head) {
  const table = head.closest("table"), column = head.cellIndex;
  const sorted = head.getAttribute("aria-sort"), bestIsHigh = head.dataset.better !== "lower" && column > 0;
  const down = sorted ? sorted === "ascending" : bestIsHigh;
  for (const h of head.parentNode.cells) h.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => row.cells[column].dataset.v;
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === "" || y === "") return (x === "") - (y === ""); // unknown values last, either way
    const order = column === 0 ? x.localeCompare(y) : Number(x) - Number(y);
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
}

// ---- start -------------------------------------------------------------------------------------------------------

function draw() {
  drawLegend();
  showTable();
  if (!window.Plotly) return;
  drawFrontier(); drawCurves(); drawLengths(); drawCost(); drawGroups();
}

function choose() {
  options($("band"), subject().bands);
  options($("length"), subject().lengths);
  const cheapest = (costRange() ?? [Infinity])[0];
  const tiers = [...DATA.budgets.filter((b) => b >= cheapest), Infinity]; // the others admit nobody
  $("tiers").replaceChildren(...tiers.map((b) => Object.assign(document.createElement("button"), {
    value: b, textContent: b === Infinity ? "no budget" : "≤ " + mflops(b), onclick: () => setBudget(b) })));
  draw();
}

async function unpackPlotly() {
  if (!window.DecompressionStream) throw new Error("this browser is too old to draw the charts; the tables work");
  const bytes = Uint8Array.from(atob($("plotly").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

for (const head of document.querySelectorAll("#tables th[scope=col]")) head.firstElementChild.onclick = () => sortTable(head);
options($("subject"), DATA.subjects.map((_, i) => i), (i) => DATA.subjects[i].title);
options($("queries"), DATA.queries);
$("subject").onchange = choose;
for (const id of ["band", "length", "queries"]) $(id).onchange = draw;
$("budget").oninput = () => { exactBudget = null; drawFrontier(); };
const charts = () => document.querySelectorAll(".chart");
// Charts keep their screen width when printed unless told: 680 px fits A4 and Letter.
addEventListener("beforeprint", () => charts().forEach((c) => Plotly.relayout(c, { width: c.closest(".pair") ? 340 : 680 })));
addEventListener("afterprint", () => charts().forEach((c) => Plotly.relayout(c, { width: null, autosize: true })));
choose();
unpackPlotly().then(draw).then(() => { document.body.dataset.ready = "true"; },
  (error) => { $("status").textContent = "Charts could not be drawn: " + error.message; });
