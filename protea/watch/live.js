"use strict";

// The live page: a list of runs that follows their files, and the figures of a report for those that are chosen.

const MOST = 12; // runs that are shown unasked
const known = new Map(); // row of each run by its mark
const lines = new Map(); // the element of each row
const query = new URLSearchParams(location.search);
let order = [], places = [], chosen = new Set(), asked = false, asking = false, again_ = false;
let wish = null; // mark of the run that the reader chose to see in detail

function address(path, more = []) {
  const token = query.get("token"), all = new URLSearchParams([...(token ? [["token", token]] : []), ...more]);
  return `${path}?${all}`;
}

function span_(seconds) {
  if (!there(seconds)) return "";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${number(seconds / 3600)} h`;
}

// The list of runs

function line(mark) {
  const row = known.get(mark), box = html("input", { type: "checkbox", id: `run-${mark}`, "aria-label": `Show ${row.name}` });
  box.addEventListener("change", () => pick(box.checked ? [...chosen, mark] : [...chosen].filter((each) => each !== mark)));
  const made = html("tr", { "data-run": row.name }, html("td", {}, box), html("th", { scope: "row" }, html("label", { for: `run-${mark}` }, ...row.name.split(/(?<=[/-])/).flatMap((part) => [part, html("wbr")]))), ...Array.from({ length: 9 }, (_, i) => html("td", { class: [1, 4, 5, 6, 7].includes(i) ? "n" : i === 8 ? "doubts" : null })));
  lines.set(mark, made);
  return made;
}

function fillLine(mark) {
  const row = known.get(mark), made = lines.get(mark) || line(mark), cells = [...made.cells].slice(2), put = (i, ...content) => cells[i].replaceChildren(...content);
  put(0, row.method || "");
  put(1, String(row.seed ?? ""));
  put(2, html("span", { class: "state", "data-is": row.state, title: row.error || null }, row.state));
  put(3, ...(there(row.planned) ? [html("progress", { max: row.planned, value: row.round, "aria-hidden": "true" }), ` ${row.round} of ${row.planned}`] : []));
  put(4, there(row.accuracy) ? percent(row.accuracy) : "");
  put(5, there(row.loss) ? number(row.loss) : "");
  put(6, there(row.sent) ? size(row.sent) : "");
  put(7, span_(row.left));
  const doubts = [...(row.error ? [row.error.trim().split("\n").pop()] : []), ...row.warnings, ...(row.refused ? [`${row.refused} uploads refused`] : [])];
  put(8, ...doubts.slice(0, 1).map((text) => html("span", { title: doubts.join("\n") }, `${cut(text, 60)}${doubts.length > 1 ? ` (+${doubts.length - 1})` : ""}`)));
  return made;
}

function found() {
  const words = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (row) => `${row.name} ${row.method} ${row.state} seed${row.seed}`.toLowerCase();
  return order.filter((mark) => words.every((word) => text(known.get(mark)).includes(word)));
}

function showList() {
  const shown = new Set(found());
  order.forEach((mark) => {
    const made = lines.get(mark);
    made.hidden = !shown.has(mark);
    made.querySelector("input").checked = chosen.has(mark);
  });
  const running = order.filter((mark) => known.get(mark).state === "running").length;
  document.getElementById("counted").textContent = `${order.length} runs, ${running} running, ${chosen.size} shown${shown.size < order.length ? `, ${shown.size} found` : ""}`;
}

function showPlaces() {
  const told = places.map((place) => {
    const of = place.runs.map((mark) => known.get(mark)).filter(Boolean), count = (state) => of.filter((row) => row.state === state).length;
    const sites = (place.sites || []).filter((site) => !site.removed), here = sites.filter((site) => site.connected).length;
    const text = place.kind === "sweep"
      ? `Sweep ${place.name}: ${count("ended")} of ${place.planned ?? of.length} runs ended, ${count("running")} running${count("failed") ? `, ${count("failed")} failed` : ""}.`
      : `Federation ${place.name}: ${sites.length} sites${sites.some((site) => there(site.connected)) ? `, ${here} connected` : ""}${place.doing ? `; ${place.doing}` : ""}.`;
    const button = html("button", { type: "button" }, "Show");
    button.addEventListener("click", () => pick(place.runs));
    return html("p", { "data-place": place.name }, text, place.runs.length ? button : null);
  });
  document.getElementById("places").replaceChildren(...told);
}

function pick(marks) {
  asked = true;
  chosen = new Set(order.filter((mark) => marks.includes(mark)));
  try {
    sessionStorage.setItem("chosen", JSON.stringify([...chosen]));
  } catch { /* a browser that keeps nothing */ }
  showList();
  ask();
}

// Until the reader chooses: all runs if they are few, else those that were written last; then those that begin.
function pickUnasked(fresh) {
  const latest = [...order].sort((a, b) => (known.get(b).touched || 0) - (known.get(a).touched || 0));
  if (!chosen.size) chosen = new Set(order.length <= MOST ? order : latest.slice(0, MOST));
  else for (const mark of fresh) if (chosen.size < MOST || known.get(mark).state === "running") chosen.add(mark);
}

// News

function take(news) {
  const fresh = Object.keys(news.rows).filter((mark) => !known.has(mark));
  const touched = Object.keys(news.rows).some((mark) => chosen.has(mark));
  for (const [mark, row] of Object.entries(news.rows)) known.set(mark, row);
  for (const mark of [...known.keys()].filter((each) => !news.order.includes(each))) {
    known.delete(mark);
    chosen.delete(mark);
    lines.get(mark).remove();
    lines.delete(mark);
  }
  ({ order, places } = news);
  for (const mark of Object.keys(news.rows)) fillLine(mark);
  if (fresh.length) document.querySelector("#runs tbody").append(...order.map((mark) => lines.get(mark)));
  const before = chosen.size;
  if (!asked) pickUnasked(fresh);
  else chosen = new Set(order.filter((mark) => chosen.has(mark)));
  showPlaces();
  showList();
  if (touched || chosen.size !== before || !content) ask();
}

// Ask for what is drawn of the chosen runs; while an answer is on its way, once more after it.
async function ask() {
  if (asking) {
    again_ = true;
    return;
  }
  asking = true;
  if (!content && chosen.size) document.querySelector("#main .missing").textContent = "Reading the runs ...";
  const shownMark = wish;
  try {
    const answer = await fetch(address("/content", [...[...chosen].map((mark) => ["run", mark]), ...(shownMark ? [["shown", shownMark]] : [])]));
    if (!answer.ok) throw new Error(await answer.text());
    const told = await answer.json();
    if (!again_ || shownMark === wish) drawAll(told); // else the reader has chosen another run meanwhile
  } catch (error) {
    connection("lost", `No answer: ${error.message}`);
  }
  asking = false;
  if (again_) {
    again_ = false;
    ask();
  }
}

live.ask = () => {
  wish = content.marks[state.run];
  return ask();
};
live.title = "Protea live";

function drawAll(told) {
  document.body.dataset.version = told.version;
  if (!told.runs.length) {
    content = null;
    document.getElementById("main").replaceChildren(html("p", { class: "missing" }, order.length ? "No run is chosen. Tick some in the list above." : "There is no run yet: start one, and it appears here."));
    document.getElementById("contents").replaceChildren();
    return;
  }
  if (content && content.marks && document.querySelector("main figure")) refresh(told);
  else start(told);
}

// Clients, sites and refusals

function stateTable() {
  const clients = details().states || [], mark = content.marks[state.run], place = places.find((each) => each.kind === "federation" && each.runs.includes(mark));
  if (!clients.length) return missing("This run has no line on its clients yet.");
  const site = (name) => ((place && place.sites) || []).find((each) => each.name === name), removed = (each) => (each.removed ? "removed" : each.connected ? "connected" : "away");
  const head = ["client", "state in the latest round", ...(place ? ["site", "last word"] : []), "model", "training samples", "accuracy in %", "gain in points", "sent", "refused"];
  const rows = clients.map((each) => {
    const its = place ? site(each.name) || {} : null, gain = there(each.gain) ? signed(each.gain) : "–";
    return [each.name, each.state, ...(place ? [there(its.connected) ? removed(its) : "–", its.said || "–"] : []), each.model, each.samples ? grouped(each.samples) : "–", percent(each.accuracy), gain, size(each.sent), String(each.refused)];
  });
  const gained = clients.filter((each) => there(each.gain)), better = gained.filter((each) => each.gain > 0).length;
  const note = gained.length ? `Gain: accuracy minus that of training alone on the same split, in the latest round that both were evaluated in; ${better} of ${gained.length} clients are above 0. Intervals come with the table of gains, once runs have ended.` : "For gains, run training alone beside it: protea run CONFIG.toml --beside local";
  return { picture: table(withoutDashes(head, rows)), note };
}

function refusalLog() {
  const found = content.refusals || [];
  if (!found.length) return missing("Nothing was refused, nobody failed or was absent, in the runs that are shown.");
  const head = ["round", ...(runs.length > 1 ? ["run"] : []), "client", "what", "why"];
  return { picture: table({ head, rows: found.map((each) => [String(each.round), ...(runs.length > 1 ? [each.run] : []), each.client, each.kind, each.why]) }), note: "The latest first, at most 200." };
}

const doubtful = () => content.marks.map((mark) => known.get(mark)).filter((row) => row && (row.warnings.length || row.error));

function warningList() {
  return { picture: table({ head: ["run", "warning"], rows: doubtful().flatMap((row) => [...(row.error ? [row.error.trim().split("\n").pop()] : []), ...row.warnings].map((text) => [row.name, text])) }) };
}

FIGURES.splice(FIGURES.findIndex((figure) => figure.section === "Data and models"), 0,
  { id: "states", section: "Clients and sites", title: "Clients now", draw: stateTable, uses: ["run"], wide: true },
  { id: "refusals", section: "Clients and sites", title: "Log of refusals", draw: refusalLog, uses: [], wide: true },
  { id: "warnings", section: "Clients and sites", title: "Warnings", draw: warningList, uses: [], wide: true, when: () => doubtful().length > 0 });
// What changes with every round comes first.
const ORDER = ["Accuracy", "Clients and sites", "Prototypes", "Comparison", "Cost"], rank = (figure) => (ORDER.indexOf(figure.section) + ORDER.length + 1) % (ORDER.length + 1);
FIGURES.sort((a, b) => rank(a) - rank(b));
BARS.push({ id: "clients-of", section: "Clients and sites", uses: ["run"] });

function connection(is, text) {
  const said = document.getElementById("connection");
  said.dataset.is = is;
  said.textContent = text;
}

function follow() {
  try {
    chosen = new Set(JSON.parse(sessionStorage.getItem("chosen") || "[]"));
    asked = chosen.size > 0;
  } catch { /* a browser that keeps nothing */ }
  document.getElementById("filter").addEventListener("input", showList);
  document.getElementById("choose-found").addEventListener("click", () => pick(found()));
  document.getElementById("choose-running").addEventListener("click", () => pick(order.filter((mark) => known.get(mark).state === "running")));
  document.getElementById("choose-none").addEventListener("click", () => pick([]));
  const events = new EventSource(address("/events"));
  events.addEventListener("open", () => connection("on", "Live"));
  events.addEventListener("runs", (event) => take(JSON.parse(event.data)));
  events.addEventListener("error", () => connection("lost", "Lost: is protea watch still running? Trying again."));
  window.addEventListener("beforeunload", () => events.close());
  keepFitting();
}

follow();
