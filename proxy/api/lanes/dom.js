// The little that is needed of the page's tree. Whatever comes from outside becomes a text node or
// the text of an attribute, never markup.

export const byId = (id) => document.getElementById(id);

// An element: h("li", { class: "lane" }, child, "text").
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Set only what differs: a page that stands still costs nothing, and keeps a reader's selection.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

// Make the children of `parent` those of `items`, in order, keeping elements by their key.
// make() gives { root, ... }; draw(view, item, index) fills it.
const kept = new WeakMap();

export function list(parent, items, keyOf, make, draw) {
  let views = kept.get(parent);
  if (!views) kept.set(parent, (views = new Map()));
  const present = new Set();
  let place = parent.firstElementChild;
  items.forEach((item, index) => {
    const key = keyOf(item, index);
    present.add(key);
    let view = views.get(key);
    if (!view) views.set(key, (view = make(item)));
    draw(view, item, index);
    if (view.root === place) place = place.nextElementSibling;
    else parent.insertBefore(view.root, place);
  });
  for (const [key, view] of views) {
    if (present.has(key)) continue;
    view.root.remove();
    views.delete(key);
  }
}

// A bar of parts: [{ name, share, title }], shares of 1.
export function stack(parent, parts) {
  list(
    parent, parts.filter((part) => part.share > 0), (part) => part.name,
    (part) => ({ root: h("span", { class: "part", "data-part": part.name }) }),
    (view, part) => view.root.style.setProperty("--share", part.share.toFixed(4)),
  );
}
