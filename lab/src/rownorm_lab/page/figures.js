// The figures below the verdict, for the chosen filters. The verdict is about the whole run: headline.py writes it.
const median = (values) => {
  const sorted = values.toSorted((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};
const significant = (value, digits = 3) => {
  if (!value) return "0";
  const places = digits - 1 - Number(value.toExponential(digits - 1).split("e")[1]);
  const step = 10 ** Math.max(0, -places), decimals = Math.max(0, places);
  return (Math.round(value / step * 10 ** decimals) / 10 ** decimals * step).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
};
const times = (ratio) => `${significant(ratio)}x`;
const percent = (share) => `${share < 0.1 ? significant(100 * share, 2) : (100 * share).toFixed(0)}%`;
const microseconds = (us) => {
  const rounded = Number(us.toPrecision(3)); // 999.9 ns is 1.00 µs
  const [, scale, unit] = [[1, 1e3, "ns"], [1e3, 1, "µs"], [1e6, 1e-3, "ms"], [Infinity, 1e-6, "s"]].find(([limit]) => rounded < limit);
  return `${significant(us * scale)} ${unit}`;
};
const cases = (n) => `${n.toLocaleString("en-US")} ${n === 1 ? "case" : "cases"}`;
const called = (name) => name === data.eager ? "eager PyTorch" : name === data.fastest ? "the fastest other provider" : name;
const listed = (names) => [names.slice(0, -1).join(", "), names.at(-1)].filter(Boolean).join(" and ");

const speedupsOver = (points, name) => points.map((p) => p.speedups?.[name === data.fastest ? fastestOther(p) : name]?.[0]).filter(Boolean);
const otherProviders = (points) => [...new Set(points.flatMap((p) => Object.keys(p.speedups ?? {})))].filter((name) => !state.hidden.has(name));

function standings(points) {
  const counts = { fastest: 0, level: 0, slower: 0, unclear: 0 };
  for (const p of points) if (fastestOther(p)) counts[p.speedups[fastestOther(p)][2]]++;
  return { ...counts, cases: Object.values(counts).reduce((a, b) => a + b) };
}
const otherCases = (found) => [["slower", found.slower], ["too noisy to decide", found.unclear]].filter(([, n]) => n).map(([words, n]) => `${words} in ${n}`);

function figures(mine, points) {
  const found = standings(mine), shown = [];
  const add = (label, value, note) => shown.push([label, value, note]);
  const eager = state.subject === data.eager ? [] : points.filter((p) => p.provider === data.eager && p.us);
  if (found.cases) add("cases: fastest or level", `${found.fastest + found.level} of ${found.cases.toLocaleString("en-US")}`, [`fastest in ${found.fastest}`, `level in ${found.level}`, ...otherCases(found)].join(", "));
  const several = otherProviders(mine).length > 1;
  for (const name of new Set(several ? [state.baseline, data.eager] : [state.baseline])) {
    const ratios = speedupsOver(mine, name);
    if (ratios.length) add(`median speed-up over ${called(name)}`, times(median(ratios)), `${times(Math.min(...ratios))} to ${times(Math.max(...ratios))}`);
  }
  const top = mine.reduce((best, p) => (best && best.gbps >= p.gbps ? best : p), undefined);
  const shares = mine.map((p) => p.of_ceiling).filter(Boolean);
  if (top) {
    const highest = `${significant(top.gbps)} GB/s`, peak = top.of_peak ? `${percent(top.of_peak)} of peak` : "";
    if (shares.length) add("of the measured ceiling, median", percent(median(shares)), [`highest ${highest}`, peak].filter(Boolean).join(", "));
    else add("highest bandwidth", highest, peak);
  }
  const host = (some) => some.filter((p) => p.host_us && p.pass === "forward").map((p) => p.host_us);
  if (host(mine).length) add("host time of a forward call, median", microseconds(median(host(mine))), host(eager).length ? `${called(data.eager)} ${microseconds(median(host(eager)))}` : "");
  const worst = (some) => some.filter((p) => p.ulp !== undefined).reduce((best, p) => (best && best.ulp >= p.ulp ? best : p), undefined);
  const ulp = (p) => `${significant(p.ulp, 2)} ulp`;
  if (worst(mine)) add("largest error against fp64", ulp(worst(mine)), [group(worst(mine)), worst(eager) && `${called(data.eager)} ${ulp(worst(eager))}`].filter(Boolean).join("; "));
  return shown;
}

// Which part of the run the figures are about.
function scope(points) {
  const count = (some) => new Set(some.filter((p) => p.us && p.provider === state.subject).map(caseOf)).size;
  const every = count(onDevice()), chosen = FILTERS.map((name) => state[name]).filter(Boolean);
  const hidden = [...state.hidden];
  if (!narrowed()) return `All ${cases(every)} of ${state.subject} in this run.`;
  const only = chosen.length ? `Only ${chosen.join(", ")}: ` : "";
  const without = hidden.length ? `, without ${listed(hidden)}` : "";
  return `${only}${count(points)} of ${cases(every)}${without}${state.preselected ? "; preselected, because the run is large" : ""}.`;
}

function showFigures(points) {
  const box = all(".device").find((one) => one.dataset.device === state.device);
  const mine = points.filter((p) => p.provider === state.subject && p.us);
  if (!find(".scope", box)) return; // nothing was measured: the causes stay
  find(".filtered", box).textContent = scope(points);
  find(".figures", box).innerHTML = figures(mine, points).map(([label, value, note]) =>
    `<div><dt>${escaped(label)}</dt><dd>${escaped(value)}</dd><dd class="note">${escaped(note)}</dd></div>`).join("");
}
