// Encodes the state of the page in the fragment of its URL, and decodes it.

/** Boolean options, by the ids of their controls. */
const SWITCHES = ["inverted", "flame", "split", "sourceLabels", "vanished"];

/** Which frames are drawn. */
const FRAMES = ["folded", "own", "python", "all"];

const PANES = ["graph", "function", "line"];

/** The default state. */
const DEFAULTS = {
  view: 0,
  metric: "bytes",
  thread: -1,
  range: null,
  inverted: false,
  flame: false,
  split: false,
  frames: "folded",
  sourceLabels: false,
  hide: 0,
  imports: null,
  arenas: null,
  q: "",
  zoom: [],
  pane: "graph",
  colorBy: "own",
  vanished: false,
};

/** Encodes only what differs from the defaults. */
function linkOf(state, theme) {
  const link = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    const isDefault = JSON.stringify(value) === JSON.stringify(DEFAULTS[key]);
    if (!isDefault) link.set(key, Array.isArray(value) ? value.join(".") : value);
  }
  link.set("theme", theme || "");
  return `#${link}`;
}

/** Decodes a link. Invalid values keep their defaults. */
function stateOf(hash, model) {
  const link = new URLSearchParams(hash.slice(1));
  if (!link.size) return {};
  const { data, liveGroup, time } = model;
  const text = (key) => link.get(key) || "";
  const one = (key, known) => (known.includes(text(key)) ? text(key) : known[0]);
  const asked = (key) => (link.has(key) ? text(key) === "true" : null);
  const numbers = (key) => text(key).split(".").filter(Boolean).map(Number).filter(Number.isInteger);
  const state = Object.fromEntries(SWITCHES.map((key) => [key, link.get(key) === "true"]));
  const view = +text("view");
  const thread = link.has("thread") ? +link.get("thread") : -1;
  const range = numbers("range");
  const isRange = range.length === 2 && liveGroup && 0 <= range[0] && range[0] <= range[1] && range[1] < time.length;
  return {
    ...state,
    view: data.views[view] ? view : 0,
    thread: data.threads[thread] === undefined ? -1 : thread,
    metric: one("metric", ["bytes", "count"]),
    pane: one("pane", PANES),
    frames: one("frames", FRAMES),
    colorBy: one("colorBy", ["own", "total"]),
    hide: +text("hide") & 63,
    imports: asked("imports"),
    arenas: asked("arenas"),
    q: text("q"),
    zoom: numbers("zoom").slice(0, 5000),
    range: isRange ? range : null,
  };
}
