// The data of the page, the choices of the reader, and the rows that they select.
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.rows.map((values, i) =>
  Object.fromEntries([["i", i], ...data.fields.map((name, k) => [name, values[k]]).filter(([, v]) => v !== null)]));
const find = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const distinct = (points, field) => [...new Set(points.map((p) => p[field]))];

const FILTERS = ["operation", "pass", "dtype"];
const state = { device: data.devices[0].name, operation: "", pass: "", dtype: "", hidden: new Set(), subject: "", baseline: "", preselected: false };

const device = () => data.devices.find((d) => d.name === state.device);
const onDevice = () => rows.filter((p) => p.device === state.device);
const isChosen = (p) => !state.hidden.has(p.provider) && FILTERS.every((name) => !state[name] || p[name] === state[name]);
const group = (p) => `${p.operation} ${p.pass} ${p.dtype}`;
const caseOf = (p) => `${group(p)} ${p.rows} ${p.cols}`;

// The provider over which p has the smallest speed-up, of those that are shown.
function fastestOther(p) {
  const others = Object.keys(p.speedups ?? {}).filter((name) => !state.hidden.has(name));
  return others.reduce((best, name) => (best && p.speedups[best][0] <= p.speedups[name][0] ? best : name), undefined);
}

// The baseline of each case, by caseOf: the chosen provider, or the fastest that is neither the subject nor the ceiling.
function baselines(points) {
  const subjects = points.filter((p) => p.provider === state.subject && p.us);
  return new Map(subjects.map((p) => [caseOf(p), state.baseline === data.fastest ? fastestOther(p) : state.baseline]));
}

// The points of the subject, with the fields that the charts of speed-ups draw.
function withSpeedups(points) {
  const over = baselines(points);
  return points.map((p) => {
    const other = over.get(caseOf(p));
    const found = p.provider === state.subject && p.speedups?.[other];
    return found ? { ...p, speedup: found[0], speedup_short: found[1].split(" ")[0], speedup_over: other, speedup_text: `${found[1]} over ${other}` } : p;
  });
}
