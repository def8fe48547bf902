"use strict";

// A document to draw in where there is no browser: as much of one as Plot, D3 and our own charts ask for.

class Element {
  constructor(name, namespace) {
    Object.assign(this, { tagName: name, namespaceURI: namespace, ownerDocument: document, parentNode: null, childNodes: [], attributes: new Map() });
    this.style = { setProperty: (name, value) => this.setAttribute(name, value) };
    this.dataset = new Proxy({}, { set: (_, name, value) => (this.setAttribute(`data-${name}`, value), true) });
  }

  setAttribute(name, value) { this.attributes.set(name, String(value)); }
  setAttributeNS(_, name, value) { this.setAttribute(name, value); }
  getAttribute(name) { return this.attributes.get(name) ?? null; }
  removeAttribute(name) { this.attributes.delete(name); }
  addEventListener() {} // nothing points at a file

  insertBefore(child, next) {
    if (child.parentNode) child.parentNode.removeChild(child);
    this.childNodes.splice(next ? this.childNodes.indexOf(next) : this.childNodes.length, 0, child);
    child.parentNode = this;
    return child;
  }

  removeChild(child) {
    this.childNodes.splice(this.childNodes.indexOf(child), 1);
    child.parentNode = null;
  }

  appendChild(child) { return this.insertBefore(child, null); }
  append(...children) { for (const child of children) this.appendChild(child instanceof Element ? child : document.createTextNode(child)); }
  remove() { if (this.parentNode) this.parentNode.removeChild(this); }
  get firstChild() { return this.childNodes[0] ?? null; }
  get nextSibling() { return this.parentNode.childNodes[this.parentNode.childNodes.indexOf(this) + 1] ?? null; }
  get children() { return this.childNodes.filter((child) => child.tagName !== "#text"); }
  set textContent(text) { this.childNodes = []; this.append(text); }
  get textContent() { return this.text ?? this.childNodes.map((child) => child.textContent).join(""); }

  // Descendants by the name of an element, or .class.
  querySelectorAll(selector) {
    const fits = (one) => (selector[0] === "." ? (one.getAttribute("class") || "").split(" ").includes(selector.slice(1)) : one.tagName === selector);
    return this.children.flatMap((child) => [...(fits(child) ? [child] : []), ...child.querySelectorAll(selector)]);
  }

  get outerHTML() {
    const safe = (text) => text.toWellFormed().replace(/[\0-\x08\v\f\x0e-\x1f\ufffe\uffff]/g, "\ufffd").replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
    if (this.tagName === "#text") return safe(this.text);
    const attributes = [...this.attributes].map(([name, value]) => ` ${name}="${safe(value)}"`).join("");
    return `<${this.tagName}${attributes}>${this.childNodes.map((child) => child.outerHTML).join("")}</${this.tagName}>`;
  }
}

globalThis.document = {
  createElement: (name) => new Element(name, "http://www.w3.org/1999/xhtml"),
  createElementNS: (namespace, name) => new Element(name, namespace),
  createTextNode: (text) => Object.assign(new Element("#text", null), { text: String(text) }),
};
document.documentElement = document.createElement("html");
globalThis.window = globalThis;
