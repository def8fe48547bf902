"use strict";

// Figures as files: SVG and PNG as they are drawn, CSV of the numbers behind them.  Nothing leaves the browser.

const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

// A figure's picture with its looks written into it, since styles of the page do not travel.
function standalone(picture) {
  const copy = picture.cloneNode(true), [from, to] = [picture, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  to.forEach((element, i) => {
    if (element.tagName === "style") return;
    const look = getComputedStyle(from[i]);
    for (const name of LOOKS) if (look.getPropertyValue(name)) element.setAttribute(name, look.getPropertyValue(name));
    element.removeAttribute("style");
  });
  copy.querySelectorAll("style").forEach((element) => element.remove());
  copy.querySelectorAll('[aria-label="tip"]').forEach((element) => element.remove());
  const { width, height } = picture.viewBox.baseVal, title = svg("title", {}, picture.getAttribute("aria-label") || "");
  const back = svg("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor });
  copy.prepend(title, back);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return new XMLSerializer().serializeToString(copy);
}

const asUrl = (text) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;

// Three pixels for each of the figure's, enough for a page of paper.
async function asPng(picture) {
  const image = new Image(), { width, height } = picture.viewBox.baseVal, canvas = html("canvas", { width: 3 * width, height: 3 * height });
  image.src = asUrl(standalone(picture));
  await image.decode();
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function asCsv({ head, rows }) {
  const quoted = (value) => {
    const text = value === "–" ? "" : String(value).replaceAll("\u00a0", " "), safe = /^[=+@\t]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [head, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

function save(name, blob) {
  const address = URL.createObjectURL(blob), link = html("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// The numbers of a figure that is a table itself.
function read(picture) {
  const found = picture.querySelector("table");
  if (!found) return null;
  const [head, ...rows] = [...found.rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  return { head, rows };
}

// Buttons below a figure for what it can be saved as.
function offer(figure) {
  const picture = figure.plot.querySelector("svg[role=img]"), name = `protea-${figure.id}`, button = (kind, act) => {
    const made = html("button", { type: "button", "data-kind": kind, "aria-label": `Save ${figure.heading.textContent} as ${kind}` }, kind);
    made.addEventListener("click", act);
    return made;
  };
  const kinds = [];
  if (picture) kinds.push(button("SVG", () => save(`${name}.svg`, new Blob([standalone(picture)], { type: "image/svg+xml" }))), button("PNG", async () => save(`${name}.png`, await asPng(picture))));
  if (figure.numbers) kinds.push(button("CSV", () => save(`${name}.csv`, new Blob([asCsv(figure.numbers)], { type: "text/csv" }))));
  figure.files.replaceChildren(...(kinds.length ? ["Save as ", ...kinds] : []));
}
