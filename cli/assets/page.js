// The page: state, controls, tooltip, keyboard, and links to what is shown.

const $ = (id) => document.getElementById(id);

/** What is on or off, by the names of its control. */
const SWITCHES = ["inverted", "flame", "split", "imports", "library", "interpreter", "native", "vanished"];

/** What the keys do. */
const KEYS = [
  ["/", "search"], ["← ↑ → ↓ Enter", "move in the graph, zoom"], ["Backspace Esc", "zoom out, once or all the way"],
  ["v b", "next view; bytes or number"], ["i f s", "inverted; upwards; split by thread"],
  ["m l", "hide imports; hide the standard library"], ["p n", "hide the interpreter's own code; all native code"],
  ["g t", "graph or table; light or dark"],
];

class Page {
  constructor(data) {
    this.model = new Model(data);
    const { start } = data;
    this.state = {
      view: start.view, metric: start.counts ? "count" : "bytes", thread: -1, range: null, inverted: start.inverted,
      flame: false, split: start.split, imports: false, library: false, interpreter: false, native: false, q: "", zoom: [], pane: "graph",
      colorBy: "own", vanished: false,
    };
    this.fromLink();
    this.graph = new Graph($("graph"), $("graphPane"), this.model, {
      hover: (block, event) => this.hover(block, event), choose: (block) => this.set({ zoom: block.path() }),
    });
    this.table = new Table($("tablePane"), this.model, (q) => this.set({ q, pane: "graph" }));
    if (this.model.time?.length > 1) {
      $("time").hidden = false;
      this.chart = new Chart($("chart"), this.model, (range) => this.set({ range, zoom: [] }));
    }
    this.controls();
    this.setTheme(this.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
    addEventListener("resize", () => { this.graph.draw(); this.chart?.draw(); });
    addEventListener("hashchange", () => { if (location.hash !== this.hash) { this.fromLink(); this.update(); } });
    this.update();
  }

  /** Changes what is shown. */
  set(change) {
    Object.assign(this.state, change);
    this.update();
  }

  selection() {
    const { view, metric, thread, range, vanished } = this.state;
    return { view, metric, thread, range, vanished: vanished && this.model.diff };
  }

  update() {
    const { state, model } = this;
    if (state.range && state.view > 2) state.view = 0;
    const selection = this.selection(), { inverted, imports, library, interpreter, native } = state, split = state.split && state.thread < 0;
    const key = JSON.stringify([selection, inverted, imports, library, interpreter, native, split]);
    if (this.layoutKey !== key) this.layout = new Layout(model, selection, { inverted, imports, library, interpreter, native, split });
    this.layoutKey = key;
    const matches = model.matching(state.q), focus = this.layout.find(state.zoom);
    state.zoom = focus.path();
    this.graph.show(this.layout, focus, { ...state, matches });
    if (state.pane === "table") this.table.show(this.layout.figures, state.metric, matches);
    this.chart?.show(state.range);
    this.showControls(matches);
    this.toLink();
  }

  controls() {
    const { model } = this, { data } = model;
    $("title").textContent = $("title").title = data.title;
    this.switch("views", ["Peak", "Leaks", "At exit", "Temporary", "All"].map((text, view) => [view, text]), "view");
    this.switch("metrics", [["bytes", "Bytes"], ["count", "Number"]], "metric");
    this.switch("panes", [["graph", "Graph"], ["table", "Table"]], "pane");
    for (const id of SWITCHES) {
      $(id).onchange = () => this.set({ [id]: $(id).checked, ...(id === "flame" ? {} : { zoom: [] }) });
    }
    $("splitLabel").hidden = $("thread").hidden = data.threads.length < 2;
    $("thread").append(new Option("All threads", -1), ...data.threads.map((name, thread) => new Option(threadName(name), thread)));
    $("thread").onchange = () => this.set({ thread: +$("thread").value, zoom: [] });
    $("importsLabel").hidden = !model.frames.some((frame) => frame.imports);
    for (const kind of ["library", "interpreter", "native"]) $(`${kind}Label`).hidden = !model.frames.some((frame) => frame[kind]);
    $("hide").hidden = !$("hide").querySelector("label:not([hidden])");
    $("diffControls").hidden = $("legend").hidden = !model.diff;
    $("colorBy").onchange = () => this.set({ colorBy: $("colorBy").value });
    $("search").oninput = () => { clearTimeout(this.typing); this.typing = setTimeout(() => this.set({ q: $("search").value }), 120); };
    $("back").onclick = () => this.set({ zoom: this.state.zoom.slice(0, -1) });
    $("csv").onclick = () => this.exportCsv();
    $("link").onclick = () => this.copyLink();
    $("info").onclick = () => this.about();
    $("theme").onclick = () => this.setTheme(this.theme === "dark" ? "light" : "dark");
    addEventListener("keydown", (event) => this.key(event));
  }

  switch(id, options, key) {
    $(id).replaceChildren(...options.map(([value, text]) => {
      const button = document.createElement("button");
      button.textContent = text;
      button.setAttribute("role", "radio");
      button.dataset.value = value;
      button.onclick = () => this.set({ [key]: value, ...(key === "pane" ? {} : { zoom: [] }) });
      return button;
    }));
  }

  showControls(matches) {
    const { state, model } = this;
    for (const [id, key] of [["views", "view"], ["metrics", "metric"], ["panes", "pane"]]) {
      for (const button of $(id).children) button.setAttribute("aria-checked", button.dataset.value === String(state[key]));
    }
    for (const button of $("views").children) {
      const timeless = state.range && +button.dataset.value > 2;
      button.disabled = !!timeless;
      const title = model.data.views[button.dataset.value];
      button.title = timeless ? "What no snapshot saw is not known for a range of time" : title;
    }
    for (const id of SWITCHES) $(id).checked = state[id];
    $("thread").value = state.thread;
    $("colorBy").value = state.colorBy;
    if (document.activeElement !== $("search")) $("search").value = state.q;
    $("back").hidden = !state.zoom.length;
    $("graphPane").hidden = state.pane !== "graph";
    $("tablePane").hidden = state.pane !== "table";
    this.status();
    $("matched").textContent = matches ? `Matched: ${this.amount(model.matchedTotal(this.layout.figures, state.metric, matches))}` : "";
    if (model.diff) this.showDiff();
    else this.showModules();
    this.showRange();
  }

  /** Which colour is whose, for the largest: a click searches for the module. */
  showModules() {
    const { layout, graph, model } = this, { metric } = this.state, whole = layout.figures[metric].total[0];
    const rows = this.state.pane === "graph" ? model.byModule(layout.figures, metric, (frame) => layout.hidden(frame)).slice(0, 6) : [];
    const shown = rows.filter(([, amount]) => amount >= whole / 200);
    $("modules").replaceChildren(...shown.map(([module, amount]) => {
      const button = document.createElement("button"), swatch = document.createElement("i");
      swatch.style.background = module ? graph.moduleColor(module) : graph.color("internal");
      button.append(swatch, `${briefModule(module) || "others"} ${formatPercent(amount, whole)}`);
      button.title = module ? `What ${module} allocated, itself or through grey or hidden frames; click to search` : "No module's code";
      button.disabled = !module;
      button.onclick = () => this.set({ q: module });
      return button;
    }));
  }

  /** An amount with its part of the whole. */
  amount(value) {
    const whole = this.layout.figures[this.state.metric].total[0];
    const text = this.state.metric === "bytes" ? formatSize(value) : formatCount(value);
    return `${text}, ${formatPercent(value, whole)}`;
  }

  status() {
    const { layout, graph } = this, focus = graph.focus;
    $("status").textContent = focus === layout.root ? graph.name(layout.root)
      : `${graph.name(focus)}: ${this.amount(focus.value)} of all`;
  }

  showDiff() {
    const stacks = this.model.vanishedStacks({ ...this.selection(), vanished: false });
    $("vanishedLabel").hidden = !stacks && !this.state.vanished;
    $("vanishedText").textContent = `Vanished (${formatCount(stacks)} ${stacks === 1 ? "stack" : "stacks"})`;
    const entries = this.state.vanished ? [["gone", "only in the base"], ["same", "in both, calls what is only in the base"]] : [
      ["shrunk4", "-100 %"], ["shrunk3", "-50"], ["shrunk2", "-30"], ["shrunk1", "-15"], ["same", "within 15 %"],
      ["grown1", "+15"], ["grown2", "+30"], ["grown3", "+50"], ["grown4", "+100 % and more"], ["new", "not in the base"],
    ];
    const by = this.state.colorBy === "own" ? "what a function allocated itself" : "a function with its callees";
    const scale = this.model.data.scale || "absolute, nothing scaled";
    $("legend").replaceChildren(`Change of ${by}; ${scale}:`, ...entries.flatMap(([name, text]) => {
      const swatch = document.createElement("i");
      swatch.style.background = `var(--${name})`;
      return [swatch, text];
    }));
  }

  showRange() {
    if (!this.chart) return;
    const { range, view } = this.state, { time, data } = this.model;
    if (!range) {
      $("range").textContent = this.chart.canSelect ? "Drag over the chart to see the flame graph of a range of time."
        : "No range of time can be selected: sums and several captures in one page keep no times of single allocations.";
      return;
    }
    const [from, to] = range, high = this.model.highest(range), clear = document.createElement("button");
    const what = view === 0 ? `what was live at its highest moment (${formatTime(time[high])}, ${formatSize(data.heap[high])})`
      : "what was allocated in it and not freed by its end";
    clear.textContent = "Whole run";
    clear.onclick = () => this.set({ range: null, zoom: [] });
    $("range").replaceChildren(`${formatTime(time[from])} to ${formatTime(time[to])}: ${what}`, clear);
  }

  hover(block, event) {
    const tip = $("tooltip");
    tip.hidden = !block;
    if (!block) return this.status();
    this.fillTooltip(tip, block);
    const box = $("graphPane").getBoundingClientRect(), size = tip.getBoundingClientRect();
    const x = event ? event.clientX : box.right, y = event ? event.clientY : box.bottom;
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - size.width - 8))}px`;
    tip.style.top = `${y + 18 + size.height > innerHeight ? Math.max(4, y - size.height - 12) : y + 18}px`;
  }

  fillTooltip(tip, block) {
    const { layout, state, model } = this, figures = layout.describe(block), frame = model.frames[block.frame];
    const lines = document.createElement("table"), whole = layout.figures[state.metric].total[0], focus = this.graph.focus;
    const row = (...cells) => { const line = lines.insertRow(); cells.forEach((text) => (line.insertCell().textContent = text)); };
    const title = document.createElement("b");
    title.textContent = this.graph.name(block);
    tip.replaceChildren(title);
    if (frame) {
      const place = document.createElement("div");
      place.className = "file";
      place.textContent = [frame.place, frame.module && `module ${frame.module}`].filter(Boolean).join(" · ");
      tip.append(place);
    }
    if (frame?.source) {
      const source = document.createElement("code");
      source.textContent = frame.source;
      tip.append(source);
    }
    if (model.diff) {
      this.compare(row, block, figures);
    } else {
      const { bytes, count } = figures;
      const number = (count) => `${formatCount(count)} ${count === 1 ? "allocation" : "allocations"}`;
      row("Total", formatSize(bytes.total), number(count.total));
      row("Own", formatSize(bytes.own), number(count.own));
    }
    const parts = [`${formatPercent(block.value, whole)} of all`];
    if (focus !== layout.root) parts.push(`${formatPercent(block.value, focus.value)} of the selection`);
    row("Part", ...parts);
    const allocators = layout.allocators(block).slice(0, 4);
    const value = (number) => (state.metric === "bytes" ? formatSize(number) : formatCount(number));
    allocators.forEach(([name, number]) => row(name, value(number)));
    tip.append(lines);
  }

  compare(row, block, figures) {
    const base = this.layout.describeBase(block), { vanished } = this.layout.selection;
    const now = vanished ? this.layout.describe(block, block.figures.now) : figures;
    row("", "Base", "New", "Difference", "Percent");
    for (const [metric, format, of] of [["bytes", formatSize, ""], ["count", formatCount, ", number"]]) {
      for (const [which, title] of [["total", "Total"], ["own", "Own"]]) {
        const after = now[metric][which], before = base[metric][which], change = after - before;
        if (metric === "count" && !after && !before) continue;
        const percent = before ? `${change > 0 ? "+" : ""}${((change * 100) / before).toFixed(1)} %` : after ? "new" : "";
        row(title + of, format(before), format(after), `${change > 0 ? "+" : ""}${format(change)}`, percent);
      }
    }
  }

  key(event) {
    if (event.target.matches("input[type=search]")) {
      if (event.key === "Escape") { $("search").blur(); $("search").value = ""; this.set({ q: "" }); }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
    const toggle = (name) => () => this.set({ [name]: !this.state[name], ...(name === "flame" ? {} : { zoom: [] }) });
    const actions = {
      "/": () => $("search").focus(),
      "?": () => this.about(),
      t: () => this.setTheme(this.theme === "dark" ? "light" : "dark"),
      i: toggle("inverted"), f: toggle("flame"), s: toggle("split"), m: toggle("imports"), l: toggle("library"),
      p: toggle("interpreter"), n: toggle("native"),
      g: () => this.set({ pane: this.state.pane === "graph" ? "table" : "graph" }),
      b: () => this.set({ metric: this.state.metric === "bytes" ? "count" : "bytes" }),
      v: () => this.set({ view: (this.state.view + 1) % (this.state.range ? 3 : this.model.data.views.length), zoom: [] }),
      Backspace: () => this.set({ zoom: this.state.zoom.slice(0, -1) }),
      Escape: () => this.set(this.state.zoom.length ? { zoom: [] } : { range: null, q: "" }),
    };
    if (!actions[event.key] || $("about").open) return;
    event.preventDefault();
    actions[event.key]();
  }

  setTheme(theme) {
    this.theme = document.documentElement.dataset.theme = theme;
    this.graph.theme();
    this.graph.draw();
    this.chart?.draw();
    if (this.layout && !this.model.diff) this.showModules();
    this.toLink();
  }

  /** The state as the part of the address behind #; only what differs from the start. */
  toLink() {
    const { state } = this, plain = new URLSearchParams();
    for (const [key, value] of Object.entries(state)) {
      const isDefault = value === false || value === "" || value === null || value === -1 || value?.length === 0;
      if (!isDefault) plain.set(key, Array.isArray(value) ? value.join(".") : value);
    }
    plain.set("theme", this.theme || "");
    this.hash = `#${plain}`;
    try { history.replaceState(null, "", this.hash); } catch { /* a page in a frame may not */ }
  }

  fromLink() {
    const link = new URLSearchParams(location.hash.slice(1)), { state, model } = this;
    const numbers = (text) => text.split(".").filter(Boolean).map(Number).filter(Number.isInteger);
    if (!link.size) return;
    for (const key of SWITCHES) state[key] = link.get(key) === "true";
    const view = +link.get("view"), thread = link.has("thread") ? +link.get("thread") : -1;
    state.view = model.data.views[view] ? view : 0;
    state.thread = model.data.threads[thread] === undefined ? -1 : thread;
    state.metric = link.get("metric") === "count" ? "count" : "bytes";
    state.pane = link.get("pane") === "table" ? "table" : "graph";
    state.colorBy = link.get("colorBy") === "total" ? "total" : "own";
    state.q = link.get("q") || "";
    state.zoom = numbers(link.get("zoom") || "").slice(0, 5000);
    const range = numbers(link.get("range") || "");
    state.range = range.length === 2 && model.liveGroup && range[0] >= 0 && range[0] <= range[1] && range[1] < model.time.length ? range : null;
    if (["dark", "light"].includes(link.get("theme"))) this.theme = link.get("theme");
  }

  async copyLink() {
    try {
      await navigator.clipboard.writeText(location.href);
      this.notice("Link copied");
    } catch {
      this.notice("The link is in the address bar");
    }
  }

  exportCsv() {
    const matches = this.model.matching(this.state.q);
    this.table.show(this.layout.figures, this.state.metric, matches);
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(new Blob([this.table.csv()], { type: "text/csv" }));
    anchor.download = `memtrack-${this.model.data.views[this.state.view].toLowerCase().replaceAll(" ", "-")}.csv`;
    anchor.click();
    URL.revokeObjectURL(anchor.href);
  }

  notice(text) {
    $("notice").textContent = text;
    $("notice").hidden = false;
    clearTimeout(this.noticing);
    this.noticing = setTimeout(() => { $("notice").hidden = true; }, 1800);
  }

  about() {
    const { facts, notes } = this.model.data, dialog = $("about");
    const title = (text) => Object.assign(document.createElement("h2"), { textContent: text });
    const entries = (pairs, label) => {
      const list = document.createElement("dl");
      for (const [term, text] of pairs) {
        const [left, right] = [document.createElement("dt"), document.createElement("dd")];
        left.append(...label(term));
        right.textContent = text;
        list.append(left, right);
      }
      return list;
    };
    const pairs = facts.flatMap((text, at) => (at % 2 ? [] : [[text, facts[at + 1]]]));
    const keys = (term) => term.split(" ").map((key) => Object.assign(document.createElement("kbd"), { textContent: key }));
    const close = document.createElement("button");
    close.textContent = "Close";
    close.onclick = () => dialog.close();
    const known = entries([...pairs, ...notes.map((note) => ["Note", note])], (term) => [term]);
    dialog.replaceChildren(title(this.model.diff ? "The captures" : "The capture"), known, title("Keys"), entries(KEYS, keys), close);
    dialog.showModal();
  }
}

unpack($("data").textContent).then((data) => {
  $("loading").remove();
  document.body.classList.remove("loading");
  window.memtrack = new Page(data);
  const { notes } = data;
  if (notes.length) window.memtrack.notice(notes.length === 1 ? notes[0] : `${notes.length} notes; see About`);
}).catch((error) => {
  console.error(error);
  $("loading")?.remove();
  document.querySelector("main").prepend(`This page cannot show its data: ${error.message}`);
});
