"use strict";

// Charts, all drawn by Observable Plot.  Colours are the page's own variables: another theme needs no drawing anew.

const INK = "var(--ink)", SOFT = "var(--soft)", RULE = "var(--rule)", PAPER = "var(--paper)", PANEL = "var(--panel)";
const paint = (k) => (k === "soft" ? SOFT : `var(--${k})`);
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const SYMBOLS = ["circle", "square", "triangle", "diamond"];
const symbol = (index) => SYMBOLS[Math.floor(index / COLOURS) % 3]; // of classes that share a colour
const outline = (name, radius) => d3.symbol({ circle: d3.symbolCircle, square: d3.symbolSquare, triangle: d3.symbolTriangle, diamond: d3.symbolDiamond }[name], Math.PI * radius ** 2)();

// A picture that says what it shows.
function plotted(label, { axis: both, ...options }) {
  const axis = { labelArrow: "none", labelAnchor: "center", ...both };
  const picture = Plot.plot({ className: "chart", ...options, x: { ...axis, ...options.x }, y: { ...axis, ...options.y } });
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", label);
  return picture;
}

// What the pointer is near to, on a card beside it.
const card = (data, pointer, channels) => (medium.interactive ? Plot.tip(data, pointer({ fill: PAPER, stroke: RULE, className: "card", fontSize: 12, ...channels })) : null);

// Both ends of an axis for values that need not begin at 0, with some air.
function ends(values, air, least = -Infinity, most = Infinity) {
  const [low, high] = d3.extent(values), more = (high - low || Math.abs(high) * 0.1 || 1) * air;
  return [Math.max(least, low - more), Math.min(most, high + more)];
}

// Round numbers along an axis, as many as there is room for.
const along = (low, high, width, whole) => d3.ticks(low, high, Math.max(2, Math.min(10, width / 85))).filter((tick) => !whole || Number.isInteger(tick));

const dotted = (one) => one.points.length <= 40; // more dots would be a thick line

// Lines over a common axis.  series: {name, points: [[x, y]], band: [[x, low, high]], k, dash, symbol, faint, thick}.
function lineChart(width, label, { series, guides = [], x, y }) {
  const height = Math.round(Math.min(380, Math.max(260, width * 0.4))), drawn = series.filter((one) => one.points.length);
  const ys = [...drawn.flatMap((one) => [...one.points.map((p) => p[1]), ...(one.band || []).flatMap((b) => [b[1], b[2]])]), ...guides.map((guide) => guide.value)];
  const [left, right] = d3.extent(drawn.flatMap((one) => one.points.map((point) => point[0])));
  const show = (axis) => axis.format || ((value) => number(value, 6)), read = (axis) => axis.read || axis.format || ((value) => number(value, 4));
  const marks = guides.map((guide) => Plot.ruleY([guide.value], { stroke: SOFT, strokeWidth: 1.5, strokeDasharray: guide.dash, className: "guide" }));
  for (const one of drawn) {
    const look = { stroke: paint(one.k), strokeOpacity: one.faint ? 0.16 : 1 };
    if (one.band && one.band.length > 1) marks.push(Plot.areaY(one.band, { x: "0", y1: "1", y2: "2", fill: paint(one.k), fillOpacity: 0.18, className: "band" }));
    marks.push(Plot.line(one.points, { x: "0", y: "1", ...look, strokeWidth: one.thick ? 3.2 : 1.7, strokeDasharray: one.dash || null, className: "series" }));
    if (dotted(one)) marks.push(Plot.dot(one.points, { x: "0", y: "1", r: one.thick ? 3 : 2.2, symbol: one.symbol || "circle", fill: paint(one.k), fillOpacity: one.faint ? 0.16 : 1, className: "dots" }));
  }
  const near = nearby(drawn, x, y, read);
  if (medium.interactive) marks.push(Plot.ruleX(near, Plot.pointerX({ x: "x", stroke: SOFT, strokeDasharray: "2 2" })), card(near, Plot.pointerX, { x: "x", y: "y", title: "text" }));
  const range = ends(ys, 0.06, y.least, y.most), letters = d3.max(d3.ticks(...range, 5), (tick) => show(y)(tick).length);
  const picture = plotted(label, {
    width, height, marks, marginLeft: Math.max(52, 26 + 7 * letters), marginBottom: 42, marginRight: 14, marginTop: 12,
    x: { type: x.type || "linear", domain: [x.least ?? left, right === left ? left + 1 : right], label: x.name, ticks: x.ticks || along(x.least ?? left, right, width, x.whole), tickFormat: (v) => show(x)(v) },
    y: { domain: range, label: y.name, grid: true, ticks: 5, tickFormat: (v) => show(y)(v) },
  });
  picture.querySelectorAll(".series").forEach((group, i) => Object.assign(group.dataset, { name: drawn[i].name, points: drawn[i].points.length }));
  return html("div", {}, picture, medium.legend([...drawn.map((one) => ({ ...one, symbol: dotted(one) && one.symbol })), ...guides.map((guide) => ({ ...guide, guide: true }))]));
}

// For every x the values of all lines there, largest first.
function nearby(series, x, y, read) {
  const found = new Map();
  for (const one of series) for (const [a, b] of one.points) found.set(a, [...(found.get(a) || []), [one.name, b]]);
  return [...found].map(([a, values]) => {
    values.sort((one, other) => other[1] - one[1]);
    const lines = values.slice(0, 12).map(([name, value]) => `${cut(name, 40)}  ${read(y)(value)}`), more = values.length > 12 ? [`and ${values.length - 12} more`] : [];
    return { x: a, y: values[0][1], text: [`${x.name} ${read(x)(a)}`, ...lines, ...more].join("\n") };
  });
}

// Names along an axis of which each stands for a row or a column, as many as there is room for.
function nameAxis(axis, names, room, options) {
  const every = Math.max(1, Math.ceil(room)), shown = names.map((_, i) => i).filter((i) => i % every === 0);
  return axis(shown, { tickFormat: (i) => cut(names[i], 14), tickSize: 0, labelArrow: "none", labelAnchor: "center", ...options });
}

// Rows and columns of marks, with the room their names need.
function grid(rows, columns, width, cell, line, names) {
  const marginLeft = 28 + 8 * Math.min(14, d3.max(rows, (row) => row.length)), marginBottom = 42, marginTop = 6, marginRight = 14;
  const step = cell(width - marginLeft - marginRight), deep = line(step), letters = d3.max(columns, (column) => Math.min(14, column.length));
  const axes = [
    nameAxis(Plot.axisX, columns, (9 + 7 * letters) / step, { label: names[1], anchor: "bottom" }), nameAxis(Plot.axisY, rows, 12 / deep, { label: names[0], anchor: "left" }),
  ];
  const all = (list) => list.map((_, i) => i), size = { width: marginLeft + marginRight + step * columns.length, height: marginTop + marginBottom + deep * rows.length };
  return { axes, step, deep, options: { marginLeft, marginBottom, marginTop, marginRight, ...size, x: { domain: all(columns) }, y: { domain: all(rows) } } };
}

// A circle for each pair, its area by the number.
function bubbleChart(width, label, { rows, columns, values, names, unit }) {
  const frame = grid(rows, columns, width, (room) => Math.max(13, Math.min(44, room / columns.length)), (step) => Math.max(14, Math.min(34, step)), names);
  const cells = values.flatMap((row, r) => row.map((value, c) => ({ r, c, value, text: `${names[1]} ${columns[c]}, ${names[0]} ${rows[r]}: ${value} ${unit}` }))).filter((each) => each.value > 0);
  const most = (Math.min(frame.step, frame.deep) / 2) * 0.95, { options } = frame;
  return plotted(label, {
    ...options, x: { ...options.x, type: "point", padding: 0.5 }, y: { ...options.y, type: "point", padding: 0.5 }, r: { domain: [0, d3.max(cells, (each) => each.value) || 1], range: [0, most] },
    marks: [...frame.axes, Plot.ruleY(rows.map((_, i) => i), { stroke: RULE }), Plot.dot(cells, { x: "c", y: "r", r: "value", fill: "var(--k0)", fillOpacity: 0.8, className: "bubbles" }), card(cells, Plot.pointer, { x: "c", y: "r", title: "text" })],
  });
}

const CIVIDIS = d3.interpolateCividis, DIVERGING = (share) => d3.interpolatePuOr(1 - share); // both safe for colour-blind readers

// A grid of shaded cells; null cells stay empty.
function heatMap(width, label, { rows, columns, values, low, high, shade, names, show, unit, square }) {
  const frame = grid(rows, columns, width, (room) => Math.max(square ? 12 : 3, Math.min(square ? 40 : 60, room / columns.length)), (step) => (square ? step : Math.max(12, Math.min(26, 300 / rows.length))), names);
  const cells = values.flatMap((row, r) => row.map((value, c) => ({ r, c, value, text: there(value) ? `${names[0]} ${rows[r]}, ${names[1]} ${columns[c]}: ${show(value)}` : "" }))).filter((each) => there(each.value));
  for (const each of cells) each.fill = d3.color(shade((each.value - low) / (high - low))).formatHex();
  const light = (hex) => d3.lab(hex).l > 58, { options } = frame;
  const inside = frame.step >= 27 ? [true, false].map((is) => Plot.text(cells.filter((each) => light(each.fill) === is), { x: "c", y: "r", text: (each) => show(each.value), fill: is ? "#111" : "#fff", fontSize: 10.5, className: "inside" })) : [];
  const picture = plotted(label, {
    ...options, color: { type: "identity" }, x: { ...options.x, type: "band", padding: frame.step > 8 ? 0.04 : 0 }, y: { ...options.y, type: "band", padding: 0.05 },
    marks: [...frame.axes, Plot.cell(cells, { x: "c", y: "r", fill: "fill", className: "cells" }), ...inside, card(cells, Plot.pointer, { x: "c", y: "r", title: "text" })],
  });
  return html("div", {}, picture, html("div", { class: "ramp" }, ramp(low, high, shade, show, unit)));
}

// The shades of a heat map, and the numbers that they stand for.
function ramp(low, high, shade, show, unit) {
  const end = d3.scaleLinear([0, 60], [low, high]), parts = d3.range(60).map((i) => ({ x1: end(i), x2: end(i + 1), fill: shade((i + 0.5) / 60) }));
  const axis = { domain: [low, high], ticks: [low, (low + high) / 2, high], tickFormat: (v) => show(v), label: unit, labelArrow: "none", labelAnchor: "center" };
  return Plot.plot({ className: "chart", width: 220, height: 52, margin: 20, marginTop: 0, marginBottom: 38, color: { type: "identity" }, x: axis, y: { axis: null }, marks: [Plot.rect(parts, { x1: "x1", x2: "x2", y1: 0, y2: 1, fill: "fill", shapeRendering: "crispEdges" })] });
}

// For each row a ring and a dot on one axis, joined by a line.  rows: {name, ring, dot, k, text}.
function dumbbells(width, label, { rows, name, rowName, format, names, least = -Infinity, most = Infinity }) {
  const line = rows.length > 40 ? 16 : 20, marginLeft = 36 + 7 * Math.min(14, Math.max(2, d3.max(rows, (row) => row.name.length)));
  const found = rows.map((row, i) => ({ ...row, i, colour: paint(row.k) })), both = (row) => [row.ring, row.dot].filter(there);
  const at = { y: "i", stroke: "colour" }, joined = found.filter((row) => both(row).length > 1);
  const picture = plotted(label, {
    width, height: 54 + line * rows.length, marginLeft, marginRight: 20, marginTop: 8, marginBottom: 42, color: { type: "identity" },
    x: { domain: ends(found.flatMap(both), 0.06, least, most), label: name, grid: true, ticks: Math.min(6, width / 90), tickFormat: (v) => format(v) }, y: { type: "point", domain: found.map((row) => row.i), padding: 0.5 },
    marks: [
      nameAxis(Plot.axisY, rows.map((row) => row.name), 1, { label: rowName, anchor: "left" }),
      Plot.link(joined, { x1: "ring", x2: "dot", ...at, strokeWidth: 1.7, className: "dumbbell" }),
      Plot.dot(found.filter((row) => there(row.ring)), { x: "ring", ...at, fill: PANEL, r: 4.2, strokeWidth: 1.7, className: "rings" }),
      Plot.dot(found.filter((row) => there(row.dot)), { x: "dot", y: "i", fill: "colour", r: 4.2, className: "dots" }),
      card(found, Plot.pointerY, { x: (row) => d3.max(both(row)), y: "i", title: "text" }),
    ],
  });
  const key = (name, fill) => ({ name, mark: { d: outline("circle", 4.2), fill, stroke: INK, "stroke-width": 1.7 } });
  return html("div", {}, picture, medium.legend([key(names[0], PANEL), key(names[1], INK)]));
}

// Rows of dots on one axis, with a bar at their mean, its interval, and the row's own guide.
function dotPlot(width, label, { rows, name, format }) {
  const line = 34, marginLeft = Math.min(width * 0.42, 20 + 7 * d3.max(rows, (row) => row.name.length)), room = Math.floor((marginLeft - 10) / 7);
  const domain = ends(rows.flatMap((row) => [...row.values, row.floor].filter(there)), 0.1, 0, 1), within = (value) => Math.min(domain[1], Math.max(domain[0], value));
  const found = rows.map((row, i) => ({ ...row, i, colour: paint(row.k), low: within(row.score.mean - (row.score.margin || 0)), high: within(row.score.mean + (row.score.margin || 0)) }));
  const dots = found.flatMap((row) => row.values.map((value, j) => ({ i: row.i, value, colour: row.colour, text: `${row.names[j]}: ${format(value)}` })));
  const bar = (options) => ({ y: "i", stroke: "colour", ...options }), tall = { insetTop: 7, insetBottom: 7 };
  return plotted(label, {
    width, height: 50 + line * rows.length, marginLeft, marginRight: 20, marginTop: 8, marginBottom: 42, color: { type: "identity" },
    x: { domain, label: name, grid: true, ticks: Math.min(6, width / 90), tickFormat: (v) => format(v) }, y: { type: "band", domain: found.map((row) => row.i), padding: 0 },
    marks: [
      Plot.axisY(found.map((row) => row.i), { tickFormat: (i) => cut(rows[i].name, room), tickSize: 0, label: null }),
      Plot.tickX(found.filter((row) => there(row.floor)), { x: "floor", y: "i", stroke: SOFT, strokeWidth: 1.5, strokeDasharray: "5 4", className: "guide" }),
      Plot.link(found, bar({ x1: "low", x2: "high", strokeWidth: 1.7 })), Plot.tickX(found, bar({ x: (row) => row.score.mean, strokeWidth: 3.2, ...tall })),
      Plot.dot(dots, { x: "value", y: "i", fill: "colour", r: 4, className: "dots" }), card(dots, Plot.pointer, { x: "value", y: "i", title: "text" }),
    ],
  });
}

// Bars of parts on top of each other.  series: {name, values, k}.
function stackedBars(width, label, { columns, series, x, y }) {
  const base = columns.map(() => 0), parts = [];
  for (const one of series) {
    columns.forEach((column, i) => {
      const value = one.values[i] || 0;
      parts.push({ x1: column - 0.4, x2: column + 0.4, x: column, y1: base[i], y2: (base[i] += value), colour: paint(one.k), text: `${x.name} ${column}, ${one.name}: ${number(value)}` });
    });
  }
  const picture = plotted(label, {
    width, height: Math.round(Math.min(340, Math.max(240, width * 0.42))), marginLeft: 52, marginBottom: 42, marginTop: 12, marginRight: 14, color: { type: "identity" },
    x: { domain: [columns[0] - 0.5, last(columns) + 0.5], label: x.name, ticks: along(columns[0], last(columns), width, true), tickFormat: String },
    y: { domain: [0, d3.max(base) * 1.05 || 1], label: y.name, grid: true, ticks: 5 },
    marks: [Plot.rect(parts, { x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill: "colour", className: "bars" }), card(parts, Plot.pointerX, { x: "x", y: "y2", title: "text" })],
  });
  return html("div", {}, picture, medium.legend(series.map((one) => ({ ...one, area: true }))));
}

// How points of each kind look on a map, the hindmost first: small dots, dots, and rings.
const KINDS = {
  sample: { r: 2, fillOpacity: 0.55 },
  client: { r: 4.2, fillOpacity: 0.75, stroke: PAPER, strokeWidth: 0.8 },
  global: { r: 8.5, fillOpacity: 0.75, fill: PAPER, strokeWidth: 2.6 },
};

// Points in the square from -1 to 1, or scaled to fill it; both axes have one scale.
// points: {x, y, kind, index, text, faint, mark}; paths: {index, points, faint}; names: of the axes.
function scatterPlot(width, label, points, paths, { near, names, dash = null, marks = [], ...options }) {
  const side = Math.min(width, 560), all = near ? [...points.map((p) => [p.x, p.y]), ...paths.flatMap((path) => path.points)] : [[-1, -1], [1, 1]];
  const [left, right] = d3.extent(all, (p) => p[0]), [low, high] = d3.extent(all, (p) => p[1]);
  const half = (Math.max(right - left, high - low) || 1) / 2, around = (middle) => [middle - half, middle + half];
  const ways = paths.flatMap((path) => path.points.map(([x, y]) => ({ x, y, index: path.index, faint: path.faint })));
  const k = (point) => paint(colour(point.index)), seen = (full) => (point) => (point.faint ? 0.1 : full), shape = { x: "x", y: "y", symbol: (point) => symbol(point.index) };
  const dots = Object.entries(KINDS).map(([kind, look]) => Plot.dot(points.filter((point) => point.kind === kind), {
    ...shape, fill: k, ...look, fillOpacity: seen(look.fillOpacity), ...(kind === "global" ? { stroke: k, strokeOpacity: seen(1) } : {}), className: "points",
  }));
  return plotted(label, {
    width: side, height: side, margin: 4, marginLeft: 20, marginBottom: 20, inset: 14, color: { type: "identity" }, symbol: { type: "identity" }, opacity: { type: "identity" }, axis: { ticks: [] }, ...options,
    x: { domain: around((left + right) / 2), label: names[0] }, y: { domain: around((low + high) / 2), label: names[1] },
    marks: [
      Plot.frame({ stroke: RULE, fill: PAPER, rx: 4 }),
      Plot.line(ways, { x: "x", y: "y", z: "index", stroke: k, strokeWidth: 1.2, strokeOpacity: 0.6, strokeDasharray: dash, className: "trails" }), ...dots,
      Plot.text(points.filter((point) => point.mark), { x: "x", y: "y", text: "mark", fill: INK, fontSize: 10.5, fontWeight: 600, className: "marks" }), card(points, Plot.pointer, { x: "x", y: "y", title: "text" }), ...marks,
    ],
  });
}
