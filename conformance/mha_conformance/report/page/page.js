// Filters, opening and the panel. The page is complete without it; strings of the reports become text nodes, never markup.
const data = JSON.parse(document.getElementById("data").textContent);
const failing = new Set(["FAIL", "CRASH", "TIMEOUT"]);
const form = document.querySelector(".filters");
const panel = document.getElementById("panel");
const heads = data.reports.map((report) => (data.reports.length > 1 ? `${report.letter} ${report.name}` : report.name));
let opened = null; // [case, report] in the panel
let opener = null; // the cell that opened it

// The rows as values: what filters read, so that typing never reads the document.
const words = (cell) => cell.textContent.replace(/\s+/g, " ").trim();
const clauses = [];
for (const body of document.querySelectorAll(".matrix tbody")) {
  for (const row of body.querySelectorAll("tr.clause, tr.case")) {
    const cells = [...row.cells].slice(1);
    const entry = { row, cells, text: row.cells[0].textContent.toLowerCase() };
    entry.statuses = cells.map((cell) => cell.querySelector("b").textContent);
    if (row.classList.contains("clause")) {
      Object.assign(entry, { id: row.querySelector("th > a").textContent, area: body.dataset.area, body, cases: [], toggle: row.querySelector(".open"), named: false });
      entry.text = `${entry.id} ${words(row.querySelector("p"))}`.toLowerCase();
      clauses.push(entry);
      label(entry, entry.id);
    } else {
      entry.name = words(row.cells[0]);
      row.classList.toggle("failing", entry.statuses.some((status) => failing.has(status)));
      clauses.at(-1).cases.push(entry);
    }
  }
}
const byAnchor = new Map(clauses.filter((clause) => clause.row.id).map((clause) => [`#${clause.row.id}`, clause]));
const byRow = new Map(clauses.map((clause) => [clause.row, clause]));

// A grid layout may take the table's meaning away (older Safari); said aloud, it stays.
for (const [tag, role] of [["table", "table"], ["thead", "rowgroup"], ["tbody", "rowgroup"], ["tr", "row"], ["td", "cell"]])
  for (const element of document.querySelectorAll(`table.matrix${tag === "table" ? "" : ` ${tag}`}`)) element.setAttribute("role", role);
for (const th of document.querySelectorAll(".matrix th")) th.setAttribute("role", th.scope === "col" ? "columnheader" : "rowheader");

function label(entry, name) {
  entry.cells.forEach((cell, at) => cell.querySelector("button")?.setAttribute("aria-label", `${words(cell)}, ${name}, ${heads[at]}`));
}

function open(clause, wanted) {
  if (wanted && !clause.named) clause.cases.forEach((it) => label(it, it.name));
  clause.named ||= wanted;
  clause.toggle.setAttribute("aria-expanded", String(wanted));
  clause.cases.forEach((it) => it.row.classList.toggle("shown", wanted));
}

function matches(statuses, wanted, differ) {
  if (differ && new Set(statuses).size < 2) return false;
  return !wanted || statuses.some((status) => (wanted === "failing" ? failing.has(status) : status === wanted));
}

function filter() {
  const asked = Object.fromEntries(new FormData(form));
  const terms = asked.q.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (text) => terms.every((term) => text.includes(term));
  let shownClauses = 0, shownCases = 0;
  const areas = new Map();
  for (const clause of clauses) {
    const whole = has(clause.text);
    let count = 0;
    for (const it of clause.cases) {
      const keep = (!asked.area || clause.area === asked.area) && (whole || has(`${clause.text} ${it.text}`)) && matches(it.statuses, asked.status, asked.differs);
      it.row.hidden = !keep;
      count += keep;
    }
    clause.row.hidden = !count;
    shownClauses += count > 0;
    shownCases += count;
    areas.set(clause.body, (areas.get(clause.body) ?? 0) + count);
  }
  for (const [body, count] of areas) body.hidden = !count;
  form.querySelector("output").textContent = `${shownClauses} of ${clauses.length} clauses, ${shownCases} cases`;
  document.querySelector(".nothing").hidden = shownCases > 0;
  remember();
}

// The address holds the view: a clause alone (#MHA-MASK-2), or filters and the open case.
function remember() {
  const state = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  if (opened) {
    state.set("case", opened[0]);
    state.set("report", data.reports[opened[1]].letter);
  }
  const hash = `#${state}`;
  if (hash === location.hash || (hash === "#" && byAnchor.has(location.hash))) return;
  try {
    history.replaceState(null, "", hash === "#" ? location.pathname + location.search : hash);
  } catch {
    // a viewer that shows the page in a frame of its own may forbid it; the view works without
  }
}

function recall() {
  if (location.hash === "#matrix") return;
  const named = byAnchor.get(location.hash);
  const state = new URLSearchParams(named ? "" : location.hash.slice(1));
  for (const name of ["q", "area", "status"]) form[name].value = state.get(name) ?? "";
  if (form.status.selectedIndex < 0) form.status.value = "";
  if (form.area.selectedIndex < 0) form.area.value = "";
  if (form.differs) form.differs.checked = state.has("differs");
  opened = null;
  const wanted = state.get("case");
  const at = Math.max(0, data.reports.findIndex((report) => report.letter === state.get("report")));
  filter();
  document.querySelector(".here")?.classList.remove("here");
  if (named) {
    named.row.classList.add("here");
    open(named, true);
    named.row.scrollIntoView();
  }
  if (wanted !== null && Object.hasOwn(data.cases, wanted)) show(wanted, at);
  else if (panel.open) panel.close();
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function chip(status, text) {
  const known = [...document.querySelectorAll(".key .chip b")].some((it) => it.textContent === status);
  const made = element("span", "", `chip ${known ? status : "OTHER"}`);
  made.append(element("b", status), text ? ` ${text}` : "");
  return made;
}

function show(name, at) {
  opened = [name, at];
  const clause = clauses.find((it) => it.cases.some((one) => one.name === name));
  const title = element("h2", name);
  title.id = "panel-title";
  const close = element("button", "Close", "close");
  close.addEventListener("click", () => panel.close());
  const quote = element("blockquote");
  const link = element("a", clause.id);
  if (clause.row.id) link.href = `#${clause.row.id}`;
  const sentence = clause.row.querySelector("p").cloneNode(true);
  quote.append(link, " ", ...sentence.childNodes);
  const order = [at, ...data.reports.keys()].filter((report, place, all) => all.indexOf(report) === place);
  const rows = data.cases[name].filter(Boolean);
  const shared = new Set([...data.labels.keys()].filter((place) => place >= data.about && rows.every((row) => (row[place] ?? 0) === (rows[0][place] ?? 0))));
  const sections = order.flatMap((report) => section(name, report, shared));
  panel.replaceChildren(title, close, quote, ...sections, element("h3", "The case"), facts(rows[0], (place) => shared.has(place)));
  if (!panel.open) panel.showModal();
  panel.scrollTop = 0;
  remember();
}

function facts(row, wanted) {
  const list = element("dl");
  row.forEach((said, place) => {
    if (place && said && wanted(place)) list.append(element("dt", data.labels[place]), element("dd", data.strings[said]));
  });
  return list;
}

function section(name, at, shared) {
  const row = data.cases[name][at];
  const report = data.reports[at];
  const title = element("h3", `${heads[at]} `);
  if (!row) return [title, element("p", "This report has no such case.")];
  title.append(chip(data.strings[row[0]]));
  const list = facts(row, (place) => !shared.has(place));
  const command = `${report.before}'${name.replaceAll("'", `'"'"'`)}'${report.after}`;
  const box = element("div", "", "command");
  const copy = element("button", "Copy the command");
  const code = element("code", command);
  copy.addEventListener("click", () => copied(command, code, copy));
  box.append(code, copy);
  return [title, list, box, ...(report.hint ? [element("p", report.hint, "hint")] : [])];
}

async function copied(text, code, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected: copy it with the keyboard";
  }
  button.setAttribute("aria-live", "polite");
}

panel.addEventListener("close", () => {
  opened = null;
  remember();
  opener?.focus();
  opener = null;
});
panel.addEventListener("click", (event) => {
  if (event.target === panel && event.clientX < panel.getBoundingClientRect().left) panel.close();
});

document.querySelector(".matrix").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const row = button.closest("tr");
  if (button.matches(".open")) {
    open(byRow.get(row), button.getAttribute("aria-expanded") === "false");
  } else {
    opener = button;
    show(button.dataset.case ?? words(row.cells[0]), button.parentElement.cellIndex - 1);
  }
});

// Arrows go from cell to cell, over rows that are not shown.
document.querySelector(".matrix").addEventListener("keydown", (event) => {
  const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
  const from = event.target.closest("td, th");
  if (!from || (!down && !right) || event.altKey || event.ctrlKey || event.metaKey) return;
  const rows = [...document.querySelectorAll(".matrix tr.clause, .matrix tr.case.shown")].filter((row) => row.offsetParent);
  const row = rows[rows.indexOf(from.parentElement) + down];
  const button = row?.cells[from.cellIndex + right]?.querySelector("button") ?? row?.cells[from.cellIndex + right]?.querySelector("a");
  if (!button) return;
  event.preventDefault();
  button.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, select, textarea") || panel.open) return;
  event.preventDefault();
  form.q.focus();
});

const all = (wanted) => clauses.filter((clause) => !clause.row.hidden).forEach((clause) => open(clause, wanted));
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(filter));
form.expand.addEventListener("click", () => all(true));
form.collapse.addEventListener("click", () => all(false));
document.querySelector(".nothing button").addEventListener("click", () => form.reset());
addEventListener("hashchange", recall);
let closed = []; // on paper nothing opens
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open], .key, .silent)")];
  closed.forEach((it) => (it.open = true));
});
addEventListener("afterprint", () => closed.forEach((it) => (it.open = false)));
recall();
