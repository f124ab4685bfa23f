// Each profile: its lanes, one per slot, and the line of those who wait.

import { byId, h, list, mark, say, show, stack } from "./dom.js";
import { ago, percent, tokens, whole } from "./figures.js";

const PARTS = ["cached", "computed", "unread", "answer"];
let sections = 0;

export function drawProfiles(status, passed_s) {
  const profiles = Object.entries(status.profiles);
  const first = profiles.find(([, profile]) => slotsOf(profile).length)?.[0]; // one legend for all
  list(byId("lanes"), profiles, ([name]) => name, makeProfile, (view, [name, profile]) => {
    show(view.keys, name === first);
    drawProfile(view, name, profile, status.engines, passed_s);
  });
}

function makeProfile() {
  const id = `profile-${(sections += 1)}`;
  const view = {
    name: h("span"),
    about: h("small"),
    keys: legend(),
    banner: h("p", { class: "banner" }),
    lanes: h("ul", { class: "lanes" }),
    title: h("h3", { id: `${id}-waiting` }),
    count: h("small"),
    none: h("p", { class: "none" }, "Nobody waits."),
    line: h("ol", { class: "line" }),
  };
  view.title.append("Waiting ", view.count);
  view.scroll = h("div", { class: "scroll", role: "region", "aria-labelledby": `${id}-waiting` }, view.line);
  view.root = h("section", { class: "card", "aria-labelledby": id },
    h("h2", { id }, view.name, " ", view.about), view.keys, view.banner, view.lanes,
    view.title, view.none, view.scroll);
  return view;
}

function legend() {
  const words = { cached: "from the cache", computed: "computed", unread: "still to be read", answer: "answer" };
  const items = PARTS.map((part) =>
    h("li", {}, h("span", { class: "key", "data-part": part, "aria-hidden": "true" }), words[part]));
  return h("ul", { class: "keys" }, ...items);
}

function drawProfile(view, name, profile, engines, passed_s) {
  const own = Object.entries(engines).filter(([, engine]) => engine.profile === name);
  const up = own.filter(([, engine]) => engine.state === "up");
  say(view.name, name);
  say(view.about, `${profile.running} of ${profile.max_running} running${build(up)}`);
  drawBanner(view.banner, own, up);
  list(view.lanes, slotsOf(profile), (slot) => slot.label, makeLane, (lane, slot) => drawLane(lane, slot, passed_s));
  drawLine(view, profile.waiting, passed_s);
}

function slotsOf(profile) {
  const several = Object.keys(profile.engines).length > 1;
  return Object.entries(profile.engines).flatMap(([engine, { slots }]) =>
    slots.map((slot) => ({ ...slot, label: several ? `${engine}/${slot.id_slot}` : `${slot.id_slot}` })));
}

function build(up) {
  const builds = new Set(up.map(([, engine]) => engine.build).filter(Boolean));
  const named = [...builds].map((name) => (/^b\d/.test(name) ? `llama.cpp ${name}` : name));
  return named.length ? ` · ${named.join(", ")}` : "";
}

// What keeps it from working, or from working well.
function drawBanner(banner, own, up) {
  const told = own.filter(([, engine]) => engine.state !== "up")
    .map(([name, engine]) => `Engine ${name} is ${engine.state}: ${engine.text}`);
  if (!own.length) told.push("No engine has been started.");
  for (const [name, engine] of up)
    if (engine.pins === false) told.push(`Engine ${name} serves without pins: ${engine.text}`);
  const isComing = own.some(([, engine]) => ["starting", "probing"].includes(engine.state));
  mark(banner, "data-level", up.length || isComing ? "note" : "down");
  say(banner, told.join(" "));
  show(banner, told.length > 0);
}

function makeLane() {
  const view = {
    slot: h("span", { class: "slot" }),
    kind: h("b"),
    session: h("code"),
    more: h("small"),
    track: h("span", { class: "stack track", role: "meter", "aria-valuemin": "0" }),
    parts: h("small", { class: "parts" }),
    share: h("b"),
    size: h("small"),
    does: h("span", { class: "does" }),
    since: h("small"),
  };
  view.root = h("li", { class: "lane" },
    view.slot,
    h("span", { class: "who" }, view.kind, " ", view.session, " ", view.more),
    h("span", { class: "window" }, view.track, view.parts),
    h("span", { class: "full" }, view.share, " ", view.size),
    h("span", { class: "now" }, view.does, " ", view.since));
  return view;
}

function drawLane(view, slot, passed_s) {
  const unread = slot.state === "running" ? Math.max(0, slot.prompt - slot.cached - slot.computed) : 0;
  const counts = { cached: slot.cached, computed: slot.computed, unread, answer: slot.answer };
  const share = slot.resident / slot.window;
  mark(view.root, "data-state", slot.state);
  say(view.slot, slot.label);
  const holds = slot.prompt > 0;
  say(view.kind, holds ? slot.kind || "?" : "");
  say(view.session, slot.session);
  const turn = holds && slot.turns > 0 ? `turn ${slot.turns}` : "";
  say(view.more, [turn, slot.rule, slot.guest ? "guest" : ""].filter(Boolean).join(" · "));
  stack(view.track, PARTS.map((name) => ({ name, share: counts[name] / slot.window })));
  const told = PARTS.filter((name) => counts[name])
    .map((name) => `${whole(counts[name])} ${name === "unread" ? "to read" : name}`).join(" · ");
  say(view.parts, told || "holds nothing");
  mark(view.track, "aria-label", `Window of slot ${slot.label}`);
  mark(view.track, "aria-valuemax", slot.window);
  mark(view.track, "aria-valuenow", slot.resident);
  mark(view.track, "aria-valuetext", `${percent(share)} full`);
  say(view.share, percent(share));
  say(view.size, `${tokens(slot.resident)} of ${tokens(slot.window)}`);
  say(view.does, slot.text);
  say(view.since, `for ${ago(slot.since_s + passed_s)}`);
}

function drawLine(view, waiting, passed_s) {
  say(view.count, waiting.length ? `${waiting.length}` : "");
  show(view.none, waiting.length === 0);
  show(view.scroll, waiting.length > 0);
  if (waiting.length > 8) mark(view.scroll, "tabindex", 0); // a region that scrolls takes the focus
  else view.scroll.removeAttribute("tabindex");
  list(view.line, waiting, (one) => one.id, makeWaiter, (row, one) => drawWaiter(row, one, passed_s));
}

function makeWaiter() {
  const view = { kind: h("b"), session: h("code"), prompt: h("span", { class: "prompt" }),
    why: h("span", { class: "why" }), waited: h("span", { class: "waited" }), key: h("small") };
  view.root = h("li", {},
    h("span", { class: "who" }, view.kind, " ", view.session, " ", view.key),
    view.prompt, view.why, view.waited);
  return view;
}

function drawWaiter(view, one, passed_s) {
  say(view.kind, one.kind);
  say(view.session, one.session);
  say(view.key, one.key);
  say(view.prompt, `${whole(one.prompt_tokens)} tokens`);
  say(view.why, one.text);
  say(view.waited, ago(one.waited_s + passed_s));
  mark(view.root, "data-reason", one.reason);
}
