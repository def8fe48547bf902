// The page: sections, controls that share the reader's choices, and drawing again when they or the width change.

const FIGURES = [
  { id: "comparison", section: "Comparison", title: "Headline accuracy of each run", draw: comparison, uses: [], wide: true, note: "A dot is a run, the upright bar the mean of its method, the line one standard deviation; the dashed line is the majority class.", when: () => runs.length > 1 },
  { id: "comparison-table", section: "Comparison", title: "Methods", draw: comparisonTable, uses: [], wide: true, when: () => runs.length > 1 },
  { id: "accuracy", section: "Accuracy", title: "Accuracy over rounds", draw: accuracy, uses: ["view", "part", "rule", "score", "client", "run"], wide: true },
  { id: "protocols", section: "Accuracy", title: "By every protocol and rule", draw: protocols, uses: ["run", "score"], wide: true },
  { id: "by-class", section: "Accuracy", title: "Accuracy on each class", draw: byClass, uses: ["run"], wide: true },
  { id: "calibration", section: "Accuracy", title: "Calibration error", draw: calibration, uses: ["part", "run"], note: "How far certainty is from accuracy, in 15 equal bins; 0 is best." },
  { id: "shared", section: "Accuracy", title: "Shared test set", draw: sharedScores, uses: ["run"] },
  { id: "distribution", section: "Data and models", title: "Who has which classes", draw: distribution, uses: ["share", "run"], note: "The area of a circle is the number of samples." },
  { id: "models", section: "Data and models", title: "Models", draw: models, uses: ["run"] },
  { id: "map", section: "Prototypes", title: "Map of prototypes", draw: map("prototypes"), uses: ["frame", "map", "zoom", "cls", "run"] },
  { id: "features", section: "Prototypes", title: "Features of client 0 and its prototypes", draw: map("features"), uses: ["frame", "map", "zoom", "cls", "run"] },
  { id: "cosines", section: "Prototypes", title: "Cosines of global prototypes", draw: cosines, uses: ["frame", "run"] },
  { id: "margins", section: "Prototypes", title: "Margins of each class", draw: margins, uses: ["at", "run"] },
  { id: "distances", section: "Prototypes", title: "Distances over rounds", draw: distances, uses: ["run"], wide: true },
  { id: "communication", section: "Cost", title: "Accuracy against communication", draw: communication, uses: ["part", "rule"] },
  { id: "time", section: "Cost", title: "Where the time goes", draw: time, uses: ["run"] },
  { id: "settings", section: "Settings and environment", title: "Settings", draw: listing("config"), uses: [] },
  { id: "environment", section: "Settings and environment", title: "Environment", draw: listing("environment"), uses: [] },
];

const named = (table, keys = Object.keys(table)) => keys.map((key) => [key, table[key] || key]);

// What a reader can choose: a label, and either options or the steps of a slider.
const CHOICES = {
  run: () => ({ label: "Run", options: groups.map((group) => [String(group.runs[0]), `${group.label}: ${runs[group.runs[0]].name}`]) }),
  view: () => ({ label: "Lines", options: [["methods", "methods"], ["clients", "clients of the run"], ["rules", "rules of the run"]] }),
  part: () => ({ label: "On", options: named(PARTS) }),
  rule: () => ({ label: "Rule", options: named(RULES, [...new Set(runs.flatMap((run) => run.rules))]) }),
  score: () => ({ label: "Score", options: named(SCORES) }),
  share: () => ({ label: "Part", options: [["train", "training"], ["validation", "validation"], ["test", "test"]] }),
  client: () => ({ label: "Client", options: [["all", "all alike"], ...details().clients.map((client, i) => [String(i), `stress ${client.client}`])] }),
  cls: () => ({ label: "Class", options: [["all", "all alike"], ...details().classes.map((name, i) => [String(i), `stress ${name}`])] }),
  zoom: () => ({ label: "Scale", options: [["round", "this round"], ["all", "all rounds"]] }),
  map: () => ({ label: "Map", options: named(MAPS) }),
  frame: () => ({ label: "After", steps: details().space ? details().space.rounds : [] }),
  at: () => ({ label: "After", steps: measured().map((i) => shown().rounds[i]) }),
};

function choose(key, value) {
  state[key] = ["run", "frame", "at"].includes(key) ? Number(value) : value;
  if (key === "run") Object.assign(state, { client: "all", cls: "all" });
  for (const figure of FIGURES.filter((each) => each.node && each.uses.includes(key))) {
    if (key === "run") build(figure);
    sync(figure);
    draw(figure);
  }
}

function control(figure, key) {
  const { label, options, steps } = CHOICES[key](), id = `${figure.id}-${key}`;
  if (options && options.length < 2) return null;
  if (steps && steps.length < 2) return null;
  const input = options
    ? html("select", { id }, ...options.map(([value, text]) => html("option", { value }, text)))
    : html("input", { id, type: "range", min: 0, max: steps.length - 1, step: 1 });
  input.addEventListener(options ? "change" : "input", () => choose(key, input.value));
  return html("label", { class: "control", for: id }, label, input, steps ? html("output", { for: id }) : null);
}

function build(figure) {
  figure.controls.replaceChildren(...figure.uses.map((key) => control(figure, key)).filter(Boolean));
}

// The controls show what is chosen, wherever it was chosen.
function sync(figure) {
  for (const key of figure.uses) {
    const input = document.getElementById(`${figure.id}-${key}`), steps = CHOICES[key]().steps;
    if (!input) continue;
    input.value = String(steps ? clamp(state[key], steps) : state[key]);
    if (!steps) continue;
    const round = `round ${steps[clamp(state[key], steps)]}`;
    input.setAttribute("aria-valuetext", round);
    input.parentElement.querySelector("output").textContent = round;
  }
  if (figure.id !== "accuracy") return;
  const relevant = { client: state.view === "clients", score: state.view !== "clients", rule: state.view !== "rules", run: state.view !== "methods" };
  for (const [key, use] of Object.entries(relevant)) {
    const input = document.getElementById(`accuracy-${key}`);
    if (input) input.parentElement.hidden = !use;
  }
}

function draw(figure, width = figure.plot.clientWidth) {
  const found = figure.draw(Math.max(280, width));
  figure.plot.replaceChildren(found.picture);
  figure.text.textContent = [found.note, figure.note].filter(Boolean).join(" ");
  figure.data.hidden = !found.table;
  figure.numbers = found.table;
  if (figure.data.open) fill(figure);
}

function fill(figure) {
  figure.data.replaceChildren(figure.data.firstChild, figure.numbers ? table(figure.numbers) : "");
}

function mount(figure) {
  figure.plot = html("div", { class: "plot" });
  figure.text = html("p", { class: "note" });
  figure.controls = html("div", { class: "controls" });
  figure.data = html("details", { class: "data" }, html("summary", {}, "Numbers"));
  figure.data.addEventListener("toggle", () => figure.data.open && fill(figure));
  figure.node = html("figure", { id: figure.id, class: figure.wide ? "wide" : null }, html("figcaption", {}, html("h3", {}, figure.title)), figure.controls, figure.plot, figure.text, figure.data);
  return figure.node;
}

const tile = (value, text) => html("li", {}, html("b", {}, value), html("span", {}, text));

// The headline of each method, or all of a single run.
function tiles() {
  if (runs.length === 1) return html("ul", { class: "tiles" }, ...tilesOf(runs[0]));
  const values = (group) => group.runs.map((index) => headline(runs[index])).filter(Boolean).map((found) => found.value);
  const said = groups.map((group) => tile(`${plusMinus(values(group))} %`, `accuracy of ${seeds(group)}`));
  if (there(majority(runs))) said.push(tile(`${percent(majority(runs))} %`, "majority class of each client, on the same samples"));
  return html("ul", { class: "tiles" }, ...said);
}

function tilesOf(run) {
  const found = headline(run), said = [];
  const add = (value, text) => said.push(tile(value, text));
  if (found) {
    const which = found.protocol ? PROTOCOLS[found.protocol] || found.protocol : "latest evaluation, the run goes on";
    add(`${percent(found.value)} %`, `accuracy: ${which} (${span(found.rounds)})`);
  }
  if (there(run.majority)) add(`${percent(run.majority)} %`, "majority class of each client, on the same samples");
  add(`${run.rounds.length ? last(run.rounds) : 0} of ${run.planned}`, "rounds");
  add(size(run.bytes.reduce((a, b) => a + b, 0)), "sent, up and down");
  add(`${number(seconds(run))} s`, "time");
  if (run.failures) add(String(run.failures), "failures of clients");
  return said;
}

function made(run) {
  if (!run.summary) return "Numbers are by the method's own rule on the clients' own test samples, every sample once.";
  const how = run.summary.made;
  return `How the headline was made: rule ${ruleName(how.rule)}; on ${how.scope}; ${how.weighting}; ${PROTOCOLS[how.protocol] || how.protocol}; ${how.clients === "all" ? "all clients" : how.clients} judged ${how.when} training, every ${how.every === 1 ? "round" : `${how.every} rounds`}. Two numbers compare only if all of this is the same.`;
}

function start() {
  const main = document.getElementById("main"), contents = document.getElementById("contents");
  document.title = `Protea report: ${content.title}`;
  document.getElementById("title").textContent = content.title;
  document.getElementById("question").textContent = content.question;
  for (const notice of content.notices) main.append(html("p", { class: "notice", role: "note" }, notice.text));
  main.append(section("Headline", contents, tiles(), ...[...new Set(runs.map(made))].map((how) => html("p", {}, how))));
  const drawn = FIGURES.filter((figure) => !figure.when || figure.when());
  for (const name of new Set(drawn.map((figure) => figure.section))) {
    main.append(section(name, contents, html("div", { class: "grid-of-figures" }, ...drawn.filter((figure) => figure.section === name).map(mount))));
  }
  for (const figure of drawn) {
    build(figure);
    sync(figure);
    draw(figure);
  }
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    drawn.forEach((figure) => draw(figure));
  });
  // On paper, text keeps its size only if figures are drawn for the width that they have there.
  window.addEventListener("beforeprint", () => drawn.forEach((figure) => draw(figure, figure.wide ? 680 : 330)));
  window.addEventListener("afterprint", () => drawn.forEach((figure) => draw(figure)));
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

start();
