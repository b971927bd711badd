// The page: its state, and the parts that show it.

class Page {
  constructor(data) {
    this.model = new Model(data);
    this.palette = new Palette(this.model);
    this.sources = new SourceLines(data);
    const { start } = data;
    this.state = {
      ...DEFAULTS,
      view: start.view,
      metric: start.counts ? "count" : "bytes",
      inverted: start.inverted,
      split: start.split,
      frames: start.allFrames ? "all" : "folded",
      imports: start.imports ? true : null,
    };
    this.fromLink();
    this.makeParts();
    this.setTheme(this.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
    this.measure();
    addEventListener("resize", () => this.resized());
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    addEventListener("hashchange", () => this.linkChanged());
    addEventListener("message", ({ data }) => this.followEmbedder(data));
    this.update();
  }

  makeParts() {
    const { model, palette, sources } = this;
    const showFrame = (frame) => this.showFrame(frame);
    this.tooltip = new Tooltip($("tooltip"), $("graphPane"), model, sources);
    this.graph = new Graph($("graph"), $("graphPane"), model, palette, {
      hover: (block, event) => this.tooltip.show(this.graph, block, event),
      choose: (block) => this.set({ zoom: block.path() }),
      label: (frame) =>
        this.state.sourceLabels ? sources.line(model.frames[frame].file, model.frames[frame].line) : "",
    });
    this.table = new Table($("tablePane"), model, palette, showFrame);
    this.sideTable = new Table($("sideTable"), model, palette, showFrame);
    this.details = new Details($("details"), model, palette, sources, showFrame);
    this.overview = new Overview(model, palette, { choose: showFrame, toggle: (owner) => this.toggleOwner(owner) });
    if (model.time?.length > 1) {
      $("time").hidden = false;
      this.chart = new Chart($("chart"), model, (range) => this.set({ range, zoom: [] }));
    }
    this.controls = new Controls(this);
    for (const button of $("sideBy").children) button.onclick = () => this.sideBy(button.dataset.value);
  }

  /** Changes the state. */
  set(change) {
    Object.assign(this.state, change);
    this.update();
  }

  /** Leaks leave out what imports hold unless it is asked for: modules are meant to stay. Differences do, too: what
      imports hold depends on which modules were compiled anew. */
  get hidesImports() {
    const { imports, view } = this.state;
    return imports === null ? this.model.diff || view === 1 || view === 2 : !imports;
  }

  /** Like all reports, leaks exclude Python's arenas, because it is unknown how much of them is in use. */
  get hidesArenas() {
    const { arenas, view } = this.state;
    return arenas === null ? view === 1 || view === 2 : !arenas;
  }

  /** Python's arenas are separate in leaks, and in differences, where it is chance which call maps one. */
  get arenasApart() {
    const { view } = this.state;
    return this.model.diff || view === 1 || view === 2;
  }

  selection() {
    const { view, metric, thread, range, vanished, hide } = this.state;
    const others = hide & ~(1 << OWNER.imports) & ~(1 << OWNER.arenas);
    const hidden = others | (this.hidesImports << OWNER.imports) | (this.hidesArenas << OWNER.arenas);
    const apart = this.arenasApart;
    return { view, metric, thread, range, vanished: vanished && this.model.diff, hide: hidden, apart };
  }

  toggleOwner(owner) {
    if (owner === OWNER.imports) this.set({ imports: this.hidesImports, zoom: [] });
    else if (owner === OWNER.arenas) this.arenasApart && this.set({ arenas: this.hidesArenas, zoom: [] });
    else this.set({ hide: this.state.hide ^ (1 << owner), zoom: [] });
  }

  update() {
    const { state, model } = this;
    if (state.range && state.view > 2) state.view = 0;
    const selection = this.selection();
    const { inverted, frames } = state;
    const options = { inverted, frames, split: state.split && state.thread < 0 };
    const key = JSON.stringify([selection, options]);
    if (this.layoutKey !== key) this.layout = new Layout(model, selection, options);
    this.layoutKey = key;
    const focus = this.layout.find(state.zoom);
    state.zoom = focus.path();
    this.matches = model.matching(state.q);
    this.controls.show();
    this.showPanes(focus);
    this.overview.show(this.layout, state);
    this.chart?.show(state.range);
    this.showRange();
    if (model.diff) showDifference(this);
    this.status(focus);
    this.toLink();
  }

  showPanes(focus) {
    const { state, matches, layout } = this;
    $("graphPane").hidden = state.pane !== "graph";
    $("tablePane").hidden = state.pane === "graph";
    $("side").hidden = state.pane !== "graph";
    if (state.pane === "graph") {
      this.details.show(layout, focus);
      this.sideTable.show(layout, this.sideTable.by, matches, true);
      for (const button of $("sideBy").children)
        button.setAttribute("aria-checked", String(button.dataset.value === this.sideTable.by));
      this.graph.show(layout, focus, { ...state, matches });
    } else {
      this.table.show(layout, state.pane, matches, innerWidth < 700);
    }
  }

  sideBy(by) {
    this.sideTable.by = by;
    this.update();
  }

  /** Zooms in on the largest block of a frame. */
  showFrame(frame) {
    const block = this.layout.largest(frame);
    if (block) return this.set({ pane: "graph", zoom: block.path() });
    this.set({ pane: "graph", zoom: [], q: this.model.frames[frame].name });
  }

  zoomOut() {
    this.set({ zoom: this.state.zoom.slice(0, -1) });
  }

  /** An amount with its share of the total. */
  amount(value) {
    return `${formatAmount(value, this.state.metric)}, ${formatPercent(value, this.layout.whole)}`;
  }

  status(focus) {
    const { layout, graph, model, matches, state } = this;
    $("status").textContent =
      focus === layout.root ? graph.name(layout.root) : `${graph.name(focus)}: ${this.amount(focus.value)} of all`;
    $("matched").textContent = matches
      ? `Matched: ${this.amount(model.matchedTotal(layout.figures, state.metric, matches))}`
      : "";
  }

  showRange() {
    if (!this.chart) return;
    const clear = element("button", "", "Whole run");
    clear.onclick = () => this.set({ range: null, zoom: [] });
    const hint = this.chart.canSelect
      ? "Drag over the chart to see a range of time."
      : "No range of time can be selected: sums and several captures in one page keep no times of single allocations.";
    $("range").replaceChildren(...(this.state.range ? [clear] : [element("span", "", hint)]));
  }

  setTheme(theme) {
    this.theme = document.documentElement.dataset.theme = theme;
    this.palette.read();
    this.graph.draw();
    this.chart?.draw();
    if (this.layout) this.update();
  }

  /** A notebook that shows the page in a frame says which theme it has. */
  followEmbedder(message) {
    const theme = message?.memtrackTheme;
    if (["dark", "light"].includes(theme) && theme !== this.theme) this.setTheme(theme);
  }

  /** In a narrow window the whole page scrolls, and the controls are hidden. */
  measure() {
    document.body.classList.toggle("narrow", innerWidth < 700);
  }

  resized() {
    this.measure();
    this.graph.draw();
    this.chart?.draw();
  }

  /** Printing uses light colours and shows the whole graph. */
  print(begins) {
    const { theme } = this;
    this.setTheme(begins ? "light" : this.themeOfScreen);
    this.themeOfScreen = theme;
    this.graph.isPrinted = begins;
    this.graph.paint();
    this.chart?.paint();
  }

  toLink() {
    this.hash = linkOf(this.state, this.theme);
    try {
      history.replaceState(null, "", this.hash);
    } catch {
      // Not permitted in frames.
    }
  }

  fromLink() {
    Object.assign(this.state, stateOf(location.hash, this.model));
    const theme = new URLSearchParams(location.hash.slice(1)).get("theme");
    if (["dark", "light"].includes(theme)) this.theme = theme;
  }

  linkChanged() {
    if (location.hash === this.hash) return;
    this.fromLink();
    this.update();
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
    this.table.show(this.layout, this.state.pane === "function" ? "function" : "line", this.matches, false);
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
    this.noticing = setTimeout(() => ($("notice").hidden = true), 1800);
  }
}

unpack($("data").textContent)
  .then((data) => {
    $("loading").remove();
    document.body.classList.remove("loading");
    window.memtrack = new Page(data);
  })
  .catch((error) => {
    console.error(error);
    $("loading")?.remove();
    document.querySelector("main").prepend(`This page cannot show its data: ${error.message}`);
  });
