"use strict";

// Drawing: small functions from plain values to SVG.  Data enters the page as text and attributes, never as markup.

const COLOURS = 7; // .k0 to .k6 in page.css; later series take them again with another dash or shape
const DASHES = ["", "6 3", "2 3", "9 3 2 3"];

function html(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function svg(name, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function picture(width, height, label, ...children) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, ...children);
}

function colour(index) {
  return `k${index % COLOURS}`;
}

function dash(index) {
  return DASHES[Math.floor(index / COLOURS) % DASHES.length];
}

const number = (value, digits = 3) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(digits))));
const percent = (value) => (value === null || value === undefined ? "–" : (100 * value).toFixed(1));
const grouped = (value) => value.toLocaleString("en");
const there = (value) => value !== null && value !== undefined;

function size(bytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 1000 || unit === "GB") return `${number(bytes)} ${unit}`;
    bytes /= 1000;
  }
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

// The sample standard deviation; 0 of a single value.
function deviation(values) {
  if (values.length < 2) return 0;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}

// Round numbers between low and high, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.8);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high + step * 1e-9; tick++) found.push(tick * step);
  return found;
}

function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

// At most `most` of the items, evenly spread, the last one among them.
function thinned(items, most) {
  if (items.length <= most) return items;
  return Array.from({ length: most }, (_, i) => items[Math.round((i * (items.length - 1)) / (most - 1))]);
}

// Axes with round ticks.  Gives the scales and the group of marks.
function axes(width, height, x, y) {
  const box = { left: 52, right: width - 14, top: 12, bottom: height - 42 };
  const sx = scale(x.low, x.high, box.left, box.right);
  const sy = scale(y.low, y.high, box.bottom, box.top);
  const group = svg("g", { class: "axes" });
  const show = (axis) => axis.format || ((value) => number(value, 6));
  for (const tick of ticks(y.low, y.high, 5)) {
    group.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: sy(tick), y2: sy(tick) }));
    group.append(svg("text", { x: box.left - 7, y: sy(tick) + 4, "text-anchor": "end" }, show(y)(tick)));
  }
  for (const tick of ticks(x.low, x.high, Math.max(2, Math.min(10, width / 85))).filter((t) => !x.whole || Number.isInteger(t))) {
    group.append(svg("line", { class: "tick", x1: sx(tick), x2: sx(tick), y1: box.bottom, y2: box.bottom + 4 }));
    group.append(svg("text", { x: sx(tick), y: box.bottom + 17, "text-anchor": "middle" }, show(x)(tick)));
  }
  group.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  const middle = (box.top + box.bottom) / 2;
  group.append(svg("text", { class: "name", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, x.name));
  group.append(svg("text", { class: "name", x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }, y.name));
  return { group, sx, sy, box };
}

function legend(entries) {
  const key = (entry) =>
    svg("svg", { width: 22, height: 12, "aria-hidden": "true", class: `${entry.k}${entry.thick ? " thick" : ""}` }, entry.area
      ? svg("rect", { class: "area", x: 2, y: 1, width: 18, height: 10 })
      : svg("line", { class: entry.guide ? "guide" : "line", x1: 1, x2: 21, y1: 6, y2: 6, "stroke-dasharray": entry.dash }));
  return html("ul", { class: "legend" }, ...entries.map((entry) => html("li", {}, key(entry), entry.name)));
}

// Lines over a common axis.  series: {name, points: [[x, y]], band: [[x, low, high]], k, dash, faint, thick}.
function lineChart(width, label, { series, guides = [], x, y }) {
  const height = Math.round(Math.min(380, Math.max(260, width * 0.4)));
  const drawn = series.filter((one) => one.points.length);
  const xs = drawn.flatMap((one) => one.points.map((point) => point[0]));
  const ys = [...drawn.flatMap((one) => [...one.points.map((p) => p[1]), ...(one.band || []).flatMap((b) => [b[1], b[2]])]), ...guides.map((g) => g.value)];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const margin = (high - low || Math.abs(high) || 1) * 0.06;
  const within = (value) => Math.min(y.most ?? Infinity, Math.max(y.least ?? -Infinity, value));
  const left = Math.min(...xs), right = Math.max(...xs);
  const frame = axes(width, height, { ...x, low: x.least ?? left, high: right === left ? left + 1 : right }, { ...y, low: within(low - margin), high: within(high + margin) });
  const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${frame.sx(a).toFixed(1)} ${frame.sy(b).toFixed(1)}`).join("");
  const marks = svg("g", {});
  for (const guide of guides) {
    const at = frame.sy(guide.value);
    marks.append(svg("line", { class: "guide", x1: frame.box.left, x2: frame.box.right, y1: at, y2: at, "stroke-dasharray": guide.dash }));
  }
  for (const one of drawn) {
    const group = svg("g", { class: `series ${one.k}${one.faint ? " faint" : ""}${one.thick ? " thick" : ""}`, "data-name": one.name, "data-points": one.points.length });
    if (one.band && one.band.length > 1) {
      const edge = [...one.band.map((b) => [b[0], b[2]]), ...one.band.map((b) => [b[0], b[1]]).reverse()];
      group.append(svg("path", { class: "band", d: path(edge) + "Z" }));
    }
    group.append(svg("path", { class: "line", d: path(one.points), "stroke-dasharray": one.dash }));
    if (one.points.length <= 40) {
      for (const [a, b] of one.points) group.append(svg("circle", { class: "dot", cx: frame.sx(a).toFixed(1), cy: frame.sy(b).toFixed(1), r: one.thick ? 3 : 2.2 }));
    }
    marks.append(group);
  }
  const root = picture(width, height, label, frame.group, marks);
  hover(root, frame, drawn, x, y);
  const keys = html("div", {}, legend([...drawn, ...guides.map((guide) => ({ ...guide, guide: true, k: "" }))]));
  return html("div", {}, root, keys);
}

// The values nearest to the pointer, beside it.
function hover(root, frame, series, x, y) {
  const cursor = svg("line", { class: "cursor", y1: frame.box.top, y2: frame.box.bottom, visibility: "hidden" });
  root.append(cursor);
  const xs = [...new Set(series.flatMap((one) => one.points.map((point) => point[0])))];
  const show = (axis) => axis.read || axis.format || ((value) => number(value, 4));
  root.addEventListener("pointermove", (event) => {
    const view = root.getBoundingClientRect();
    const at = ((event.clientX - view.left) / view.width) * root.viewBox.baseVal.width;
    const nearest = xs.reduce((best, value) => (Math.abs(frame.sx(value) - at) < Math.abs(frame.sx(best) - at) ? value : best), xs[0]);
    const found = series.flatMap((one) => one.points.filter((point) => point[0] === nearest).map((point) => [one.name, point[1]]));
    found.sort((a, b) => b[1] - a[1]);
    for (const side of ["x1", "x2"]) cursor.setAttribute(side, frame.sx(nearest));
    cursor.setAttribute("visibility", "visible");
    const lines = found.slice(0, 12).map(([name, value]) => `${name}  ${show(y)(value)}`);
    tip(event, [`${x.name} ${show(x)(nearest)}`, ...lines, ...(found.length > 12 ? [`and ${found.length - 12} more`] : [])]);
  });
  root.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    tip(null);
  });
}

function tip(event, lines = []) {
  const box = document.getElementById("tip");
  box.hidden = event === null;
  if (event === null) return;
  box.replaceChildren(...lines.map((line) => html("div", {}, line)));
  const room = document.documentElement.clientWidth - box.offsetWidth - 8;
  box.style.left = `${Math.max(4, Math.min(room, event.clientX + 14))}px`;
  box.style.top = `${event.clientY + 14}px`;
}

// What a mark says when the pointer is on it.
function told(mark, text) {
  mark.append(svg("title", {}, text));
  return mark;
}

// A circle for each pair, its area by the number.
function bubbleChart(width, label, { rows, columns, values, names, unit }) {
  const left = 28 + 8 * Math.min(14, Math.max(...rows.map((row) => row.length))), top = 8, bottom = 42;
  const cell = Math.max(13, Math.min(44, (width - left - 14) / columns.length));
  const line = Math.max(14, Math.min(34, cell)), wide = left + 14 + cell * columns.length, height = top + bottom + line * rows.length;
  const most = Math.max(1, ...values.flat());
  const group = svg("g", { class: "axes" }), marks = svg("g", { class: "k0" });
  const cx = (column) => left + cell * (column + 0.5), cy = (row) => top + line * (row + 0.5);
  rows.forEach((row, r) => {
    group.append(svg("line", { class: "grid", x1: left, x2: wide - 14, y1: cy(r), y2: cy(r) }));
    group.append(svg("text", { x: left - 6, y: cy(r) + 4, "text-anchor": "end" }, row.length > 14 ? row.slice(0, 13) + "…" : row));
  });
  const every = Math.ceil(22 / cell);
  columns.forEach((column, c) => {
    if (c % every === 0) group.append(svg("text", { x: cx(c), y: height - bottom + 16, "text-anchor": "middle" }, column));
  });
  values.forEach((row, r) => row.forEach((value, c) => {
    const radius = (Math.min(cell, line) / 2) * 0.95 * Math.sqrt(value / most);
    const mark = () => svg("circle", { class: "bubble", cx: cx(c), cy: cy(r), r: Math.max(1.2, radius).toFixed(1) });
    if (value > 0) marks.append(told(mark(), `${names[1]} ${columns[c]}, ${names[0]} ${rows[r]}: ${value} ${unit}`));
  }));
  group.append(svg("text", { class: "name", x: (left + wide) / 2, y: height - 6, "text-anchor": "middle" }, names[1]));
  group.append(svg("text", { class: "name", x: 12, y: (height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height - bottom) / 2})` }, names[0]));
  return picture(wide, height, label, group, marks);
}

// Colours between stops, all far apart for colour-blind readers and in grey.
const SEQUENTIAL = [[0, 32, 77], [87, 93, 109], [165, 156, 116], [255, 234, 70]]; // of cividis
const DIVERGING = [[0, 82, 140], [150, 190, 220], [247, 247, 247], [240, 180, 130], [190, 75, 0]];

function shade(share, stops) {
  const at = Math.min(1, Math.max(0, share)) * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(at));
  return stops[low].map((value, i) => Math.round(value + (at - low) * (stops[low + 1][i] - value)));
}

// A grid of shaded cells; null cells stay empty.
function heatMap(width, label, { rows, columns, values, low, high, stops, names, show, square }) {
  const left = 28 + 8 * Math.min(14, Math.max(...rows.map((row) => row.length))), bottom = 42, top = 6, key = 58;
  const cell = Math.max(square ? 12 : 3, Math.min(square ? 40 : 60, (width - left - key) / columns.length));
  const line = square ? cell : Math.max(12, Math.min(26, 300 / rows.length));
  const wide = left + key + cell * columns.length, height = top + bottom + line * rows.length;
  const group = svg("g", { class: "axes" }), marks = svg("g", {});
  rows.forEach((row, r) => group.append(svg("text", { x: left - 6, y: top + line * (r + 0.5) + 4, "text-anchor": "end" }, row.length > 14 ? row.slice(0, 13) + "…" : row)));
  const every = Math.ceil((9 + 7 * Math.max(...columns.map((column) => column.length))) / cell);
  columns.forEach((column, c) => {
    if (c % every === 0) group.append(svg("text", { x: left + cell * (c + 0.5), y: height - bottom + 16, "text-anchor": "middle" }, column));
  });
  values.forEach((row, r) => row.forEach((value, c) => {
    if (!there(value)) return;
    const rgb = shade((value - low) / (high - low), stops), light = 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2] > 140;
    const box = svg("rect", { class: "cell", x: left + cell * c, y: top + line * r, width: cell - (cell > 8 ? 1 : -0.3), height: line - 1, fill: `rgb(${rgb})` });
    marks.append(told(box, `${names[0]} ${rows[r]}, ${names[1]} ${columns[c]}: ${show(value)}`));
    if (cell >= 27) marks.append(svg("text", { class: "inside", x: left + cell * (c + 0.5), y: top + line * (r + 0.5) + 4, "text-anchor": "middle", fill: light ? "#111" : "#fff" }, show(value)));
  }));
  const steps = 24, depth = Math.min(160, line * rows.length);
  for (let i = 0; i < steps; i++) {
    group.append(svg("rect", { x: wide - key + 14, y: top + (depth * i) / steps, width: 10, height: depth / steps + 0.5, fill: `rgb(${shade(1 - i / (steps - 1), stops)})` }));
  }
  group.append(svg("text", { x: wide - key + 28, y: top + 10 }, show(high)), svg("text", { x: wide - key + 28, y: top + depth }, show(low)));
  group.append(svg("text", { class: "name", x: left + (cell * columns.length) / 2, y: height - 6, "text-anchor": "middle" }, names[1]));
  group.append(svg("text", { class: "name", x: 12, y: (height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height - bottom) / 2})` }, names[0]));
  return picture(wide, height, label, marks, group);
}

// One closed line for each series, over spokes.
function radarChart(width, label, { spokes, series, most }) {
  const side = Math.min(width, 460), middle = side / 2, radius = middle - 34;
  const point = (index, value) => {
    const angle = (2 * Math.PI * index) / spokes.length - Math.PI / 2, far = (radius * value) / (most || 1);
    return [middle + far * Math.cos(angle), middle + far * Math.sin(angle)];
  };
  const ring = (values) => values.map((value, i) => `${i ? "L" : "M"}${point(i, value).map((v) => v.toFixed(1)).join(" ")}`).join("") + "Z";
  const group = svg("g", { class: "axes" }), marks = svg("g", {});
  for (const tick of ticks(0, most, 4).filter((each) => each > 0)) {
    group.append(svg("path", { class: "grid", fill: "none", d: ring(spokes.map(() => tick)) }));
    group.append(svg("text", { class: "small", x: middle + 4, y: point(0, tick)[1] - 2 }, number(tick)));
  }
  const every = Math.ceil(spokes.length / 40);
  spokes.forEach((spoke, i) => {
    const [x, y] = point(i, most), [tx, ty] = point(i, most * (1 + 18 / radius));
    group.append(svg("line", { class: "grid", x1: middle, y1: middle, x2: x, y2: y }));
    if (i % every === 0) group.append(svg("text", { x: tx, y: ty + 4, "text-anchor": Math.abs(tx - middle) < 8 ? "middle" : tx > middle ? "start" : "end" }, spoke.length > 9 ? spoke.slice(0, 8) + "…" : spoke));
  });
  for (const one of series) {
    const path = svg("g", { class: `series ${one.k}`, "data-name": one.name }, svg("path", { class: "ring", d: ring(one.values), "stroke-dasharray": one.dash }));
    one.values.forEach((value, i) => {
      const [cx, cy] = point(i, value);
      path.append(told(svg("circle", { class: "dot", cx, cy, r: 3 }), `${one.name}, class ${spokes[i]}: ${number(value)}`));
    });
    marks.append(path);
  }
  return html("div", {}, picture(side, side, label, group, marks), legend(series));
}

const SHAPES = [
  (r) => `M${-r} 0A${r} ${r} 0 1 0 ${r} 0A${r} ${r} 0 1 0 ${-r} 0Z`,
  (r) => `M${-r} ${-r}H${r}V${r}H${-r}Z`,
  (r) => `M0 ${-1.3 * r}L${1.2 * r} ${r}H${-1.2 * r}Z`,
];

// Points in the square from -1 to 1, or scaled to fill it.  points: {x, y, kind, index, text, faint, mark}; paths: {index, points, faint}.
function scatterPlot(width, label, points, paths, near) {
  const side = Math.min(width, 560), range = (values) => [Math.min(...values), Math.max(...values)];
  const [left, right] = near ? range(points.map((p) => p.x)) : [-1, 1], [low, high] = near ? range(points.map((p) => p.y)) : [-1, 1];
  const half = (Math.max(right - left, high - low) || 1) / 2, centre = [(left + right) / 2, (low + high) / 2];
  const along = scale(centre[0] - half, centre[0] + half, 18, side - 18), up = scale(centre[1] - half, centre[1] + half, side - 18, 18);
  const marks = svg("g", { class: "map" });
  for (const path of paths) {
    const way = path.points.map(([x, y], i) => `${i ? "L" : "M"}${along(x).toFixed(1)} ${up(y).toFixed(1)}`).join("");
    marks.append(svg("g", { class: `${colour(path.index)} trail${path.faint ? " faint" : ""}` }, svg("path", { class: "line", d: way })));
  }
  for (const one of points) {
    const r = { sample: 2, client: 4.2, global: 8.5 }[one.kind], x = along(one.x), y = up(one.y);
    const shape = SHAPES[Math.floor(one.index / COLOURS) % SHAPES.length](r);
    const group = svg("g", { class: `${colour(one.index)} point ${one.kind}${one.faint ? " faint" : ""}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` }, svg("path", { d: shape }));
    if (one.mark) group.append(svg("text", { "text-anchor": "middle", y: 4 }, one.mark));
    marks.append(told(group, one.text));
  }
  return picture(side, side, label, svg("rect", { class: "plane", x: 0.5, y: 0.5, width: side - 1, height: side - 1, rx: 4 }), marks);
}

// Bars of parts on top of each other.  series: {name, values, k}.
function stackedBars(width, label, { columns, series, x, y }) {
  const height = Math.round(Math.min(340, Math.max(240, width * 0.42)));
  const sums = columns.map((_, i) => series.reduce((sum, one) => sum + (one.values[i] || 0), 0));
  const frame = axes(width, height, { ...x, low: columns[0] - 0.5, high: columns[columns.length - 1] + 0.5 }, { ...y, low: 0, high: Math.max(...sums) * 1.05 || 1 });
  const step = frame.sx(columns[0] + 1) - frame.sx(columns[0]), marks = svg("g", {}), base = columns.map(() => 0);
  for (const one of series) {
    const group = svg("g", { class: `series ${one.k}`, "data-name": one.name });
    columns.forEach((column, i) => {
      const value = one.values[i] || 0;
      const bar = svg("rect", { class: "area", x: frame.sx(column) - step * 0.4, width: step * 0.8, y: frame.sy(base[i] + value), height: Math.max(0, frame.sy(base[i]) - frame.sy(base[i] + value)) });
      group.append(told(bar, `${x.name} ${column}, ${one.name}: ${number(value)} s`));
      base[i] += value;
    });
    marks.append(group);
  }
  return html("div", {}, picture(width, height, label, frame.group, marks), legend(series.map((one) => ({ ...one, area: true }))));
}

// Rows of dots on one axis, with a bar at their mean, its interval, and the row's own guide.
function dotPlot(width, label, { rows, name, format }) {
  const left = Math.min(width * 0.42, 20 + 7 * Math.max(...rows.map((row) => row.name.length))), line = 34, bottom = 42;
  const height = 8 + bottom + line * rows.length, all = rows.flatMap((row) => [...row.values, row.floor].filter(there));
  const margin = (Math.max(...all) - Math.min(...all) || 0.02) * 0.1;
  const low = Math.max(0, Math.min(...all) - margin), high = Math.min(1, Math.max(...all) + margin), sx = scale(low, high, left, width - 20);
  const group = svg("g", { class: "axes" }), marks = svg("g", {});
  for (const tick of ticks(low, high, Math.min(6, width / 90))) {
    group.append(svg("line", { class: "grid", x1: sx(tick), x2: sx(tick), y1: 4, y2: height - bottom }));
    group.append(svg("text", { x: sx(tick), y: height - bottom + 16, "text-anchor": "middle" }, format(tick)));
  }
  group.append(svg("text", { class: "name", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, name));
  const room = Math.floor((left - 10) / 7);
  rows.forEach((row, i) => {
    const y = 8 + line * (i + 0.5), middle = row.score.mean, margin = row.score.margin || 0, each = svg("g", { class: `series ${row.k}`, "data-name": row.name });
    const text = svg("text", { x: left - 10, y: y + 4, "text-anchor": "end", class: "label" }, row.name.length > room ? row.name.slice(0, room - 1) + "…" : row.name);
    each.append(told(text, row.name));
    if (there(row.floor)) marks.append(told(svg("line", { class: "guide", x1: sx(row.floor), x2: sx(row.floor), y1: y - line / 2, y2: y + line / 2, "stroke-dasharray": "5 4" }), `majority class ${format(row.floor)}`));
    each.append(svg("line", { class: "line", x1: sx(Math.max(low, middle - margin)), x2: sx(Math.min(high, middle + margin)), y1: y, y2: y }));
    each.append(svg("line", { class: "line thick", x1: sx(middle), x2: sx(middle), y1: y - 9, y2: y + 9 }));
    row.values.forEach((value, j) => each.append(told(svg("circle", { class: "dot", cx: sx(value), cy: y, r: 4 }), `${row.names[j]}: ${format(value)}`)));
    marks.append(each);
  });
  return picture(width, height, label, group, marks);
}

// For each row a ring and a dot on one axis, joined by a line.  rows: {client, reference, accuracy, low, high, verdict}.
function dumbbells(width, label, { rows, names }) {
  const left = 30 + 7 * Math.max(2, ...rows.map((row) => String(row.client).length)), line = rows.length > 40 ? 16 : 20, top = 8, bottom = 42;
  const height = top + bottom + line * rows.length, all = rows.flatMap((row) => [row.reference, row.accuracy]);
  const margin = (Math.max(...all) - Math.min(...all) || 0.02) * 0.06, floor = top + line * rows.length;
  const low = Math.max(0, Math.min(...all) - margin), high = Math.min(1, Math.max(...all) + margin), sx = scale(low, high, left, width - 20);
  const group = svg("g", { class: "axes" }), marks = svg("g", {});
  for (const tick of ticks(low, high, Math.min(6, width / 90))) {
    group.append(svg("line", { class: "grid", x1: sx(tick), x2: sx(tick), y1: 4, y2: floor }));
    group.append(svg("text", { x: sx(tick), y: floor + 16, "text-anchor": "middle" }, number(100 * tick, 4)));
  }
  group.append(svg("text", { class: "name", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "accuracy in %"));
  group.append(svg("text", { class: "name", x: 12, y: floor / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${floor / 2})` }, "client"));
  rows.forEach((row, i) => {
    const y = top + line * (i + 0.5), kind = { better: "k0", worse: "k1", neither: "soft" }[row.verdict], points = (value) => `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}`;
    const each = svg("g", { class: `series dumbbell ${kind}`, "data-client": row.client });
    each.append(svg("text", { x: left - 10, y: y + 4, "text-anchor": "end", class: "label" }, String(row.client)));
    each.append(svg("line", { class: "line", x1: sx(row.reference), x2: sx(row.accuracy), y1: y, y2: y }));
    each.append(svg("circle", { class: "ring hollow", cx: sx(row.reference), cy: y, r: 4.2 }), svg("circle", { class: "dot", cx: sx(row.accuracy), cy: y, r: 4.2 }));
    const text = `client ${row.client}, ${row.samples} samples: ${names[0]} ${percent(row.reference)}, ${names[1]} ${percent(row.accuracy)}, ${points(row.mean)} (${points(row.low)} to ${points(row.high)}), ${row.verdict}`;
    marks.append(told(each, text));
  });
  const key = (name, mark) => html("li", {}, svg("svg", { width: 14, height: 12, "aria-hidden": "true", class: "k6" }, mark), name);
  const keys = html("ul", { class: "legend" }, key(names[0], svg("circle", { class: "ring hollow", cx: 7, cy: 6, r: 4.2 })), key(names[1], svg("circle", { class: "dot", cx: 7, cy: 6, r: 4.2 })));
  return html("div", {}, picture(width, height, label, group, marks), keys);
}
