// The lanes page: reads the stream of status documents and draws each. It only ever reads.

import { byId, mark, say, show } from "./dom.js";
import { KeyNeeded, key, listen } from "./feed.js";
import { drawProfiles } from "./profiles.js";
import { drawMemory, drawReuse, drawTiles } from "./sums.js";
import { drawRequests } from "./requests.js";

const AGE_STEP_MS = 1000; // times on the page go on between two documents
const state = { status: null, received: 0, lost: "", stopped: 0 };
let connection = null;

export function draw(status = state.status) {
  if (!status) return;
  // Nobody knows what goes on without a connection: the times stand still.
  const passed_s = ((state.lost ? state.stopped : performance.now()) - state.received) / 1000;
  show(byId("shown"), true);
  mark(byId("shown"), "data-old", state.lost !== "");
  drawTiles(status);
  drawProfiles(status, passed_s);
  drawReuse(status);
  drawMemory(status);
  drawRequests(status);
  say(byId("about"), status.version === "unknown" ? "" : `version ${status.version}`);
  const profiles = Object.values(status.profiles);
  const run = profiles.reduce((sum, p) => sum + p.running, 0);
  const wait = profiles.reduce((sum, p) => sum + p.waiting.length, 0);
  document.title = `${run} running, ${wait} waiting · slotwise`;
}

function received(status) {
  Object.assign(state, { status, received: performance.now(), lost: "" });
  link("live", "live");
  draw();
  announce(enginesInWords(status));
}

function lost(text) {
  if (!state.lost) state.stopped = performance.now();
  state.lost = text;
  link("lost", `${text}, trying again`);
  draw();
  announce(`No connection: ${text}`);
}

function link(how, text) {
  mark(byId("link"), "data-state", how);
  say(byId("link-text"), text);
}

// A screen reader hears of connections and engines, not of every token.
function announce(text) {
  say(byId("said"), text);
}

function enginesInWords(status) {
  const told = Object.entries(status.engines).map(([name, e]) => `engine ${name} ${e.state}`);
  return ["Live", ...told].join(", ");
}

async function connect() {
  connection?.abort();
  const mine = (connection = new AbortController());
  show(byId("ask-key"), false);
  show(byId("forget"), key.get() !== null);
  try {
    await listen({ document: received, lost }, mine.signal);
  } catch (error) {
    if (!(error instanceof KeyNeeded)) throw error;
    askKey();
  }
}

function askKey() {
  say(byId("key-fault"), key.get() ? "This key is not known here." : "");
  forget();
  link("wait", "a key is needed");
  show(byId("ask-key"), true);
  byId("key").focus();
}

// Also what it opened: the next reader of this tab may not be the same.
function forget() {
  key.forget();
  state.status = null;
  show(byId("shown"), false);
  show(byId("forget"), false);
  document.title = "slotwise";
}

byId("ask-key").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  byId("key").value = "";
  connect();
});

byId("forget").addEventListener("click", () => {
  connection?.abort();
  forget();
  askKey();
});

// A page that nobody looks at needs no stream.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) connect();
  else {
    connection?.abort();
    link("wait", "paused");
  }
});

setInterval(draw, AGE_STEP_MS);
connect();
