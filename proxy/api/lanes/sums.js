// The figures of the whole: tiles, the last hour's tokens by cause, the memory.

import { byId, h, list, mark, say, show, stack } from "./dom.js";
import { gib, percent, span, tokens, whole } from "./figures.js";

export function drawTiles(status) {
  list(byId("tiles"), tiles(status), (tile) => tile.name, makeTile, (view, tile) => {
    say(view.value, tile.value);
    say(view.note, tile.note);
  });
}

function makeTile(tile) {
  const view = { value: h("dd"), note: h("dd", { class: "note" }) };
  view.root = h("div", { class: "tile" }, h("dt", {}, tile.name), view.value, view.note);
  return view;
}

function tiles(status) {
  const hour = joined(status);
  const profiles = Object.values(status.profiles);
  const sum = (of) => profiles.reduce((total, profile) => total + of(profile), 0);
  const longest_s = Math.max(0, ...profiles.flatMap((p) => p.waiting.map((w) => w.waited_s)));
  const found = [
    { name: "Reuse, last hour", value: percent(hour.ratio),
      note: hour.bound == null ? "nothing reported yet" : `of ${percent(hour.bound)} possible` },
    { name: "Prefill saved", value: span(hour.avoided_s), note: `${span(hour.lost_s)} lost` },
    { name: "Running", value: `${sum((p) => p.running)}`, note: `of ${sum((p) => p.max_running)} at once` },
    { name: "Waiting", value: `${sum((p) => p.waiting.length)}`,
      note: longest_s ? `up to ${span(longest_s)}` : "nobody" },
  ];
  const memory = status.memory;
  if (memory?.available_bytes != null)
    found.push({ name: "Memory available", value: gib(memory.available_bytes),
      note: memory.floor_bytes == null ? "" : `floor ${gib(memory.floor_bytes)}` });
  return found;
}

// The last hour of all profiles together; ratios by the tokens they were taken of.
function joined(status) {
  const hours = Object.values(status.profiles).map((profile) => profile.last_hour);
  const sum = (of) => hours.reduce((total, hour) => total + of(hour), 0);
  const told = sum((hour) => hour.reported_tokens);
  return {
    ratio: told ? sum((hour) => hour.cached_tokens) / told : null,
    bound: told ? sum((hour) => hour.bound_tokens) / told : null,
    avoided_s: sum((hour) => hour.avoided_s),
    lost_s: sum((hour) => hour.lost_s),
    tokens: sum((hour) => hour.prompt_tokens),
    requests: sum((hour) => hour.requests),
  };
}

export function drawReuse(status) {
  const total = joined(status);
  const causes = new Map();
  for (const profile of Object.values(status.profiles))
    for (const { cause, text, tokens: n } of profile.last_hour.causes)
      causes.set(cause, { name: cause, text, tokens: n + (causes.get(cause)?.tokens ?? 0) });
  const all = [...causes.values()];
  say(byId("reuse-total"), `${tokens(total.tokens)} in ${whole(total.requests)} request${total.requests === 1 ? "" : "s"}`);
  for (const cause of all) cause.share = cause.tokens / total.tokens;
  stack(byId("reuse-bar"), all);
  mark(byId("reuse-bar"), "aria-label",
    all.map((c) => `${percent(c.share)} ${c.text}`).join(", ") || "No tokens yet");
  const rows = all.length ? all : [{ name: "none", text: "No request has ended yet.", share: null }];
  legend(byId("reuse"), rows.map((c) => ({ ...c, value: c.tokens ? tokens(c.tokens) : "" })));
}

// [{ name, text, value, share }]
function legend(parent, rows) {
  list(parent, rows, (row) => row.name, (row) => {
    const view = { text: h("span", { class: "text" }), value: h("span", { class: "value" }), share: h("span", { class: "share" }) };
    view.root = h("li", {}, h("span", { class: "key", "data-part": row.name, "aria-hidden": "true" }),
      view.text, " ", view.value, " ", view.share);
    return view;
  }, (view, row) => {
    say(view.text, row.text);
    say(view.value, row.value);
    say(view.share, row.share == null ? "" : percent(row.share));
  });
}

// Parts that no process holds: their colour is their own, and what they are is said.
const PARTS = { other: "other", free_lists: "free_lists: freed, not yet available" };

// The parts add up to what is not available; floors are counted from the right end.
export function drawMemory(status) {
  const memory = status.memory;
  show(byId("memory-card"), memory?.enabled === true);
  if (!memory?.enabled) return;
  const known = memory.total_bytes > 0 && memory.available_bytes != null;
  for (const id of ["memory-box", "memory", "memory-total"]) show(byId(id), known);
  say(byId("memory-note"), memoryInWords(memory, known));
  show(byId("memory-note"), byId("memory-note").textContent !== "");
  if (!known) return;
  const total = memory.total_bytes;
  const rows = Object.entries(memory.parts ?? {}).map(([name, bytes], index) =>
    ({ name: `memory-${name in PARTS ? name : index % 6}`, text: PARTS[name] ?? name, bytes }));
  const free = { name: "memory-free", text: "available", bytes: memory.available_bytes };
  const parts = [...rows, free].map((row) => ({ ...row, share: row.bytes / total }));
  stack(byId("memory-bar"), parts);
  mark(byId("memory-bar"), "aria-label", parts.map((p) => `${p.text} ${gib(p.bytes)}`).join(", "));
  legend(byId("memory"), [...parts, ...limits(memory, total)].map((row) => ({ ...row, value: gib(row.bytes) })));
  const age_s = memory.sample_age_s;
  say(byId("memory-total"), `${gib(total)}${age_s > 2 ? `, sampled ${span(age_s)} ago` : ""}`);
  list(byId("floors"), limits(memory, total).filter((l) => l.name !== "memory-reserved"), (l) => l.name,
    (limit) => ({ root: h("span", { class: "floor", "data-part": limit.name }) }),
    (view, limit) => view.root.style.setProperty("--share", Math.max(0, 1 - limit.share).toFixed(4)));
}

function memoryInWords(memory, known) {
  const told = known ? [] : [memory.problem || "How much memory there is was not read yet."];
  if (memory.reclaiming) told.push(`Memory is being taken back: ${memory.reclaiming}.`);
  const roles = Object.entries(memory.roles ?? {}).map(([name, state]) => `${name} ${state}`);
  if (roles.length) told.push(`Small models: ${roles.join(", ")}.`);
  if (memory.unloaded?.length) told.push(`Unloaded for want of memory: ${memory.unloaded.join(", ")}.`);
  return told.join(" ");
}

function limits(memory, total) {
  return [["floor", "floor: nothing new below it", memory.floor_bytes],
    ["hard", "hard floor: memory is taken back", memory.hard_floor_bytes],
    ["reserved", "reserved for what runs", memory.reserved_bytes]]
    .filter(([, , bytes]) => bytes != null)
    .map(([name, text, bytes]) => ({ name: `memory-${name}`, text, bytes, share: bytes / total }));
}
