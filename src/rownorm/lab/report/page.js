// Filters and redrawing. All numbers and texts come from the data; none is computed here.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = data.rows.map((values, i) =>
    Object.fromEntries([["i", i], ...data.fields.map((name, k) => [name, values[k]]).filter(([, v]) => v !== null)]));
  const find = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const MANY = 6; // most panels of one chart that are shown at once

  const group = (p) => `${p.operation} ${p.pass} ${p.dtype}`;
  const charts = [
    { id: "bandwidth", panel: group, keep: (p) => p.us && p.tallest, height: () => 250 },
    { id: "speedup", panel: group, keep: (p) => p.speedup, height: (points) => 30 + 34 * distinct(points, "rows").length },
    { id: "latency", panel: (p) => `${group(p)}, ${p.cols} columns`, keep: (p) => p.us && p.scaling, height: () => 250 },
    { id: "host", panel: (p) => p.pass, keep: (p) => p.host_us, height: (points) => 40 + 26 * distinct(points, "provider").length },
    { id: "accuracy", panel: (p) => p.pass, keep: (p) => p.ulp !== undefined, height: (points) => 40 + 26 * distinct(points, "provider").length },
    { id: "roofline", panel: () => "", keep: (p) => p.gflops && p.provider !== data.ceiling, height: () => 380 },
  ];
  const config = {
    font: "system-ui, sans-serif", background: "transparent", view: { stroke: null },
    axis: { gridColor: "currentColor", gridOpacity: 0.1, domainColor: "currentColor", domainOpacity: 0.3, tickColor: "currentColor", tickOpacity: 0.3,
            labelColor: "currentColor", titleColor: "currentColor", titleFontWeight: 500, titlePadding: 8, labelFontSize: 11, titleFontSize: 11.5 },
    text: { color: "currentColor" }, rule: { color: "currentColor" },
  };
  const tooltip = {
    disableDefaultStyle: true,
    formatTooltip: (value, sanitize) => `<table>${Object.entries(value)
      .filter(([, text]) => text !== "" && text !== "undefined" && text !== undefined)
      .map(([name, text]) => `<tr><th>${sanitize(name)}</th><td>${sanitize(text)}</td></tr>`).join("")}</table>`,
  };

  const state = { device: data.devices[0].name, operation: "", pass: "", dtype: "", hidden: new Set(), subject: "", baseline: "" };
  let views = [], turn = 0;

  const distinct = (points, field) => [...new Set(points.map((p) => p[field]))];
  const onDevice = () => rows.filter((p) => p.device === state.device);
  const chosen = () => onDevice().filter((p) => !state.hidden.has(p.provider) &&
    ["operation", "pass", "dtype"].every((name) => !state[name] || p[name] === state[name]));

  function withSpeedups(points) {
    return points.map((p) => {
      const found = p.provider === state.subject && p.speedups?.[state.baseline];
      return found ? { ...p, speedup: found[0], speedup_short: found[1].split(" ")[0], speedup_text: `${found[1]} over ${state.baseline}` } : p;
    });
  }

  function panelsOf(chart, points) {
    const panels = new Map();
    for (const p of points.filter(chart.keep)) {
      const title = chart.panel(p);
      panels.set(title, [...(panels.get(title) ?? []), p]);
    }
    return panels;
  }

  async function draw() {
    const now = ++turn;
    views.splice(0).forEach((view) => view.finalize());
    const points = withSpeedups(chosen());
    const device = data.devices.find((d) => d.name === state.device);
    const waiting = [];
    for (const chart of charts) {
      const box = find(`#${chart.id} .panels`);
      box.replaceChildren();
      const panels = panelsOf(chart, points);
      const any = withSpeedups(onDevice()).some(chart.keep);
      const empty = find(`#${chart.id} .empty`);
      empty.dataset.hint ??= empty.innerHTML;
      empty.hidden = panels.size > 0;
      empty.innerHTML = any ? "Nothing to draw with these filters." : empty.dataset.hint;
      for (const [title, given] of panels) {
        const panel = document.createElement("div");
        panel.className = "panel";
        panel.innerHTML = `${title && `<h3>${escaped(title)}</h3>`}<div class="plot"></div>`;
        box.append(panel);
        const limits = device.limits[chart.id] ?? [];
        const spec = {
          ...data.specs[chart.id], layer: data.specs[chart.id].layer.filter((one) => limits.length || one.data?.name !== "limits"), width: "container", height: chart.height(given), autosize: { type: "fit-x", contains: "padding" },
          description: `${find(`#${chart.id} h2`).textContent} ${title}`,
          datasets: { points: given.toReversed(), limits }, // drawn last, so on top: rownorm
        };
        waiting.push(vegaEmbed(find(".plot", panel), spec, {
          renderer: "svg", config, tooltip, actions: { export: true, source: false, compiled: false, editor: false },
        }).then((result) => (now === turn ? views.push(result.view) : result.view.finalize())));
      }
    }
    find("#speedup h2").textContent = state.baseline ? `Speed-up of ${state.subject} over ${state.baseline}` : "Speed-up";
    showRows(points);
    await Promise.all(waiting);
    if (now === turn) document.body.dataset.drawn = String(now);
  }

  // The table is already in the page; here it is filtered, sorted, and shown with the chosen baseline.
  const body = find("#results tbody");
  const lines = new Map(all("tr[data-i]", body ?? document).map((line) => [Number(line.dataset.i), line]));

  function showRows(points) {
    const shown = new Set(points.map((p) => p.i));
    let count = 0;
    for (const [i, line] of lines) {
      line.hidden = !shown.has(i);
      count += !line.hidden;
      const found = rows[i].speedups?.[state.baseline];
      const [ratio, interval] = found ? found[1].split(/ (?=\()/) : ["", ""];
      const cell = find(".speedup", line);
      cell.dataset.v = found ? found[0] : "";
      cell.innerHTML = `${escaped(ratio)} <small>${escaped(interval)}</small>`;
    }
    if (!body) return;
    find("#count").textContent = `${count} of ${lines.size} measurements`;
    find("#over").textContent = state.baseline ? `speed-up over ${state.baseline}` : "speed-up";
  }

  function sortBy(head) {
    const column = [...head.parentElement.children].indexOf(head);
    const order = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    all("#results th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
    const value = (line) => line.children[column].dataset.v ?? line.children[column].textContent;
    const numeric = head.classList.contains("number");
    body.append(...[...lines.values()].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === ""); // rows without a value go last in both orders
      return order * (numeric ? x - y : x.localeCompare(y));
    }));
  }

  function download() {
    const fields = ["device", "operation", "pass", "dtype", "rows", "cols", "provider", "us", "us_low", "us_high", "gbps", "of_ceiling", "of_peak",
                    "peak_bytes", "host_us", "ulp", "note"];
    const cell = (value) => {
      const text = String(value ?? "");
      const inert = /^[=+@]/.test(text) ? `'${text}` : text; // a spreadsheet would evaluate it
      return /[",\n]/.test(inert) ? `"${inert.replaceAll('"', '""')}"` : inert;
    };
    const visible = [...body.children].filter((line) => !line.hidden).map((line) => rows[line.dataset.i]);
    const text = [[...fields, `speedup over ${state.baseline}`], ...visible.map((p) => [...fields.map((f) => p[f]), p.speedups?.[state.baseline]?.[0]])]
      .map((line) => line.map(cell).join(",")).join("\n") + "\n";
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: "rownorm-results.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function chips(name, values) {
    const one = (value, label) => `<label class="chip"><input type="radio" name="${name}" value="${escaped(value)}" ${state[name] === value ? "checked" : ""}>${escaped(label)}</label>`;
    find(`#filter-${name}`).innerHTML = `<span class="label">${name}</span>` + (values.length > 1 ? one("", "all") : "") + values.map((v) => one(v, v)).join("");
  }

  function options(name, values) {
    find(`#${name}`).innerHTML = values.map((v) => `<option ${v === state[name] ? "selected" : ""}>${escaped(v)}</option>`).join("");
  }

  // The initial filters of a device: everything, unless that gives more than MANY panels.
  function start() {
    const device = data.devices.find((d) => d.name === state.device);
    const points = onDevice();
    const compared = distinct(points.filter((p) => p.us && p.provider !== data.ceiling), "provider");
    Object.assign(state, { operation: "", pass: "", dtype: "", hidden: new Set(), subject: device.subject ?? "", baseline: device.baseline ?? "" });
    const first = { pass: distinct(points, "pass"), dtype: distinct(points, "dtype"), operation: distinct(points, "operation") };
    for (const name of ["dtype", "pass", "operation"])
      if (new Set(chosen().map(group)).size > MANY) state[name] = first[name][0];
    for (const name of ["operation", "pass", "dtype"]) {
      if (first[name].length === 1) state[name] = first[name][0];
      chips(name, first[name]);
    }
    find("#filter-provider").innerHTML = `<span class="label">provider</span>` + distinct(points.filter((p) => p.us || p.ulp !== undefined), "provider")
      .sort((a, b) => data.providers.indexOf(a) - data.providers.indexOf(b)).map((name) =>
        `<label class="chip"><input type="checkbox" value="${escaped(name)}" checked><span class="swatch" style="--color:${data.colors[name]}"></span>${escaped(name)}</label>`).join("");
    options("subject", compared);
    options("baseline", compared);
    find("#filter-speedup").hidden = compared.length < 2;
    all("[data-device]").forEach((part) => { part.hidden = part.dataset.device !== state.device; });
    draw();
  }

  document.addEventListener("change", ({ target }) => {
    if (target.id === "device") { state.device = target.value; start(); return; }
    if (target.id === "subject" || target.id === "baseline") state[target.id] = target.value;
    else if (target.type === "radio") state[target.name] = target.value;
    else if (target.type === "checkbox") state.hidden[target.checked ? "delete" : "add"](target.value);
    else return;
    draw();
  });
  all("#results th").forEach((head) => {
    head.innerHTML = `<button type="button">${head.innerHTML}</button>`;
    head.firstChild.addEventListener("click", () => sortBy(head));
  });
  find("#csv")?.addEventListener("click", download);
  all("[data-needs-script]").forEach((part) => { part.hidden = false; });
  start();
})();
