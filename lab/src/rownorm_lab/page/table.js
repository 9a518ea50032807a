// The table is already in the page; here it is filtered, sorted, and shown with the chosen baseline.
const body = find("#results tbody");
const lines = new Map(all("tr[data-i]", body ?? document).map((line) => [Number(line.dataset.i), line]));

function showRows(points) {
  const shown = new Set(points.map((p) => p.i)), over = baselines(points);
  let count = 0;
  for (const [i, line] of lines) {
    line.hidden = !shown.has(i);
    count += !line.hidden;
    const p = rows[i], other = over.get(caseOf(p)), found = p.speedups?.[other];
    const [ratio, interval = ""] = found ? found[1].split(/ (?=\()/) : [p.provider === other ? "baseline" : "", ""];
    const cell = find(".speedup", line);
    cell.dataset.v = found ? found[0] : "";
    cell.innerHTML = `${escaped(ratio)} <small>${escaped(interval)}</small>`;
  }
  find("#count").textContent = `${count.toLocaleString("en-US")} of ${lines.size.toLocaleString("en-US")} measurements`;
  find("#over").textContent = `speed-up over ${state.baseline}`;
  dimRepeats();
}

// The case of a line is dimmed if the line above has the same.
function dimRepeats() {
  let last = "";
  for (const line of body.children) {
    if (line.hidden) continue;
    const now = caseOf(rows[line.dataset.i]);
    line.classList.toggle("again", now === last);
    last = now;
  }
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
  dimRepeats();
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
  const over = baselines(visible), baseline = (p) => over.get(caseOf(p));
  const text = [[...fields, "baseline", "speedup over baseline"], ...visible.map((p) => [...fields.map((f) => p[f]), baseline(p), p.speedups?.[baseline(p)]?.[0]])]
    .map((line) => line.map(cell).join(",")).join("\n") + "\n";
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: "rownorm-results.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
