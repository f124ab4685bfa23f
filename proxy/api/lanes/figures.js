// How figures are written, everywhere the same.

export const whole = new Intl.NumberFormat("en-US").format;

export function percent(ratio) {
  return ratio == null ? "–" : `${(100 * ratio).toFixed(1)} %`;
}

export function gib(bytes) {
  return `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

export function tokens(n) {
  return n < 10000 ? whole(n) : n < 1e6 ? `${(n / 1e3).toFixed(1)}k` : `${(n / 1e6).toFixed(2)}M`;
}

// A length of time, as coarse as it is long.
export function ago(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}

export function brief(seconds) {
  if (seconds == null) return "–";
  return seconds < 10 ? `${seconds.toFixed(2)} s` : ago(seconds);
}

export function span(seconds) {
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 7200 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export function timeOfDay(seconds) {
  return clock.format(new Date(1000 * seconds));
}
