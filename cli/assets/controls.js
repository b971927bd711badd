// The switches and buttons, and the keys that do the same.

const $ = (id) => document.getElementById(id);

class Controls {
  constructor(page) {
    this.page = page;
    const { model } = page;
    const { data } = model;
    this.switch(
      "views",
      model.views().map((view) => [view, VIEW_NAMES[view]]),
      "view",
    );
    this.switch(
      "metrics",
      [
        ["bytes", "Bytes"],
        ["count", "Number"],
      ],
      "metric",
    );
    this.switch(
      "panes",
      [
        ["graph", "Graph"],
        ["function", "Functions"],
        ["line", "Lines"],
      ],
      "pane",
    );
    for (const id of SWITCHES) $(id).onchange = () => page.set({ [id]: $(id).checked, ...unlessLabels(id) });
    $("splitLabel").hidden = $("thread").hidden = data.threads.length < 2;
    $("thread").append(new Option("All threads", -1));
    $("thread").append(...data.threads.map((name, thread) => new Option(threadName(name), thread)));
    $("thread").onchange = () => page.set({ thread: +$("thread").value, zoom: [] });
    $("frames").querySelector("[value=python]").hidden = !model.frames.some((frame) => frame.isNative);
    $("frames").onchange = () => page.set({ frames: $("frames").value, zoom: [] });
    $("sourceLabelsLabel").hidden = page.sources.isEmpty;
    $("diffControls").hidden = $("legend").hidden = !model.diff;
    $("colorBy").onchange = () => page.set({ colorBy: $("colorBy").value });
    $("search").oninput = () => this.typed();
    $("back").onclick = () => page.zoomOut();
    $("csv").onclick = () => page.exportCsv();
    $("link").onclick = () => page.copyLink();
    $("info").onclick = () => showAbout(model);
    $("theme").onclick = () => page.setTheme(page.theme === "dark" ? "light" : "dark");
    $("menu").onclick = () => this.unfold(!document.body.classList.contains("unfolded"));
    addEventListener("keydown", (event) => this.key(event));
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.page.set({ q: $("search").value }), 120);
  }

  /** On narrow screens the controls are hidden behind a button. */
  unfold(isUnfolded) {
    document.body.classList.toggle("unfolded", isUnfolded);
    $("menu").setAttribute("aria-expanded", String(isUnfolded));
  }

  switch(id, options, key) {
    $(id).replaceChildren(
      ...options.map(([value, text]) => {
        const button = element("button", "", text);
        button.setAttribute("role", "radio");
        button.dataset.value = value;
        button.onclick = () => this.page.set({ [key]: value, ...(key === "pane" ? {} : { zoom: [] }) });
        return button;
      }),
    );
  }

  show() {
    const { state, model } = this.page;
    for (const [id, key] of [
      ["views", "view"],
      ["metrics", "metric"],
      ["panes", "pane"],
    ]) {
      for (const button of $(id).children)
        button.setAttribute("aria-checked", String(button.dataset.value === String(state[key])));
    }
    for (const button of $("views").children) {
      const isTimeless = state.range !== null && +button.dataset.value > 2;
      button.disabled = isTimeless;
      button.title = isTimeless
        ? "What no snapshot saw is not known for a range of time"
        : model.data.meanings[button.dataset.value];
    }
    for (const id of SWITCHES) $(id).checked = state[id];
    for (const id of ["thread", "colorBy", "frames"]) $(id).value = state[id];
    if (document.activeElement !== $("search")) $("search").value = state.q;
    $("back").hidden = !state.zoom.length;
  }

  key(event) {
    if (event.target.matches("input[type=search]")) {
      if (event.key === "Escape") this.endSearch();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select") || $("about").open) return;
    const action = this.actions()[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  endSearch() {
    clearTimeout(this.typing);
    $("search").blur();
    $("search").value = "";
    this.page.set({ q: "" });
  }

  actions() {
    const { page } = this;
    const { state } = page;
    const toggle = (name) => () => page.set({ [name]: !state[name], ...unlessLabels(name) });
    const next = (key, values) => () =>
      page.set({ [key]: values[(values.indexOf(state[key]) + 1) % values.length], zoom: [] });
    const all = page.model.views();
    const views = state.range ? all.slice(0, 3) : all;
    const owners = OWNERS.map((_, owner) => [String(owner + 1), () => page.toggleOwner(owner)]);
    return {
      "/": () => $("search").focus(),
      "?": () => showAbout(page.model),
      t: () => page.setTheme(page.theme === "dark" ? "light" : "dark"),
      i: toggle("inverted"),
      u: toggle("flame"),
      s: toggle("split"),
      f: next(
        "frames",
        FRAMES.filter((name) => !$("frames").querySelector(`[value=${name}]`).hidden),
      ),
      a: () => page.set({ frames: state.frames === "all" ? "folded" : "all", zoom: [] }),
      g: next("pane", PANES),
      b: () => page.set({ metric: state.metric === "bytes" ? "count" : "bytes" }),
      v: next("view", views),
      Backspace: () => page.zoomOut(),
      Escape: () => page.set(state.zoom.length ? { zoom: [] } : { range: null, q: "" }),
      ...Object.fromEntries(owners),
    };
  }
}

/** Options that change the blocks reset the zoom; options of their appearance do not. */
const unlessLabels = (name) => (["flame", "sourceLabels"].includes(name) ? {} : { zoom: [] });
