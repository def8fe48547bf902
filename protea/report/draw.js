"use strict";

// Elements and words: small functions for all that is no chart.  Data enters the page as text and attributes, never as
// markup.

const COLOURS = 7; // --k0 to --k6 in page.css; later series take them again with another dash or shape
const DASHES = ["", "6 3", "2 3", "9 3 2 3"];

// What differs between figures of a page, as here, and those of a file, as in paper.js: whether a pointer can be near,
// how lines are told apart beside their colours, and where it stands what marks mean.
const medium = {
  interactive: true,
  dash: (index) => DASHES[Math.floor(index / COLOURS) % DASHES.length],
  shape: () => "circle",
  legend: (entries) => html("ul", { class: "legend" }, ...entries.map((entry) => html("li", {}, svg("svg", { width: KEY, height: 14, "aria-hidden": "true" }, key(entry)), entry.name))),
};

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

function colour(index) {
  return `k${index % COLOURS}`;
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

// At most `most` of the items, evenly spread, the last one among them.
function thinned(items, most) {
  if (items.length <= most) return items;
  return Array.from({ length: most }, (_, i) => items[Math.round((i * (items.length - 1)) / (most - 1))]);
}

// What stands in a legend before a name, in a box of 22 by 14: a mark, an area, or a line.
const KEY = 22;

function key({ mark, area, guide, thick, k, dash, symbol }) {
  if (mark) return svg("path", { transform: `translate(${KEY / 2} 7)`, ...mark });
  if (area) return svg("rect", { x: 2, y: 2, width: KEY - 4, height: 10, fill: paint(k) });
  const line = svg("line", { class: guide ? "guide" : null, x1: 1, x2: KEY - 1, y1: 7, y2: 7, stroke: guide ? SOFT : paint(k), "stroke-width": thick ? 3.2 : 1.7, "stroke-dasharray": dash || null });
  return symbol ? svg("g", {}, line, key({ mark: { d: outline(symbol, 4), fill: paint(k) } })) : line;
}
