"use strict";

// Figures: from the content of a page and the reader's choices to pictures and tables.

let content, runs, groups;
let RULES, SCORES, PROTOCOLS, PARTS; // the words for what can be chosen, as commands and tables have them too
const MAPS = { pca: "PCA", tsne: "t-SNE" };
const ruleName = (rule) => RULES[rule] || rule;

const state = {
  run: 0, part: "test", rule: "method", score: "weighted", view: null, client: "all", cls: "all", share: "train", round: Infinity, of: null, map: "pca",
  zoom: "round", gain: null, viewed: false, // whether a reader chose the view
};

// Take new content; what the reader chose stays chosen, as far as it is there.
function load(found) {
  content = found;
  ({ runs, groups } = content);
  ({ rules: RULES, scores: SCORES, protocols: PROTOCOLS, parts: PARTS } = content.words);
  state.run = there(content.shown) ? content.shown : runs[state.run] && runs[state.run].details ? state.run : groups[0].runs[0];
  if (!state.viewed) state.view = runs.length > 1 ? "methods" : "clients";
}

const NOTHING = { classes: [], clients: [], accuracies: { test: {}, validation: {} }, losses: [], answers: null, by_class: [], geometry: [], space: null };
const shown = () => runs[state.run];
const details = () => shown().details || NOTHING;
const groupOf = (index) => groups.findIndex((group) => group.runs.includes(index));
const last = (items) => items[items.length - 1];

// Of some rounds in order, the place of the latest one up to the chosen round, or the first.
const upTo = (rounds) => Math.max(0, rounds.filter((round) => round <= state.round).length - 1);

// Pairs of round and value, without rounds that have none.
function pairs(run, values) {
  return run.rounds.map((round, i) => [round, values[i]]).filter((pair) => there(pair[1]));
}

function scores(run, part, rule, score) {
  const found = run.scores[part][rule];
  return found && found[score] ? pairs(run, found[score]) : [];
}

// What a run reports; of one that goes on, its latest evaluation.
function headline(run) {
  if (run.summary && there(run.summary.accuracy)) {
    return { value: run.summary.accuracy, rounds: run.summary.made.rounds, protocol: run.summary.made.protocol };
  }
  const latest = last(scores(run, "test", "method", "weighted"));
  return latest ? { value: latest[1], rounds: [latest[0]], protocol: null } : null;
}

// Mean over the runs of a group, round by round, and one standard deviation to either side.
function overSeeds(group, valuesOf) {
  const byRound = new Map();
  for (const index of group.runs) {
    for (const [round, value] of valuesOf(runs[index])) byRound.set(round, [...(byRound.get(round) || []), value]);
  }
  const rows = [...byRound].sort((a, b) => a[0] - b[0]).map(([round, values]) => [round, mean(values), deviation(values)]);
  const several = group.runs.length > 1;
  return { points: rows.map(([round, middle]) => [round, middle]), band: several ? rows.map(([round, m, d]) => [round, m - d, m + d]) : null };
}

function seeds(group) {
  return group.runs.length > 1 ? `${group.label} (${group.runs.length} seeds)` : group.label;
}

function series(name, points, index, more = {}) {
  return { name, points, k: colour(index), dash: medium.dash(index), symbol: medium.shape(index), ...more };
}

function bySeries(what, list, show) {
  const one = (s) => `${s.name} from ${show(s.points[0][1])} in round ${s.points[0][0]} to ${show(last(s.points)[1])} in round ${last(s.points)[0]}`;
  const drawn = list.filter((s) => s.points.length);
  return `${what}: ${drawn.slice(0, 6).map(one).join("; ")}${drawn.length > 6 ? `; and ${drawn.length - 6} more lines` : ""}.`;
}

function asTable(list, first, show) {
  const xs = [...new Set(list.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
  const found = list.map((s) => new Map(s.points));
  return { head: [first, ...list.map((s) => s.name)], rows: xs.map((x) => [String(x), ...found.map((points) => show(points.get(x)))]) };
}

// The colours but for the last one, which is that of all clients together.
const besideInk = (index) => (index % (COLOURS - 1)) + COLOURS * Math.floor(index / (COLOURS - 1));

const missing = (text) => ({ picture: html("p", { class: "missing" }, text) });

function accuracy(width) {
  const { view, part, rule, score } = state;
  let list;
  if (view === "methods") {
    list = groups.map((group, i) => series(seeds(group), [], i, { ...overSeeds(group, (run) => scores(run, part, rule, score)) }));
  } else if (view === "rules") {
    list = shown().rules.map((each, i) => series(ruleName(each), scores(shown(), part, each, score), i));
  } else {
    const rows = details().accuracies[part][rule] || [];
    list = rows.map((values, i) => series(clientName(i), pairs(shown(), values), besideInk(i), { faint: !["all", String(i)].includes(state.client) }));
    list.push(series("all clients", scores(shown(), part, rule, "weighted"), 6, { thick: true, dash: "" }));
  }
  if (!list.some((one) => one.points.length)) return missing(`No round has been evaluated on ${PARTS[part]} by this rule yet.`);
  const named = SCORES[view === "clients" ? "weighted" : score], share = score === "calibration" && view !== "clients" ? number : percent;
  const floors = view === "methods" ? content.majorities : [{ label: "", value: shown().majority }].filter((floor) => there(floor.value));
  const guides = part === "test" && share === percent ? floors.map((floor, i) => ({ name: `${majorityOf(floor)} ${percent(floor.value)}`, value: floor.value, dash: GUIDES[i % GUIDES.length] })) : [];
  const y = { name: share === percent ? `${view === "clients" ? "accuracy" : named.split(",")[0]} in %` : named, format: share === percent ? (v) => number(100 * v, 4) : number, read: share, least: 0, most: 1 };
  const label = bySeries(`${named} on ${PARTS[part]} over rounds, by ${ruleName(rule)} rule, in %`, list, share);
  return { picture: lineChart(width, label, { series: list, guides, x: { name: "round", whole: true }, y }), table: asTable(list, "round", share), note: list.some((one) => one.band) ? "Lines are means over seeds, bands one standard deviation to either side." : "" };
}

function losses(width) {
  const known = (run) => pairs(run, run.loss), clients = state.view === "clients";
  let list = groups.map((group, i) => series(seeds(group), [], i, overSeeds(group, known)));
  if (clients) {
    list = details().losses.map((values, i) => series(clientName(i), pairs(shown(), values), besideInk(i), { faint: !["all", String(i)].includes(state.client) }));
    list.push(series("all clients", known(shown()), 6, { thick: true, dash: "" }));
  }
  if (!list.some((one) => one.points.length)) return missing("No round has a loss: nothing was trained yet, or sites do not tell it.");
  const methods = runs.length > 1 ? " Losses of two methods are of other terms, and do not compare." : "";
  return {
    picture: lineChart(width, bySeries("Mean loss of the clients' training over rounds", list, number), { series: list, x: { name: "round", whole: true }, y: { name: "loss", format: (v) => number(v, 3), read: number } }),
    table: asTable(list, "round", number), note: `The mean over all training steps of a round, with every term of the method.${methods}${list.some((one) => one.band) ? " Bands are one standard deviation over seeds." : ""}`,
  };
}

// The name of a client or site by its place in the list.
const clientName = (i) => details().clients[i].site || `client ${details().clients[i].client}`;

const GUIDES = ["5 4", "2 3", "10 3 2 3", "1 5"]; // dashes of guides
const majorityOf = (floor) => (floor.label ? `majority class, ${floor.label}:` : "majority class");

const INTERVAL = "± is the 95 % interval of a mean over seeds, by Student's t";

// A mean in percent and its interval, in text that does not break.
function plusMinus(spread, show = percent) {
  if (!spread) return "–";
  return there(spread.margin) ? `${show(spread.mean)}\u00a0±\u00a0${show(spread.margin)}` : show(spread.mean);
}

// The groups with what each reports, best first; of a group without an ended run, its latest evaluations.
function ranked() {
  const found = groups.map((group, i) => {
    const known = group.runs.map((index) => [runs[index].name, headline(runs[index])]).filter((pair) => pair[1]);
    const values = known.map((pair) => pair[1].value), floor = content.majorities.find((each) => each.runs.includes(group.runs[0]));
    const going = !group.headline, score = group.headline || { count: values.length, mean: mean(values), deviation: null, margin: null };
    return { group, name: group.label, values, names: known.map((pair) => pair[0]), score, going, floor: floor ? floor.value : null, k: colour(i) };
  });
  return found.filter((row) => row.values.length).sort((a, b) => b.score.mean - a.score.mean);
}

function comparison(width) {
  const rows = ranked();
  if (!rows.length) return missing("No run has been evaluated yet.");
  const text = rows.map((row) => `${row.name} ${plusMinus(row.score)}`);
  return { picture: dotPlot(width, `Headline accuracy in %: ${text.join("; ")}.`, { rows, name: "accuracy in %", format: percent }) };
}

const hundredths = (value) => (there(value) ? (100 * value).toFixed(2) : "–");
const signed = (value) => (value > 0 ? "+" : "") + hundredths(value);
const chance = (p) => (!there(p) ? "–" : p < 0.001 ? "<0.001" : p.toFixed(3));

function compared() {
  const found = content.comparison;
  if (found.why) return missing(found.why);
  const differs = (row) => (row.difference ? [signed(row.difference.mean), hundredths(row.difference.margin), chance(row.difference.p)] : ["–", "–", "–"]);
  const rows = found.rows.map((row) => [
    row.label, String(row.score.count), hundredths(row.score.mean), hundredths(row.score.deviation), hundredths(row.score.margin),
    ...(found.against ? differs(row) : []), hundredths(row.majority), there(row.steps) ? grouped(Math.round(row.steps)) : "–", size(row.sent),
  ]);
  const all = ["method", "seeds", "mean", "sd", "± 95 %", ...(found.against ? [`to ${found.against}`, "± 95 %", "p"] : []), "majority", "steps", "sent"];
  const { head, rows: filledRows } = withoutDashes(all, rows), once = found.rows.every((row) => row.score.count < 2);
  const pairs = found.against ? ` Differences are to ${found.against}, in pairs of the same seed and split, with p by the paired t test.` : "";
  const caption = `Accuracy in %, ${PROTOCOLS[found.protocol]}, by the methods' own rules on the clients' own test samples, every sample once. sd is the standard deviation of one seed; ${INTERVAL}.${pairs}`;
  const short = `Accuracy in %, ${PROTOCOLS[found.protocol]}, by the methods' own rules on the clients' own test samples, every sample once.`;
  return { picture: table({ head, rows: filledRows, caption: once ? short : caption }), note: [once ? MORE_SEEDS : "", ...found.notes].filter(Boolean).join(" ") };
}

const MORE_SEEDS = "There is one seed of each, so nobody knows how much of a difference is chance. Run more seeds: protea sweep CONFIG.toml seed=1..5";

// Without the columns in which every row has a dash.
function withoutDashes(head, rows) {
  const kept = head.map((_, c) => c).filter((c) => !rows.length || rows.some((row) => row[c] !== "–"));
  return { head: kept.map((c) => head[c]), rows: rows.map((row) => kept.map((c) => row[c])) };
}

// The gains of methods over the one compared against, where there are any.
const gains = () => ((content.comparison && content.comparison.gains) || []);
const gained = () => gains().filter((each) => each.clients.length);
const gainShown = () => gained().find((each) => each.label === state.gain) || gained()[0];
const points = (gain) => (gain ? `${signed(gain.mean)} (${signed(gain.low)} to ${signed(gain.high)})` : "–");

function gainTitle() {
  const against = content.comparison.against;
  return `Gain over ${/^local\b/.test(against) ? "training alone" : against}${gains().some((each) => each.others) ? ", and where it comes from" : ""}`;
}

function gainTable() {
  const found = gains(), against = content.comparison.against;
  const kinds = [["over", `over ${against}`], ["training", "what its training does"], ["others", "what the others give"]].filter(([kind]) => found.some((each) => each[kind]));
  const counted = (each) => ["better", "worse", "neither"].map((name) => (each.over ? String(each.over[name]) : "–"));
  const rows = found.map((each) => [each.label, ...kinds.map(([kind]) => points(each[kind])), ...counted(each)]);
  const all = found.flatMap((each) => kinds.map(([kind]) => each[kind]).filter(Boolean)), left = [...new Set(all.flatMap((gain) => gain.left_out))];
  const split = kinds.length > 1 ? " What its training does: the method with every client alone, minus local. What the others give: the method minus itself alone." : "";
  const unpaired = all.some((gain) => !gain.paired) ? " Some runs do not record which samples were answered right: their intervals are from counts, unpaired, and wider than need be." : "";
  const without = left.length ? ` Left out, without test samples or not evaluated in both runs: client ${left.join(", ")}.` : "";
  const caption = `Difference of accuracies in points, in pairs of runs that answer the same test samples; in brackets the 95 % interval, by drawing seeds, clients and samples anew. Better, worse: clients whose own interval lies above or below 0.`;
  return { picture: table({ head: ["method", ...kinds.map(([, name]) => name), "better", "worse", "neither"], rows, caption }), note: split + unpaired + without };
}

function gainOfClients(width) {
  const found = gainShown();
  if (!found) return missing("No two runs of one split compare.");
  const against = content.comparison.against, list = found.clients, count = (verdict) => list.filter((each) => each.verdict === verdict).length;
  const which = there(found.seed) ? `, seed ${found.seed}` : "";
  const label = `Accuracy of each client with ${found.label} and with ${against}${which}, largest gain first. Better: ${count("better")}, worse: ${count("worse")}, neither: ${count("neither")}.`;
  const kind = { better: "k0", worse: "k1", neither: "soft" }, text = (each) => `client ${each.client}, ${each.samples} samples\n${against} ${percent(each.reference)}, ${found.label} ${percent(each.accuracy)}\n${points(each)}: ${each.verdict}`;
  const told = (each) => ({ name: String(each.client), ring: each.reference, dot: each.accuracy, k: kind[each.verdict], text: text(each) });
  const rows = list.map((each) => [String(each.client), String(each.samples), percent(each.reference), percent(each.accuracy), signed(each.mean), `${signed(each.low)} to ${signed(each.high)}`, each.verdict]);
  return {
    picture: dumbbells(width, label, { rows: list.map(told), name: "accuracy in %", rowName: "client", format: (v) => number(100 * v, 4), names: [against, found.label], least: 0, most: 1 }), note: label,
    table: { head: ["client", "samples", against, found.label, "difference", "95 % interval", ""], rows },
  };
}

function everyProtocol() {
  const protocols = Object.keys(PROTOCOLS).filter((name) => groups.some((group) => group.protocols[name]));
  if (!protocols.length) return missing("No run has ended: numbers by protocol are made at its end.");
  const rows = ranked().map(({ group }) => {
    const members = group.runs.map((index) => runs[index]);
    return [group.label, ...protocols.map((name) => plusMinus(group.protocols[name])), `${number(mean(members.map(seconds)))} s`];
  });
  const head = ["method", ...protocols.map((name) => PROTOCOLS[name]), "time"];
  const spread = rows.some((row) => row.some((cell) => cell.includes("±"))) ? `; ${INTERVAL}` : "";
  return { picture: table({ head, rows, caption: `Accuracy in % by the methods' own rules on the clients' own test samples, by each protocol${spread}.` }) };
}

const seconds = (run) => Object.values(run.cost).flat().reduce((sum, value) => sum + (value || 0), 0);

function table({ head, rows, caption }) {
  const numeric = head.map((_, c) => c > 0 && rows.every((row) => /^(?:[<+\d–.,±\s%()-]|to)*(\s?([kMG]?B|s))?$/.test(row[c])));
  const cell = (name, c) => ({ class: numeric[c] ? "n" : name === "td" ? "value" : null });
  const line = (row) => html("tr", {}, html("th", { scope: "row" }, row[0]), ...row.slice(1).map((value, c) => html("td", cell("td", c + 1), value)));
  const top = html("thead", {}, html("tr", {}, ...head.map((name, c) => html("th", { scope: "col", ...cell("th", c) }, name))));
  const scrolled = html("div", { class: "table", tabindex: "0", role: "group", "aria-label": caption || head.join(", ") }, html("table", {}, top, html("tbody", {}, ...rows.map(line))));
  return caption ? html("div", {}, html("p", { class: "caption" }, caption), scrolled) : scrolled; // beside the part that scrolls, so that it wraps
}

function protocols() {
  const summary = shown().summary;
  if (!summary || !summary.made) return missing("The run has not ended: numbers by protocol are made at its end.");
  const rows = Object.entries(summary.protocols).map(([name, found]) => [
    PROTOCOLS[name] || name, span(found.rounds), ...shown().rules.map((rule) => percent((found.test[rule] || {})[scoreShown()])),
  ]);
  return { picture: table({ head: ["round that is reported", "rounds", ...shown().rules.map(ruleName)], rows, caption: `${SCORES[scoreShown()]}, in %, on the clients' own test samples, by rule` }) };
}

const span = (rounds) => (rounds.length > 1 ? `${rounds[0]}–${last(rounds)}` : String(rounds[0]));

const scoreShown = () => (state.score === "calibration" ? "weighted" : state.score);

function sharedScores() {
  const summary = shown().summary || {}, rules = Object.keys(summary.shared || {}), served = Object.entries(summary.server || {});
  if (!rules.length && !served.length) return missing("No shared test set was looked at in this run.");
  const rows = rules.map((rule) => [ruleName(rule), percent(summary.shared[rule].clients), percent(summary.shared[rule].ensemble)]);
  const server = served.map(([rule, value]) => [`server's model: ${ruleName(rule)}`, percent(value), "–"]);
  return { picture: table({ head: ["rule", "alone (mean)", "ensemble of all"], rows: [...rows, ...server], caption: "Accuracy in % on the shared test set" }) };
}

// What clients know together, over rounds: a line for each of these that the run shown has.
const TOGETHER = { server: "server's model, shared test set", teacher: "teacher, public samples", ensemble: "ensemble, shared test set", client: "a client alone, shared test set" };

function together(width) {
  const found = shown().together;
  if (!found) return missing(`${shown().method} has no model on the server, and no teacher of public samples.`);
  const list = Object.keys(TOGETHER).map((name, i) => series(TOGETHER[name], pairs(shown(), found[name]), i)).filter((one) => one.points.length);
  const y = { name: "accuracy in %", format: (v) => number(100 * v, 4), read: percent, least: 0, most: 1 };
  return { picture: lineChart(width, bySeries("Accuracy over rounds, in %", list, percent), { series: list, x: { name: "round", whole: true }, y }), table: asTable(list, "round", percent) };
}

function distribution(width) {
  const { classes, clients } = details(), part = state.share;
  if (!clients.length) return missing("This run has no line on its data yet.");
  const values = classes.map((_, c) => clients.map((client) => client[part][c])), columns = clients.map((client) => client.site || String(client.client));
  const sizes = clients.map((client) => client[part].reduce((a, b) => a + b, 0)), kinds = mean(clients.map((client) => client[part].filter((n) => n > 0).length));
  const label = `Samples by client and class: ${clients.length} clients with ${Math.min(...sizes)} to ${Math.max(...sizes)} samples of ${number(kinds)} classes on average.`;
  return { picture: bubbleChart(width, label, { rows: classes, columns, values, names: ["class", "client"], unit: "samples" }), table: { head: ["class", ...columns], rows: classes.map((name, c) => [name, ...values[c].map(String)]) } };
}

function models() {
  const found = new Map(), sum = (values) => values.reduce((a, b) => a + b, 0), clients = details().clients;
  if (!clients.length) return missing("This run has no line on its data yet.");
  const known = clients.every((client) => there(client.parameters)), counted = clients.some((client) => client.train.length), kind = (client) => `${client.architecture} ${client.parameters}`;
  for (const client of clients) found.set(kind(client), [...(found.get(kind(client)) || []), client]);
  const rows = [...found.values()].map((some) => [
    some[0].architecture, ...(known ? [grouped(some[0].parameters)] : []), some.map((client) => client.site || client.client).join(", "), ...(counted ? [grouped(sum(some.map((client) => sum(client.train))))] : []),
  ]);
  return { picture: table({ head: ["architecture", ...(known ? ["parameters"] : []), "clients", ...(counted ? ["training samples"] : [])], rows }) };
}

const NO_SNAPSHOTS = "This run kept no snapshots of its prototypes (evaluation.snapshots), or has not come to the first one.";

function cosines(width) {
  const space = details().space;
  if (!space) return missing(NO_SNAPSHOTS);
  const frame = upTo(space.rounds), found = space.cosines[frame];
  if (!found) return missing(`${shown().method} has no global prototypes in round ${space.rounds[frame]}.`);
  const names = found.classes.map((c) => details().classes[c]), off = found.rows.flatMap((row, r) => row.filter((_, c) => c > r));
  const label = `Cosines of the global prototypes after round ${space.rounds[frame]}: between two classes ${off.length ? `${number(Math.min(...off))} to ${number(Math.max(...off))}, mean ${number(mean(off))}` : "none"}.`;
  return { picture: heatMap(Math.min(width, 620), label, { rows: names, columns: names, values: found.rows, low: -1, high: 1, shade: DIVERGING, names: ["class", "class"], show: (value) => value.toFixed(2), unit: "cosine", square: true }), table: { head: ["class", ...names], rows: found.rows.map((row, r) => [names[r], ...row.map((value) => value.toFixed(2))]) }, note: label };
}

// Indices of the rounds that have geometry.
const measured = () => details().geometry.map((each, i) => (each ? i : null)).filter(there);

function margins(width) {
  const indices = measured();
  if (!indices.length) return missing("No evaluated round has prototypes to measure.");
  const all = indices.map((i) => details().geometry[i]), rounds = indices.map((i) => shown().rounds[i]), at = upTo(rounds), now = all[at], round = rounds[at];
  const at_ = (values, c) => (values.length && values[c] > 0 ? values[c] : null), names = ["widest client", "global prototypes"];
  const rows = details().classes.map((name, c) => ({ name, ring: at_(now.widest, c), dot: at_(now.margins, c), k: "k0" })).filter((row) => there(row.ring) || there(row.dot));
  for (const row of rows) row.text = `class ${row.name}\n${names[0]} ${number(row.ring)}, ${names[1]} ${number(row.dot)}`;
  const shrinkage = there(now.shrinkage) ? ` Global margins are ${percent(now.shrinkage)} % of the widest client's, mean over classes.` : "";
  const text = `Margins after round ${round}.${shrinkage}${now.margins.length ? "" : " The method has no global prototypes."}`;
  if (!rows.length) return missing(`${text} All margins are 0.`);
  const most = Math.max(...all.flatMap((each) => [...each.margins, ...each.widest]));
  return { picture: dumbbells(width, text, { rows, name: "distance to the nearest other class", rowName: "class", format: number, names, least: 0, most: most * 1.02 }), table: { head: ["class", ...names], rows: rows.map((row) => [row.name, number(row.ring), number(row.dot)]) }, note: text };
}

// Of the latest evaluation: how many samples a class has, how often it was answered, how often that was right.
function answered(width) {
  const found = details().answers, names = details().classes;
  if (!found) return missing("No round has been evaluated, or sites do not tell their classes.");
  const rows = names.map((name, c) => ({ name, ring: found.samples[c], dot: found.answers[c], k: found.answers[c] > found.samples[c] ? "k1" : "k0", right: found.hits[c] })).filter((row) => row.ring || row.dot);
  const share = (right, of) => (of ? right / of : null);
  for (const row of rows) row.text = `class ${row.name}: ${row.ring} samples, answered ${row.dot} times, right ${row.right} times`;
  const odd = [...rows].sort((a, b) => b.dot - b.ring - (a.dot - a.ring))[0];
  const text = `After round ${found.round}, by the method's own rule, over all clients. ${odd.dot > odd.ring ? `Class ${odd.name} is answered ${odd.dot} times for ${odd.ring} samples, most often too often.` : "No class is answered too often."}`;
  return {
    picture: dumbbells(width, text, { rows, name: "test samples", rowName: "class", format: (v) => number(v, 4), names: ["samples of the class", "answers of the class"], least: 0 }), note: text,
    table: { head: ["class", "samples", "answered", "right", "recall in %", "precision in %"], rows: rows.map((row) => [row.name, String(row.ring), String(row.dot), String(row.right), percent(share(row.right, row.ring)), percent(share(row.right, row.dot))]) },
  };
}

// A row for each class: the share of its test samples that were taken for each class.
function confusion(width) {
  const found = details().answers, names = details().classes;
  if (!found) return missing("No round has been evaluated, or sites do not tell their classes.");
  if (!found.mistakes.length && d3.sum(found.hits) < d3.sum(found.samples)) return missing("Which class is taken for which is recorded by simulations with up to 30 classes. protea predict has the confusion matrix of a client.");
  const rows = names.map((_, c) => c).filter((c) => found.samples[c]), counts = new Map(found.mistakes.map(([is, said, times]) => [`${is}/${said}`, times]));
  const count = (is, said) => (is === said ? found.hits[is] : counts.get(`${is}/${said}`) || 0);
  const columns = names.map((_, c) => c).filter((c) => found.answers[c] || found.samples[c]), values = rows.map((is) => columns.map((said) => count(is, said) / found.samples[is]));
  const [most] = [...found.mistakes].sort((a, b) => b[2] - a[2]), worst = most ? `The commonest mistake: class ${names[most[0]]} is taken for ${names[most[1]]}, ${most[2]} ${most[2] === 1 ? "time" : "times"}.` : "There is no mistake.";
  const label = `After round ${found.round}, by the method's own rule, over all clients. ${worst}`;
  return {
    picture: heatMap(width, label, { rows: rows.map((c) => names[c]), columns: columns.map((c) => names[c]), values, low: 0, high: 1, shade: CIVIDIS, names: ["class", "answered as"], show: (value) => (100 * value).toFixed(0), unit: "% of the samples of a class", square: true }), note: `${label} Numbers are % of a row's samples.`,
    table: { head: ["class", "samples", ...columns.map((c) => names[c])], rows: rows.map((c) => [names[c], String(found.samples[c]), ...columns.map((other) => String(count(c, other)))]) },
  };
}

function distances(width) {
  const known = details().geometry, some = (values) => (values && values.length ? mean(values) : null);
  const list = [
    ["margin of global prototypes, mean", (g) => some(g.margins)], ["margin of the widest client, mean", (g) => some(g.widest)],
    ["between prototypes of a client", (g) => g.inter], ["test samples to their prototype", (g) => g.intra],
  ].map(([name, of], i) => series(name, pairs(shown(), known.map((g) => (g ? of(g) : null))), i)).filter((one) => one.points.length);
  if (!list.length) return missing("No evaluated round has prototypes to measure.");
  return { picture: lineChart(width, bySeries("Distances in the space of features over rounds", list, number), { series: list, x: { name: "round", whole: true }, y: { name: "distance", least: 0 } }), table: asTable(list, "round", number) };
}

// The clients whose features the run's snapshots hold, and the one that is shown: as chosen, or one that this round has.
const seen = () => Object.keys((details().space || { features: {} }).features);

function seenClient() {
  if (seen().includes(state.of)) return state.of;
  const { features, rounds } = details().space || {}, held = (client) => features[client] && features[client].frames[upTo(rounds)].owner.length;
  return seen().find(held) || seen()[0];
}

const featuresTitle = () => (seen().length ? `Features of client ${seenClient()} and its prototypes` : "Features of a client and its prototypes");

function map(which) {
  return (width) => {
    const space = details().space;
    if (!space) return missing(NO_SNAPSHOTS);
    const found = which === "features" ? space.features[seenClient()] : space.prototypes;
    if (!found) return missing("The snapshots of this run hold no such points.");
    const index = upTo(space.rounds), frame = found.frames[index], by = frame[state.map] ? state.map : "pca", names = details().classes;
    if (!frame.owner.length) return missing(`The snapshot after round ${space.rounds[index]} holds no such points.`);
    const kind = (owner) => (owner === -1 ? "global" : owner === -2 ? "sample" : "client");
    const points = frame.owner.map((owner, i) => ({
      x: frame[by][2 * i], y: frame[by][2 * i + 1], kind: kind(owner), index: frame.label[i], faint: state.cls !== "all" && state.cls !== String(frame.label[i]),
      text: `${{ global: "global prototype", sample: `sample of client ${seenClient()}`, client: `prototype of client ${owner}` }[kind(owner)]}, class ${names[frame.label[i]]}`,
      mark: owner === -1 && names[frame.label[i]].length < 4 ? names[frame.label[i]] : null,
    }));
    const near = state.zoom === "round", paths = near ? [] : trails(found.frames.slice(0, index + 1), by);
    const order = Object.keys(KINDS);
    points.sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
    const count = (name) => points.filter((point) => point.kind === name).length;
    const kept = space.all > space.rounds.length ? ` ${space.rounds.length} of ${space.all} snapshots are laid out.` : "";
    const axis = by === "pca" ? ` The axes hold ${percent(found.shares[0])} % and ${percent(found.shares[1])} % of the variance over all rounds.` : "";
    const text = `${MAPS[by]} map after round ${space.rounds[index]}: ${count("global")} global prototypes (rings), ${count("client")} of clients (dots)${count("sample") ? `, ${count("sample")} test samples (small dots)` : ""}. Axes are the same in all rounds${near ? ", scaled to this one" : "; lines show where global prototypes came from"}.${axis}${kept}`;
    const axes = [0, 1].map((n) => (by === "pca" ? `PCA axis ${n + 1} (${percent(found.shares[n])} % of variance)` : `${MAPS[by]} axis ${n + 1} (no unit)`));
    const kinds = Object.keys(CALLED).filter(count).map((name) => ({ name: CALLED[name], mark: { d: outline("circle", Math.min(5, KINDS[name].r)), fill: name === "global" ? PAPER : SOFT, stroke: SOFT, "stroke-width": name === "global" ? 2 : 0 } }));
    return { picture: html("div", {}, scatterPlot(width, text, points, paths, { near, names: axes }), medium.legend(kinds), medium.legend(classKeys(names))), note: text, by };
  };
}

const CALLED = { sample: "test sample", client: "client's prototype", global: "global prototype" };

function classKeys(names) {
  const more = names.length > 30 ? [{ name: `and ${names.length - 30} more classes`, mark: {} }] : [];
  return [...names.slice(0, 30).map((name, c) => ({ name, mark: { d: outline(symbol(c), 4.7), fill: paint(colour(c)) } })), ...more];
}

// Of each class, the way of its global prototype through the frames.
function trails(frames, by) {
  const found = new Map();
  for (const frame of frames) {
    frame.owner.forEach((owner, i) => {
      if (owner === -1) found.set(frame.label[i], [...(found.get(frame.label[i]) || []), [frame[by][2 * i], frame[by][2 * i + 1]]]);
    });
  }
  return [...found].map(([index, points]) => ({ index, points, faint: state.cls !== "all" && state.cls !== String(index) }));
}

function communication(width) {
  const list = groups.map((group, i) => {
    const sent = overSeeds(group, (run) => cumulative(run)), reached = overSeeds(group, (run) => scores(run, state.part, state.rule, "weighted"));
    const at = new Map(sent.points), x = ([round]) => at.get(round);
    return series(seeds(group), reached.points.map((p) => [x(p), p[1]]), i, { band: reached.band && reached.band.map((b) => [x(b), b[1], b[2]]) });
  });
  if (!list.some((one) => one.points.length)) return missing("No round has been evaluated yet.");
  if (!list.some((one) => one.points.some((p) => p[0] > 0))) return missing("Nothing travels in these runs: there is no communication to show.");
  const ends = list.filter((one) => one.points.length).map((one) => `${one.name} reaches ${percent(last(one.points)[1])} % with ${size(last(one.points)[0])}`);
  return { picture: lineChart(width, `Accuracy against bytes sent: ${ends.join("; ")}.`, { series: list, x: { name: "sent so far, up and down", least: 0, format: size }, y: { name: "accuracy in %", format: (v) => number(100 * v, 4), read: percent, least: 0, most: 1 } }), table: { head: ["run", "bytes", "accuracy in %"], rows: list.flatMap((one) => one.points.map((p) => [one.name, String(p[0]), percent(p[1])])) } };
}

function cumulative(run) {
  let sum = 0;
  return run.rounds.map((round, i) => [round, (sum += run.bytes[i])]);
}

function epsilons(width) {
  const known = (run) => run.rounds.map((round, i) => [round, (run.epsilon || [])[i]]).filter((p) => there(p[1]));
  const list = groups.map((group, i) => series(seeds(group), overSeeds(group, known).points, i, {})).filter((one) => one.points.length);
  const ends = list.map((one) => `${one.name} has spent ${number(last(one.points)[1], 3)}`);
  return { picture: lineChart(width, `Epsilon by round: ${ends.join("; ")}.`, { series: list, x: { name: "round", whole: true }, y: { name: "epsilon", least: 0, format: (v) => number(v, 3) } }), table: { head: ["run", "round", "epsilon"], rows: list.flatMap((one) => one.points.map((p) => [one.name, String(p[0]), number(p[1], 4)])) } };
}

function time(width) {
  const run = shown(), names = Object.keys(run.cost);
  if (!run.rounds.length) return missing("No round has ended yet.");
  const total = (name) => run.cost[name].reduce((sum, value) => sum + (value || 0), 0), all = seconds(run) || 1;
  const text = `${number(all)} s in all: ${names.map((name) => `${name} ${number(total(name))} s (${percent(total(name) / all)} %)`).join(", ")}.`;
  const list = names.map((name, i) => ({ name, values: run.cost[name], k: colour(i) }));
  return { picture: stackedBars(width, `Seconds by round. ${text}`, { columns: run.rounds, series: list, x: { name: "round", whole: true }, y: { name: "seconds" } }), table: { head: ["round", ...names], rows: run.rounds.map((round, i) => [String(round), ...names.map((name) => number(run.cost[name][i]))]) }, note: text };
}

function byClass(width) {
  const rows = thinned(shown().rounds.map((round, i) => [round, details().by_class[i]]).filter((pair) => pair[1]), 100);
  if (!rows.length) return missing("No round has been evaluated yet.");
  const names = details().classes, end = last(rows)[1], worst = end.reduce((best, value, c) => (there(value) && (!there(end[best]) || value < end[best]) ? c : best), 0);
  const label = `Accuracy on each class over rounds by the method's own rule. In round ${last(rows)[0]} the worst is class ${names[worst]} with ${percent(end[worst])} %.`;
  const columns = rows.map(([round]) => String(round)), values = names.map((_, c) => rows.map((row) => row[1][c]));
  return { picture: heatMap(width, label, { rows: names, columns, values, low: 0, high: 1, shade: CIVIDIS, names: ["class", "round"], show: (value) => (100 * value).toFixed(0), unit: "accuracy in %" }), table: { head: ["class", ...columns], rows: names.map((name, c) => [name, ...values[c].map(percent)]) }, note: label };
}

function calibration(width) {
  const list = shown().rules.map((rule, i) => series(ruleName(rule), scores(shown(), state.part, rule, "calibration"), i));
  if (!list.some((one) => one.points.length)) return missing("No round has been evaluated yet.");
  return { picture: lineChart(width, bySeries("Calibration error over rounds", list, number), { series: list, x: { name: "round", whole: true }, y: { name: "calibration error", least: 0, most: 1 } }), table: asTable(list, "round", number) };
}

// Settings or environment: what is the same in all runs once, and for each group what is not.
function listing(field) {
  const show = (value) => (there(value) ? JSON.stringify(value).replace(/^"|"$/g, "") : "–");
  return () => {
    const names = [...new Set(runs.flatMap((run) => Object.keys(run[field])))];
    const values = (members, name) => [...new Set(members.map((run) => show(run[field][name])))];
    const same = names.filter((name) => values(runs, name).length === 1), apart = names.filter((name) => !same.includes(name));
    const pair = (name) => html("div", {}, html("dt", {}, name), html("dd", {}, show(runs[0][field][name])));
    const own = (members) => apart.map((name) => [name, values(members, name).filter((value) => value !== "–").join(", ")]).filter((each) => each[1]);
    const rows = groups.map((group) => [group.label, own(group.runs.map((index) => runs[index])).map(([name, text]) => `${name}\u00a0=\u00a0${text}`).join(";  ")]);
    const differ = apart.length ? [table({ head: ["runs", "what is not the same in all"], rows })] : [];
    const title = runs.length > 1 && same.length ? [html("h4", {}, "The same in all runs")] : [];
    return { picture: html("div", {}, ...differ, ...title, html("dl", { class: "pairs" }, ...same.map(pair))) };
  };
}
