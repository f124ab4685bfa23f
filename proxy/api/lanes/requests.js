// The last requests that ended; why tokens were computed again is one click away.

import { byId, h, list, mark, say, show, stack } from "./dom.js";
import { brief, percent, timeOfDay, whole } from "./figures.js";
import { get } from "./feed.js";

const opened = new Map(); // by id: those stay, however many end meanwhile
let rows = 0;

export function drawRequests(status) {
  const listed = status.requests;
  const present = new Set(listed.map((request) => request.id));
  const older = [...opened.values()].filter((request) => !present.has(request.id));
  const several = Object.keys(status.engines).length > 1;
  show(byId("no-requests"), listed.length === 0);
  show(byId("heads"), listed.length > 0);
  list(byId("requests"), [...listed, ...older], (request) => request.id, make,
    (view, request) => draw(view, request, several));
}

function make(request) {
  const id = `request-${(rows += 1)}`;
  const view = {
    time: h("span", { class: "time" }), kind: h("b"), session: h("code"),
    place: h("span", { class: "place" }), bar: h("span", { class: "stack mini", "aria-hidden": "true" }),
    share: h("span"), prompt: h("span"), first: h("span"), text: h("span", { class: "text" }),
    detail: h("div", { id, class: "detail" }),
  };
  view.detail.hidden = true;
  // The words that the column heads say where the page is wide.
  const word = (text) => h("span", { class: "unseen narrow" }, text);
  view.button = h("button", { type: "button", "aria-expanded": "false", "aria-controls": id },
    view.time, " ", h("span", { class: "who requester" }, view.kind, " ", view.session), " ", view.place, " ",
    h("span", { class: "prompt" }, view.prompt, word(" tokens")), " ", view.bar, " ",
    h("span", { class: "share" }, view.share, word(" cached")), " ",
    h("span", { class: "first" }, word("first token "), view.first), " ", view.text);
  view.button.addEventListener("click", () => toggle(view, request));
  view.root = h("li", {}, view.button, view.detail);
  return view;
}

function draw(view, request, several) {
  const n = request.prompt_tokens;
  const cached = request.cached_tokens;
  const share = cached == null || !n ? null : cached / n;
  say(view.time, timeOfDay(request.time));
  say(view.kind, request.kind);
  say(view.session, request.session);
  const slot = several ? request.slot : `slot ${request.slot.split("/").at(-1)}`;
  say(view.place, `${slot} · ${request.rule}`);
  say(view.prompt, whole(n));
  stack(view.bar, share == null ? [] : [{ name: "cached", share }, { name: "computed", share: 1 - share }]);
  say(view.share, share == null ? "?" : percent(share));
  say(view.first, brief(request.ttft_s));
  say(view.text, request.text);
  mark(view.root, "data-failed", request.failure != null);
}

async function toggle(view, request) {
  const opens = view.detail.hidden;
  mark(view.button, "aria-expanded", opens);
  show(view.detail, opens);
  if (!opens) {
    opened.delete(request.id);
    return;
  }
  opened.set(request.id, request);
  if (view.asked) return;
  view.asked = true;
  view.detail.replaceChildren(h("p", {}, "asking ..."));
  try {
    const reply = await get(`requests/${encodeURIComponent(request.id)}`, AbortSignal.timeout(15000));
    view.detail.replaceChildren(...explained(await reply.json()));
  } catch (error) {
    view.asked = false;
    view.detail.replaceChildren(h("p", { class: "fault" }, error.message || "a key is needed"));
  }
}

function explained(record) {
  const lines = record.lines.map((line, index) => h("p", index ? {} : { class: "culprit" }, line));
  return record.sections.length ? [...lines, table(record)] : lines;
}

function table(record) {
  const causes = Object.keys(record.tokens).filter((cause) => cause !== "cached");
  const cells = (row) => [row.tokens, row.cached, ...causes.map((cause) => row.computed[cause] ?? 0)];
  const head = ["section", "tokens", "cached", ...causes, "lost s"].map((text) => h("th", { scope: "col" }, text));
  const body = record.sections.map((row) => h("tr", {}, h("th", { scope: "row" }, row.section),
    ...cells(row).map((n) => h("td", {}, n ? whole(n) : "–")), h("td", {}, row.lost_s.toFixed(2))));
  const made = h("table", {}, h("caption", { class: "unseen" }, `Request ${record.id} by section`),
    h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tokens by section" }, made);
}
