"use strict";

// The page: sections, controls that share the reader's choices, and drawing again when they or the width change.

const several = () => runs.length > 1;
const LINE = "A dot is a run, the upright bar the mean of its method, the line the 95 % interval of that mean, cut where it leaves the figure; the dashed line is the majority class of the method's data.";
const GAIN = "A row is a client: the ring is the run compared against, the dot the method. The line is blue where the client's own 95 % interval lies above 0, orange below, grey where it holds 0.";
const FIGURES = [
  { id: "compared", section: "Comparison", title: "Methods compared", draw: compared, uses: [], wide: true, when: several },
  { id: "gain", section: "Comparison", title: gainTitle, draw: gainTable, uses: [], wide: true, when: () => gains().length > 0 },
  { id: "gain-clients", section: "Comparison", title: "Who gains, who loses", draw: gainOfClients, uses: ["gain"], wide: true, note: GAIN, when: () => gained().length > 0 },
  { id: "comparison", section: "Comparison", title: "Headline accuracy of each run", draw: comparison, uses: [], wide: true, note: LINE, when: several },
  { id: "every-protocol", section: "Comparison", title: "Methods by every protocol", draw: everyProtocol, uses: [], wide: true, when: several },
  { id: "accuracy", section: "Accuracy", title: "Accuracy over rounds", draw: accuracy, uses: ["view", "part", "rule", "score", "client", "run"], wide: true },
  { id: "loss", section: "Accuracy", title: "Loss of training over rounds", draw: losses, uses: ["view", "client", "run"], wide: true },
  { id: "protocols", section: "Accuracy", title: "By every protocol and rule", draw: protocols, uses: ["run", "score"], wide: true },
  { id: "by-class", section: "Accuracy", title: "Accuracy on each class", draw: byClass, uses: ["run"], wide: true },
  { id: "answers", section: "Accuracy", title: "How often each class is answered", draw: answered, uses: ["run"], note: "A ring is the number of test samples of a class, a dot how often it was answered; orange is too often." },
  { id: "confusion", section: "Accuracy", title: "What is answered for what", draw: confusion, uses: ["run"] },
  { id: "calibration", section: "Accuracy", title: "Calibration error", draw: calibration, uses: ["part", "run"], note: "How far certainty is from accuracy, in 15 equal bins; 0 is best." },
  { id: "shared", section: "Accuracy", title: "Shared test set", draw: sharedScores, uses: ["run"] },
  { id: "together", section: "Accuracy", title: "What clients know together", draw: together, uses: ["run"], wide: true, note: "The teacher is what the server makes of the clients' answers on public samples. Their labels are looked at for this line alone.", when: () => runs.some((run) => run.together) },
  { id: "distribution", section: "Data and models", title: "Who has which classes", draw: distribution, uses: ["share", "run"], note: "The area of a circle is the number of samples.", when: () => !details().clients.length || details().clients.some((client) => client.train.length) },
  { id: "models", section: "Data and models", title: "Models", draw: models, uses: ["run"] },
  { id: "map", section: "Prototypes", title: "Map of prototypes", draw: map("prototypes"), uses: ["round", "map", "zoom", "cls", "run"] },
  { id: "features", section: "Prototypes", title: featuresTitle, draw: map("features"), uses: ["of", "round", "map", "zoom", "cls", "run"] },
  { id: "cosines", section: "Prototypes", title: "Cosines of global prototypes", draw: cosines, uses: ["round", "run"] },
  { id: "margins", section: "Prototypes", title: "Margins of each class", draw: margins, uses: ["round", "run"] },
  { id: "distances", section: "Prototypes", title: "Distances over rounds", draw: distances, uses: ["run"], wide: true },
  { id: "communication", section: "Cost", title: "Accuracy against communication", draw: communication, uses: ["part", "rule"] },
  { id: "time", section: "Cost", title: "Where the time goes", draw: time, uses: ["run"] },
  { id: "epsilon", section: "Cost", title: "Privacy spent", draw: epsilons, uses: [], when: () => runs.some((run) => (run.epsilon || []).some(there)), note: "Epsilon of the client that has spent most, of what it uploaded up to a round." },
  { id: "settings", section: "Settings and environment", title: "Settings", draw: listing("config"), uses: [], wide: true },
  { id: "environment", section: "Settings and environment", title: "Environment", draw: listing("environment"), uses: [], wide: true },
];

// Choices that stand once above a section, for all its figures.  All other choices stand with their figure.
const BARS = [
  { id: "accuracy-of", section: "Accuracy", uses: ["run"] },
  { id: "data", section: "Data and models", uses: ["run"] },
  { id: "prototypes", section: "Prototypes", uses: ["run", "round", "map", "zoom", "cls"] },
  { id: "cost", section: "Cost", uses: ["run"] },
];

const named = (table, keys = Object.keys(table)) => keys.map((key) => [key, table[key] || key]);

// What a reader can choose: a label, and either options or the steps of a slider.
const CHOICES = {
  run: () => ({ label: "Run", options: runnable().map(([index, label]) => [String(index), `${label}: ${runs[index].name}`]) }),
  view: () => ({ label: "Lines", options: [["methods", "methods"], ["clients", "clients of the run"], ["rules", "rules of the run"]] }),
  part: () => ({ label: "On", options: named(PARTS) }),
  rule: () => ({ label: "Rule", options: named(RULES, [...new Set(runs.flatMap((run) => run.rules))]) }),
  score: () => ({ label: "Score", options: named(SCORES) }),
  share: () => ({ label: "Part", options: [["train", "training"], ["validation", "validation"], ["test", "test"]] }),
  client: () => ({ label: "Client", options: [["all", "none stressed"], ...details().clients.map((client, i) => [String(i), `stress ${client.client}`])] }),
  cls: () => ({ label: "Class", options: [["all", "none stressed"], ...details().classes.map((name, i) => [String(i), `stress ${name}`])] }),
  zoom: () => ({ label: "Scale", options: [["round", "this round"], ["all", "all rounds"]] }),
  map: () => ({ label: "Map", options: named(MAPS, Object.keys(MAPS).filter(drawable)) }),
  of: () => ({ label: "Client", options: seen().map((client) => [client, client]) }),
  round: () => ({ label: "After", steps: steps() }),
  gain: () => ({ label: "Method", options: gained().map((each) => [each.label, each.label]) }),
};

// The runs that can be shown in detail: those whose clients came with the page, or any that can be asked for.
const runnable = () => (live.ask ? runs.map((_, index) => [index, groups[groupOf(index)].label]) : groups.map((group) => [group.runs[0], group.label]));
const live = { ask: null }; // of a live page: how to ask for a run's clients

// Whether there are points of a kind of map.
const drawable = (name) => name === "pca" || (details().space && details().space.prototypes && details().space.prototypes.frames.some((frame) => frame[name]));

// The rounds that have a snapshot or were measured, in order.
function steps() {
  const kept = details().space ? details().space.rounds : [];
  return [...new Set([...kept, ...measured().map((i) => shown().rounds[i])])].sort((a, b) => a - b);
}

function choose(key, value) {
  if (key === "round") state.round = Number(value) === steps().length - 1 ? Infinity : steps()[value];
  else state[key] = key === "run" ? Number(value) : value;
  if (key === "run") Object.assign(state, { client: "all", cls: "all" });
  if (key === "run" && live.ask && !shown().details) return live.ask();
  if (key === "view") Object.assign(state, { client: "all", viewed: true });
  again(key);
}

function again(key) {
  const hosts = [...BARS, ...FIGURES].filter((each) => each.controls && each.uses.includes(key));
  for (const host of hosts) {
    if (key === "run") build(host);
    sync(host);
    if (host.draw) draw(host);
  }
}

function control(host, key) {
  const { label, options, steps } = CHOICES[key](), id = `${host.id}-${key}`;
  if (options && options.length < 2) return null;
  if (steps && steps.length < 2) return null;
  const input = options
    ? html("select", { id }, ...options.map(([value, text]) => html("option", { value }, text)))
    : html("input", { id, type: "range", min: 0, max: steps.length - 1, step: 1 });
  input.addEventListener(options ? "change" : "input", () => choose(key, input.value));
  return html("label", { class: "control", for: id }, label, input, steps ? html("output", { for: id }) : null);
}

// The controls of a bar, or of a figure those that no bar above it has.
function build(host) {
  const bar = BARS.find((each) => each.section === host.section), above = bar && bar !== host ? bar.uses : [];
  const found = host.uses.filter((key) => !above.includes(key)).map((key) => control(host, key)).filter(Boolean);
  host.offers = offers(host);
  host.controls.replaceChildren(...found);
  host.controls.hidden = !found.length;
}

// The controls show what is chosen, wherever it was chosen.
function sync(host) {
  for (const key of host.uses) {
    const input = document.getElementById(`${host.id}-${key}`), steps = CHOICES[key]().steps;
    if (!input) continue;
    if (steps) input.max = steps.length - 1;
    input.value = String(steps ? upTo(steps) : key === "of" ? seenClient() : key === "gain" ? gainShown().label : state[key]);
    if (!steps) continue;
    const round = `round ${steps[upTo(steps)]}`;
    input.setAttribute("aria-valuetext", round);
    input.parentElement.querySelector("output").textContent = round;
  }
  const relevant = { client: state.view === "clients", score: state.view !== "clients", rule: state.view !== "rules" };
  for (const [key, use] of Object.entries(["accuracy", "loss"].includes(host.id) ? relevant : {})) {
    const input = document.getElementById(`${host.id}-${key}`);
    if (input) input.parentElement.hidden = !use;
  }
}

// What the controls of a bar or a figure let a reader choose, in one string; a slider may grow.
const offers = (host) => JSON.stringify(host.uses.map((key) => CHOICES[key]()).map(({ options, steps }) => options || steps.length > 1));

function draw(figure, width) {
  figure.stale = false;
  const found = figure.draw(Math.max(280, width || figure.plot.clientWidth));
  figure.heading.textContent = typeof figure.title === "function" ? figure.title() : figure.title;
  figure.plot.replaceChildren(found.picture);
  figure.text.textContent = [found.note, figure.note].filter(Boolean).join(" ");
  figure.data.hidden = !found.table;
  figure.numbers = found.table || read(found.picture);
  offer(figure);
  if (figure.data.open) fill(figure);
}

function fill(figure) {
  figure.data.replaceChildren(figure.data.firstChild, figure.numbers ? table(figure.numbers) : "");
}

function mount(figure) {
  figure.plot = html("div", { class: "plot" });
  figure.heading = html("h3", {});
  figure.text = html("p", { class: "note" });
  figure.controls = html("div", { class: "controls" });
  figure.data = html("details", { class: "data" }, html("summary", {}, "Numbers"));
  figure.data.addEventListener("toggle", () => figure.data.open && fill(figure));
  figure.node = html("figure", { id: figure.id, class: figure.wide ? "wide" : null }, html("figcaption", {}, figure.heading), figure.controls, figure.plot, figure.text, figure.data, (figure.files = html("p", { class: "files" })));
  return figure.node;
}

const tile = (value, text) => html("li", {}, html("b", {}, value), html("span", {}, text));

// The headline of each method, or all of a single run.
function tiles() {
  if (!several()) return html("ul", { class: "tiles" }, ...tilesOf(runs[0]));
  const which = ({ group, score, going }) => `accuracy of ${group.label}${going ? ", latest evaluation" : ""}${score.count > 1 ? `, ${score.count} seeds` : ""}`;
  const said = ranked().map((row) => tile(`${plusMinus(row.score)}\u00a0%`, which(row)));
  for (const floor of content.majorities) said.push(tile(`${percent(floor.value)}\u00a0%`, `majority class of each client${floor.label ? `: ${floor.label}` : ", on the same samples"}`));
  return html("ul", { class: "tiles" }, ...said);
}

function tilesOf(run) {
  const found = headline(run), said = [];
  const add = (value, text) => said.push(tile(value, text));
  if (found) {
    const which = found.protocol ? PROTOCOLS[found.protocol] || found.protocol : "latest evaluation, the run goes on";
    add(`${percent(found.value)}\u00a0%`, `accuracy: ${which} (${span(found.rounds)})`);
  }
  if (there(run.majority)) add(`${percent(run.majority)}\u00a0%`, "majority class of each client, on the same samples");
  add(`${run.rounds.length ? last(run.rounds) : 0} of ${run.planned}`, "rounds");
  if (there(run.steps)) add(grouped(run.steps), "SGD steps of a client on its own samples, mean");
  add(size(run.bytes.reduce((a, b) => a + b, 0)), "sent, up and down");
  add(`${number(seconds(run))} s`, "time");
  if (run.failures) add(String(run.failures), "failures of clients");
  if (run.privacy) add(there(last(run.epsilon)) ? `\u03b5 ${number(last(run.epsilon), 3)}` : "no guarantee", run.privacy);
  return said;
}

function made(run) {
  if (!run.summary) return "Numbers are by the method's own rule on the clients' own test samples, every sample once.";
  const how = run.summary.made;
  return `How the headline was made: rule ${ruleName(how.rule)}; on ${how.scope}; ${how.weighting}; ${PROTOCOLS[how.protocol] || how.protocol}; ${how.clients === "all" ? "all clients" : how.clients} judged ${how.when} training, every ${how.every === 1 ? "round" : `${how.every} rounds`}. Two numbers compare only if all of this is the same.`;
}

// What differs between runs that should not: one line, and a table for those who ask.
function differences() {
  const found = content.differences, names = found.map((each) => each.name);
  const rows = found.flatMap(({ name, values }) => values.map(({ value, runs }, i) => [i ? "" : name, value, runs.join(", ")]));
  const said = `These runs do not compare: they differ in ${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""}. Show which run has which.`;
  return html("details", { class: "notice", id: "differences" }, html("summary", {}, said), table({ head: ["setting", "value", "runs"], rows }));
}

// Draw all of a page.
function start(found) {
  load(found);
  const main = document.getElementById("main"), contents = document.getElementById("contents");
  document.title = `${live.title || "Protea report"}: ${content.title}`;
  document.getElementById("title").textContent = content.title;
  document.getElementById("question").textContent = content.question;
  contents.replaceChildren();
  main.replaceChildren();
  contents.append(html("li", {}, html("a", { href: "#section-headline" }, "Headline")));
  main.append(html("div", { id: "said" }, ...said()));
  const drawn = wanted();
  for (const name of new Set(drawn.map((figure) => figure.section))) {
    const bar = BARS.find((each) => each.section === name);
    if (bar) bar.controls = html("div", { class: "controls bar", role: "group", "aria-label": `Choices for ${name}` });
    main.append(section(name, contents, bar ? bar.controls : null, html("div", { class: "grid-of-figures" }, ...drawn.filter((figure) => figure.section === name).map(mount))));
  }
  for (const host of hosts()) {
    build(host);
    sync(host);
    if (host.draw) draw(host);
  }
}

// Draw new content into the page that is there; what cannot be seen is drawn when it is scrolled to.
function refresh(found) {
  const open = (document.getElementById("differences") || {}).open;
  load(found);
  if (wanted().some((figure) => !hosts().includes(figure)) || hosts().some((host) => host.draw && !wanted().includes(host))) {
    const place = window.scrollY;
    start(found);
    return window.scrollTo(0, place);
  }
  document.title = `${live.title || "Protea report"}: ${content.title}`;
  document.getElementById("title").textContent = content.title;
  document.getElementById("question").textContent = content.question;
  document.getElementById("said").replaceChildren(...said());
  if (open && document.getElementById("differences")) document.getElementById("differences").open = true;
  for (const host of hosts()) {
    if (host.offers !== offers(host)) build(host);
    sync(host);
    host.stale = Boolean(host.draw);
  }
  drawSeen();
}

// Draw what is on the screen, or nearly, and has not been drawn since its content changed.
function drawSeen() {
  for (const figure of FIGURES) {
    if (!figure.stale || !figure.node.isConnected) continue;
    const box = figure.node.getBoundingClientRect();
    if (box.bottom > -300 && box.top < window.innerHeight + 300) draw(figure);
  }
}

const wanted = () => FIGURES.filter((figure) => !figure.when || figure.when());
const hosts = () => [...BARS.filter((bar) => bar.controls), ...FIGURES.filter((figure) => figure.node && figure.node.isConnected)];

// What stands above the figures: what to beware of, and the headline.
function said() {
  const spread = groups.some((group) => group.headline && there(group.headline.margin)) ? [html("p", {}, `${INTERVAL}, as in protea compare.`)] : [];
  const notices = content.notices.map((notice) => html("p", { class: "notice", role: "note" }, notice));
  const remarks = (content.remarks || []).map((remark) => html("p", { class: "remark" }, remark));
  const how = [...new Set(runs.map(made))].map((text) => html("p", {}, text));
  const top = html("section", { id: "section-headline", "aria-label": "Headline" }, html("h2", {}, "Headline"), tiles(), ...remarks, ...spread, ...how);
  return [...(content.differences.length ? [differences()] : []), ...notices, top];
}

// Draw anew when the width changes, and for paper, where text keeps its size only if figures are drawn for its width.
function keepFitting() {
  const all = (width) => FIGURES.filter((figure) => figure.node && figure.node.isConnected).forEach((figure) => draw(figure, width && width(figure)));
  let width = window.innerWidth, opened = false;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    all();
  });
  const box = () => document.getElementById("differences");
  window.addEventListener("beforeprint", () => {
    all((figure) => (figure.wide ? 680 : 300));
    if (box()) [opened, box().open] = [box().open, true];
  });
  window.addEventListener("afterprint", () => {
    all();
    if (box()) box().open = opened;
  });
  window.addEventListener("scroll", drawSeen, { passive: true });
  const theme = document.getElementById("theme");
  theme.addEventListener("change", () => {
    if (theme.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme.value;
  });
}

function section(name, contents, ...children) {
  const id = `section-${name.toLowerCase().replaceAll(" ", "-")}`;
  contents.append(html("li", {}, html("a", { href: `#${id}` }, name)));
  return html("section", { id, "aria-label": name }, html("h2", {}, name), ...children);
}

