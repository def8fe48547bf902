"use strict";

// Figures as files for papers: those of the page, and what papers have beside them.  A column is 378 wide, which is
// 3.5 inches; the page's text of 12 then has 8 points.  Nothing here can be pointed at, and legends are in the picture.

const COLUMN = 378, WIDEST = 2 * COLUMN, KEYS = 24; // most keys of a legend
const LETTERS = [[/[ijl|']/, 2.7], [/[ ftI.,:;!\/[\]]/, 3.4], [/[()r-]/, 4], [/[ckvxyzsJ]/, 6], [/[mMW%@]/, 10.3], [/[A-Zw]/, 8.5], [/[\u2e80-\uffff]/, 12], [/./su, 6.7]]; // and how wide they are
const wide = (text) => d3.sum([...text], (sign) => LETTERS.find(([some]) => some.test(sign))[1]);
const fitting = (text, room) => (wide(text) <= room ? text : fitting(cut(text, [...text].length - 1), room));
let sheet; // as wide as the figure that is drawn, which its legends fill

Object.assign(medium, {
  interactive: false,
  dash: (index) => DASHES[index % DASHES.length], // and so lines differ where there is no colour
  shape: (index) => SYMBOLS[index % 3],
  legend: (entries) => {
    const kept = entries.length > KEYS ? entries.filter((entry, i) => i < KEYS - 4 || entry.thick || entry.guide) : entries;
    return keys(kept.length < entries.length ? [...kept, { name: `and ${entries.length - kept.length} more`, mark: {} }] : kept);
  },
});

// A legend in rows that are as long as the figure is wide.
function keys(entries) {
  const rows = [[]];
  for (const entry of entries) {
    const name = fitting(entry.name, sheet - KEY - 16), long = KEY + 16 + wide(name), used = d3.sum(last(rows), (each) => each.long);
    if (used && used + long > sheet) rows.push([]);
    last(rows).push({ entry, name, long });
  }
  const all = svg("svg", { width: sheet, height: 16 * rows.length + 2 });
  rows.forEach((row, r) => {
    let x = (sheet - d3.sum(row, (each) => each.long)) / 2 + 6;
    for (const { entry, name, long } of row) {
      all.append(svg("g", { class: "key", transform: `translate(${x} ${16 * r + 1})` }, key(entry), svg("text", { x: KEY + 4, y: 11, fill: INK }, name)));
      x += long;
    }
  });
  return all;
}

// One picture of all pictures in a tree of elements: one below the other, those in a row side by side.
function composed(node) {
  if (node.tagName === "svg") return node;
  const parts = node.children.map(composed), size = (name) => parts.map((part) => Number(part.getAttribute(name))), beside = node.getAttribute("class") === "row";
  const [width, height] = beside ? [d3.sum(size("width")), d3.max(size("height"))] : [d3.max(size("width")), d3.sum(size("height"))];
  let at = 0;
  for (const part of parts) {
    const [w, h] = ["width", "height"].map((name) => Number(part.getAttribute(name)));
    for (const [name, value] of Object.entries({ x: beside ? at : (width - w) / 2, y: beside ? 0 : at })) part.setAttribute(name, value);
    at += beside ? w : h;
  }
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...parts);
}

// A picture as the text of a file: 1.5 of its units are a point, and its colours are written into it.
function file(picture, colours) {
  const all = html("div", {}, picture, svg("svg", { width: sheet, height: 4 })), label = all.querySelectorAll("svg").map((each) => each.getAttribute("aria-label"));
  for (const style of all.querySelectorAll("style")) style.remove();
  for (const each of all.querySelectorAll("g")) each.removeAttribute("font-weight"); // a PDF numbers two fonts as it happens
  for (const each of all.querySelectorAll("svg")) for (const name of ["font-family", "font-size", "class", "role", "aria-label"]) each.removeAttribute(name);
  const inner = composed(all), [width, height] = ["width", "height"].map((name) => Number(inner.getAttribute(name)));
  const whole = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg", width: `${width / 1.5}pt`, height: `${height / 1.5}pt`, viewBox: `0 0 ${width} ${height}`, role: "img",
    "font-family": "Liberation Sans, Arial, Helvetica, sans-serif", "font-size": 12, color: INK, fill: INK,
  }, svg("title", {}, label.filter(Boolean).join(" ")), svg("rect", { width, height, fill: PAPER }), inner);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${whole.outerHTML.replace(/="var\(--([a-z0-9-]+)\)"/g, (_, name) => `="${colours[name]}"`)}\n`;
}

// The figures of a page that are files too: how the page draws them, and by which choices.
const ON_PAGE = {
  accuracy: [accuracy, { view: "methods" }], communication: [communication, {}], gain: [gainOfClients, {}], loss: [losses, { view: "methods" }],
  clients: [accuracy, { view: "clients" }], data: [distribution, {}], classes: [byClass, {}], calibration: [calibration, {}],
  cosines: [cosines, {}], margins: [margins, {}], time: [time, {}],
  "map-pca": [map("prototypes"), { map: "pca" }], "map-tsne": [map("prototypes"), { map: "tsne" }],
  "features-pca": [map("features"), { map: "pca" }], "features-tsne": [map("features"), { map: "tsne" }],
};
const UNCHOSEN = { ...state };

// A figure of the page, of the first of some runs that has something for it.
function onPage({ name, of }) {
  const [figure, choice] = ON_PAGE[name];
  for (const run of of) {
    Object.assign(state, UNCHOSEN, choice, { run });
    const found = figure(COLUMN);
    if (found.picture.getAttribute("class") !== "missing" && (!choice.map || found.by === choice.map)) return found.picture;
  }
  return null;
}

// Lines over a common axis, one for each method.
function lines({ label, x, y, series: all, guides = [] }) {
  const list = all.map(({ name, points, band }, i) => series(name, points, i, { band }));
  return lineChart(COLUMN, label, { series: list, x: { whole: true, ...x }, y: { name: y }, guides: guides.map((guide) => ({ ...guide, dash: GUIDES[1] })) });
}

// Panels side by side, two or three in a row, or as many as each of the given rows has; below them what marks mean.
function panels(rows, draw, legend = []) {
  const all = rows.length > 1 ? rows : d3.groups(rows[0], (panel) => Math.floor(rows[0].indexOf(panel) / (rows[0].length === 4 ? 2 : 3))).map((row) => row[1]), most = d3.max(all, (row) => row.length);
  const width = most === 1 ? 300 : Math.floor(WIDEST / Math.max(3, most));
  sheet = Math.max(COLUMN, width * most);
  return html("div", {}, ...all.map((row) => html("div", { class: "row" }, ...row.map((panel) => draw(panel, width)))), ...(legend.length ? [medium.legend(legend)] : []));
}

const heading = (text, width, dy = -7) => Plot.text([fitting(text, width - 60)], { frameAnchor: "top", lineAnchor: "bottom", dy, fill: INK, className: "heading" });

// Numbers of each class around a centre: of each line its points and the way round through them.
function radar({ label, panels: all, legend }) {
  const look = legend.map((name, i) => ({ name, k: colour(i), dash: medium.dash(i), symbol: medium.shape(i) }));
  return panels([all], ({ title, names, lines: drawn }, width) => {
    const at = (i, r) => [r * Math.sin((2 * Math.PI * i) / names.length), r * Math.cos((2 * Math.PI * i) / names.length)];
    const round = (values) => [...values, values[0]].map((value, i) => at(i, value)), levels = [0.25, 0.5, 0.75, 1];
    return plotted(`${label}: ${title}.`, {
      width, height: width + 14, margin: 30, marginTop: 44, axis: { axis: null }, x: { domain: [-1, 1] }, y: { domain: [-1, 1] },
      marks: [
        ...levels.map((level) => Plot.line(d3.range(121).map((i) => [level * Math.sin((i * Math.PI) / 60), level * Math.cos((i * Math.PI) / 60)]), { stroke: RULE, strokeWidth: 0.8 })),
        Plot.link(names, { x1: 0, y1: 0, x2: (_, i) => at(i, 1)[0], y2: (_, i) => at(i, 1)[1], stroke: RULE, strokeWidth: 0.8 }),
        Plot.text(names.length > 20 ? [] : names, { x: (_, i) => at(i, 1.13)[0], y: (_, i) => at(i, 1.13)[1], text: (name) => cut(name, 8), fill: INK, fontSize: 10.5 }),
        ...drawn.flatMap((values, i) => (values.length ? [
          Plot.line(round(values), { stroke: paint(look[i].k), strokeWidth: 1.7, strokeDasharray: look[i].dash || null, className: "series" }),
          Plot.dot(round(values).slice(0, -1), { fill: paint(look[i].k), r: 2.2, symbol: look[i].symbol, className: "dots" }),
        ] : [])),
        Plot.text(levels.slice(1), { x: (level) => at(0.5, level)[0], y: (level) => at(0.5, level)[1], text: String, fill: SOFT, fontSize: 9, stroke: PAPER, strokeWidth: 2 }),
        heading(title, width, -24),
      ],
    });
  }, look);
}

// Maps of points whose colours and shapes are classes.
function maps({ label, rows, classes }) {
  return panels(rows, ({ title, points, rays = [], names = [null, null], numbers }, width) => {
    const free = numbers ? { axis: { ticks: 4 }, marginLeft: 36, marginBottom: 30, height: width + 14 } : { marginBottom: 4, height: width + 4 };
    return scatterPlot(width, `${label}: ${title}.`, points.map(([x, y, index, kind]) => ({ x, y, index, kind })), rays, { near: true, names: names.map((name) => name && fitting(name, width - 40)), dash: "5 3", marks: [heading(title, width)], marginTop: 24, ...free });
  }, classKeys(classes));
}

const LOOKS = [{ shape: "circle", k: "k0", r: 1.8 }, { shape: "square", k: "k1", r: 1.8 }, { shape: "diamond", k: "k6", r: 4 }];

// Points in the plane of two numbers, each of a kind: [x, y, kind], which the legend names.
function dots({ label, x, y, whole, panels: all, legend = [] }) {
  const across = (found) => (whole ? d3.extent(found, (p) => p[0]).map((end, i) => end + i - 0.5) : ends(found.map((p) => p[0]), 0.05));
  return panels([all], ({ title, points: found, more = "" }, width) => plotted(`${label}: ${title}.`, {
    width, height: width, marginLeft: 52, marginBottom: 42, marginTop: 34, marginRight: 12, symbol: { type: "identity" },
    x: { domain: across(found), label: x + more, ticks: along(...across(found), width, whole), ...(whole ? { tickFormat: String } : {}) }, y: { domain: ends(found.map((p) => p[1]), 0.05), label: y, ticks: 5, grid: true },
    marks: [...LOOKS.map(({ shape, k, r }, kind) => Plot.dot(found.filter((p) => p[2] === kind), { x: "0", y: "1", r, symbol: shape, fill: paint(k), fillOpacity: 0.8, className: "points" })), heading(title, width)],
  }), legend.map((name, i) => ({ name, mark: { d: outline(LOOKS[i].shape, 3.6), fill: paint(LOOKS[i].k) } })));
}

// A bar for each name, or words where there is none.
function bars({ label, x, rows, none }) {
  const line = 22, marginLeft = Math.min(COLUMN * 0.45, 16 + d3.max(rows, ([name]) => wide(name)));
  return plotted(label, {
    width: COLUMN, height: 60 + line * rows.length, marginLeft, marginRight: 14, marginTop: 10, marginBottom: 42,
    x: { domain: [0, d3.max(rows, (row) => row[1]) || 1], label: x, ticks: along(0, d3.max(rows, (row) => row[1]) || 1, COLUMN, true), tickFormat: String, grid: true }, y: { type: "band", domain: rows.map((_, i) => i), padding: 0.3 },
    marks: [
      Plot.axisY(rows.map((_, i) => i), { tickFormat: (i) => fitting(rows[i][0], marginLeft - 10), tickSize: 0, label: null }),
      Plot.barX(rows, { x: "1", y: (_, i) => i, fill: paint("k0"), className: "bars" }),
      Plot.text(rows.map(([, value], i) => [i, value]).filter(([, value]) => !there(value)), { x: 0, y: "0", text: () => none, textAnchor: "start", dx: 4, className: "none" }),
    ],
  });
}

const CHARTS = { onPage, lines, radar, maps, dots, bars };

// For each figure that is asked for the text of its file, or null where there is nothing to draw.
function drawn(asked) {
  const { content: found, figures, colours } = JSON.parse(asked);
  load(found);
  return JSON.stringify(figures.map((figure) => {
    sheet = COLUMN;
    try {
      const picture = CHARTS[figure.chart](figure);
      return picture && file(picture, colours);
    } catch (error) {
      throw new Error(`${figure.name || figure.label}: ${error.stack}`); // or V8 shows a line of the library, which is all of it
    }
  }));
}
