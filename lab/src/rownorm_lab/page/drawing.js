// The charts: each has one panel for each kind of case, drawn by Vega-Lite.
const narrow = matchMedia("(max-width: 40rem)").matches;
const MANY = narrow ? 2 : 6; // panels of a chart, until the reader asks for all
const bars = (points) => distinct(points, "cols").length === 1;
const byProvider = (points) => 40 + 26 * distinct(points, "provider").length;
const charts = [
  { id: "bandwidth", panel: group, keep: (p) => p.us && p.tallest, one: "bandwidth_bars", height: (points) => (bars(points) ? byProvider(points) : 250),
    detail: (points) => (bars(points) ? `, ${points[0].shape}` : "") },
  { id: "speedup", panel: group, keep: (p) => p.speedup, one: "speedup_bars", height: (points) => 30 + 34 * distinct(points, "rows").length,
    detail: (points) => (bars(points) ? `, ${points[0].cols} columns` : "") },
  { id: "latency", panel: (p) => `${group(p)}, ${p.cols} columns`, keep: (p) => p.us && p.scaling, height: () => 250 },
  { id: "host", panel: (p) => p.pass, keep: (p) => p.host_us, height: byProvider },
  { id: "accuracy", panel: (p) => p.pass, keep: (p) => p.ulp !== undefined, height: byProvider },
  { id: "roofline", panel: () => "", keep: (p) => p.gflops && p.provider !== data.ceiling, height: () => 380 },
];
const config = {
  font: "system-ui, sans-serif", background: "transparent", view: { stroke: null },
  axis: { gridColor: "currentColor", gridOpacity: 0.1, domainColor: "currentColor", domainOpacity: 0.3, tickColor: "currentColor", tickOpacity: 0.3,
          labelColor: "currentColor", titleColor: "currentColor", titleFontWeight: 500, titlePadding: 8, labelFontSize: 11, titleFontSize: 11.5 },
  legend: { labelColor: "currentColor", labelFontSize: 11.5, columnPadding: 12, rowPadding: 3, offset: 10 },
  text: { color: "currentColor" }, rule: { color: "currentColor" },
};
const tooltip = {
  disableDefaultStyle: true,
  formatTooltip: (value, sanitize) => `<table>${Object.entries(value)
    .filter(([, text]) => text !== "" && text !== "undefined" && text !== undefined)
    .map(([name, text]) => `<tr><th>${sanitize(name)}</th><td>${sanitize(text)}</td></tr>`).join("")}</table>`,
};
let views = [], turn = 0, shippedDrawn;

// As axes.ticks: every value if they are few, else the powers of two between them.
function ticks(values) {
  const found = [...new Set(values)].sort((a, b) => a - b);
  if (found.length <= 6) return found;
  return Array.from({ length: 32 }, (_, i) => 2 ** i).filter((power) => power >= found[0] && power <= found.at(-1));
}

function panelsOf(chart, points) {
  const panels = new Map();
  for (const p of points.filter(chart.keep)) {
    const title = chart.panel(p);
    if (!panels.has(title)) panels.set(title, []);
    panels.get(title).push(p);
  }
  return panels;
}

// One panel in a box; points are in the order of the legend, and drawn in reverse, so that rownorm is on top.
async function drawPanel(box, { title, description, base, points, limits, height, providers }) {
  const panel = document.createElement("div");
  panel.className = "panel";
  panel.innerHTML = `${title && `<h3>${escaped(title)}</h3>`}<div class="plot"></div>`;
  box.append(panel);
  await null; // until all panels are in the box, so that each has its final width
  const shown = providers.filter((name) => points.some((p) => p.provider === name));
  const ticked = base.usermeta.ticked;
  const spec = {
    ...base, layer: base.layer.filter((one) => limits.length || one.data?.name !== "limits"), width: "container", height,
    autosize: { type: "fit-x", contains: "padding" }, description,
    params: [{ name: "shown", value: shown }, { name: "columns", value: Math.max(2, Math.floor(panel.clientWidth / 118)) }, { name: "ticks", value: ticked ? ticks(points.map((p) => p[ticked])) : [] }],
    datasets: { points: points.toReversed(), limits },
  };
  return vegaEmbed(find(".plot", panel), spec, { renderer: "svg", config, tooltip, actions: { export: true, source: false, compiled: false, editor: false } });
}

function drawChart(chart, points) {
  const section = find(`#${chart.id}`), box = find(".panels", section), more = find(".more", section);
  const panels = panelsOf(chart, points);
  box.replaceChildren();
  find(".empty", section).hidden = panels.size > 0;
  const shown = chart.every ? [...panels] : [...panels].slice(0, MANY);
  more.hidden = shown.length === panels.size;
  more.innerHTML = more.hidden ? "" : `${shown.length} of ${panels.size} panels. <button type="button">Show all</button>`;
  find("button", more)?.addEventListener("click", () => { chart.every = true; draw(); });
  return shown.map(([title, given]) => drawPanel(box, {
    title: title + (chart.detail?.(given) ?? ""), description: `${find("h2", section).textContent} ${title}`,
    base: data.specs[chart.one && bars(given) ? chart.one : chart.id], points: given, limits: device().limits[chart.id] ?? [],
    height: chart.height(given), providers: data.providers,
  }));
}

// A chart without data on this device is hidden, and the reason is listed.
function hideEmptyCharts() {
  const points = withSpeedups(onDevice()), reasons = [];
  for (const chart of charts) {
    const section = find(`#${chart.id}`);
    section.hidden = !points.some(chart.keep);
    find(`.contents a[href="#${chart.id}"]`).hidden = section.hidden;
    if (section.hidden) reasons.push(`<li>${find("h2", section).textContent}: ${find(".needs", section).innerHTML}</li>`);
  }
  find("#undrawn").hidden = !reasons.length;
  find("#undrawn ul").innerHTML = reasons.join("");
}

async function draw() {
  const now = ++turn, waiting = [];
  views.splice(0).forEach((view) => view.finalize());
  const points = withSpeedups(onDevice().filter(isChosen));
  showFigures(points);
  if (find("#speedup")) {
    find("#speedup h2").textContent = `Speed-up of ${state.subject} over ${called(state.baseline)}`;
    hideEmptyCharts();
    waiting.push(...charts.flatMap((chart) => drawChart(chart, points)));
    showRows(points);
  }
  for (const { view } of await Promise.all(waiting)) now === turn ? views.push(view) : view.finalize();
  await shippedDrawn;
  if (now === turn) document.body.dataset.drawn = String(now);
}

// The results that the package ships: drawn once, whatever the filters.
function drawShipped() {
  const box = find("#shipped .panels"), { points, providers, spec, limits } = data.shipped;
  return Promise.all(distinct(points.map((p) => ({ title: group(p) })), "title").map((title) => drawPanel(box, {
    title, description: `Bandwidth ${title}`, base: spec, points: points.filter((p) => group(p) === title), limits, height: 250, providers,
  })));
}
