// The stream of documents: one connection, with the reader's key, made again when it breaks.
// fetch and not EventSource, because only fetch can send a key.

const SILENCE_MS = 12000; // the server sends something every five seconds
const LONGEST_PAUSE_MS = 8000;
const KEY = "slotwise-key";

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

export class KeyNeeded extends Error {}

// GET with the key. Throws KeyNeeded, or an Error whose message says what went wrong.
export async function get(path, signal) {
  const given = key.get();
  const headers = given ? { Authorization: `Bearer ${given}` } : {};
  const reply = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit" });
  if (reply.status === 401) throw new KeyNeeded();
  if (!reply.ok) {
    const body = await reply.json().catch(() => ({}));
    throw new Error(body?.error?.message ?? `the answer was ${reply.status}`);
  }
  return reply;
}

// Calls on.document(document) for each, on.lost(text) when there are none for now. Ends only when
// a key is needed, with KeyNeeded, or when the signal says so.
export async function listen(on, signal) {
  let pause_ms = 250;
  while (!signal.aborted) {
    try {
      await read(on, signal, () => { pause_ms = 250; });
      on.lost("the stream ended");
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof KeyNeeded) throw error;
      on.lost(error instanceof TypeError ? "slotwise does not answer" : error.message);
    }
    await sleep(pause_ms, signal);
    pause_ms = Math.min(2 * pause_ms, LONGEST_PAUSE_MS);
  }
}

async function read(on, signal, came) {
  const connection = new AbortController();
  const stop = () => connection.abort();
  signal.addEventListener("abort", stop);
  let silence = setTimeout(stop, SILENCE_MS);
  try {
    const reply = await get("events", connection.signal);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(stop, SILENCE_MS);
      const frames = (text + value).split("\n\n");
      text = frames.pop();
      const newest = frames.findLast((frame) => frame.startsWith("data: "));
      if (newest) {
        came();
        on.document(JSON.parse(newest.slice(6)));
      }
    }
  } catch (error) {
    if (connection.signal.aborted && !signal.aborted) throw new Error("slotwise is silent");
    throw error;
  } finally {
    clearTimeout(silence);
    signal.removeEventListener("abort", stop);
    connection.abort();
  }
}

function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
