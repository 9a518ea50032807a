// The choices at the top of the page, and what they start with.
const LARGE = 3000; // measurements; of more, only one kind of case is drawn at first

const narrowed = () => state.hidden.size > 0 || FILTERS.some((name) => state[name]);

function options(name, values, every) {
  const first = every && values.length > 1 ? `<option value="">all</option>` : "";
  find(`#${name}`).innerHTML = first + values.map((v) => `<option value="${escaped(v)}" ${v === state[name] ? "selected" : ""}>${escaped(v)}</option>`).join("");
  find(`#${name}`).disabled = values.length < 2;
}

function showChoices() {
  const points = onDevice(), ran = points.filter((p) => p.us || p.ulp !== undefined);
  const providers = data.providers.filter((name) => ran.some((p) => p.provider === name));
  const compared = distinct(points.filter((p) => p.us && p.provider !== data.ceiling), "provider");
  for (const name of FILTERS) options(name, distinct(points, name), true);
  options("subject", compared);
  options("baseline", compared.length > 1 ? [data.fastest, ...compared] : []);
  find("#compared").hidden = compared.length < 2;
  find("#shown-providers").textContent = state.hidden.size ? `${providers.length - state.hidden.size} of ${providers.length} providers` : `all ${providers.length} providers`;
  find("#providers").innerHTML = providers.map((name) =>
    `<label><input type="checkbox" value="${escaped(name)}" ${state.hidden.has(name) ? "" : "checked"}><span class="swatch" style="--color:${data.colors[name]}"></span>${escaped(name)}</label>`).join("");
  find("#reset").hidden = !narrowed();
}

// The initial choices of a device: everything, unless that is too much to draw.
function start(everything) {
  Object.assign(state, { operation: "", pass: "", dtype: "", hidden: new Set(), subject: device().subject ?? "", baseline: data.fastest, preselected: false });
  all("[data-device]").forEach((part) => { part.hidden = part.dataset.device !== state.device; });
  if (!everything && onDevice().length > LARGE) {
    for (const name of FILTERS) if (distinct(onDevice(), name).length > 1) state[name] = onDevice()[0][name];
    state.preselected = narrowed();
  }
  if (find(".filters")) showChoices();
  draw();
}

document.addEventListener("change", ({ target }) => {
  if (target.id === "device") { state.device = target.value; start(); return; }
  if (target.type === "checkbox") state.hidden[target.checked ? "delete" : "add"](target.value);
  else if (target.id in state) state[target.id] = target.value;
  else return;
  state.preselected = false;
  showChoices();
  draw();
});
document.addEventListener("click", ({ target }) => {
  all("details.menu[open]").filter((menu) => !menu.contains(target)).forEach((menu) => { menu.open = false; });
});
find("#reset")?.addEventListener("click", () => start(true));
all("#results th").forEach((head) => {
  head.innerHTML = `<button type="button">${head.innerHTML}</button>`;
  head.firstChild.addEventListener("click", () => sortBy(head));
});
find("#csv")?.addEventListener("click", download);
all("[data-needs-script]").forEach((part) => { part.hidden = false; });
all(".contents a").forEach((link) => { link.hidden = !find(link.hash); });
// A chart that is drawn while it is folded has no width.
find("details.shipped")?.addEventListener("toggle", () => { shippedDrawn ??= drawShipped(); }, { once: true });
start();
