// The overview: a description of the view, the own-code lines with the most memory, and the owners.

const MOST_OWN_LINES = 5;

class Overview {
  /** `on` has: choose(frame), toggle(owner). */
  constructor(model, palette, on) {
    Object.assign(this, { model, palette, on });
  }

  show(layout, state) {
    Object.assign(this, { layout, state, metric: layout.selection.metric });
    this.owners = this.model.byOwner(layout.selection);
    this.showMeaning();
    this.showFailed();
    this.showOwnLines();
    this.showOwners();
  }

  /** A description of the view, and of what it excludes. */
  showMeaning() {
    const { meanings } = this.model.data;
    const { range, view } = this.layout.selection;
    const meaning = range ? this.rangeMeaning(range, view) : meanings[view];
    $("meaning").replaceChildren(meaning, ...this.arenas(), ...this.leftOut(), ...this.notes());
  }

  /** How much of the shown memory are Python's arenas, if they are shown at the frames that mapped them. */
  arenas() {
    const { selection, whole } = this.layout;
    const bytes = selection.apart ? 0 : this.model.arenaBytes(selection);
    if (this.metric !== "bytes" || bytes === 0 || bytes < whole / 10) return [];
    const text = element(
      "span",
      "dim",
      ` ${formatSize(bytes)} of it are arenas of Python's allocator, at the lines that needed them.`,
    );
    text.title = OWNERS[OWNER.arenas].meaning;
    return [text];
  }

  /** Failed allocations. */
  showFailed() {
    const { failed } = this.model.data;
    $("failed").hidden = !failed;
    if (!failed) return;
    $("failed").replaceChildren(element("b", "", "Failed allocations: "), failed.text);
    $("failed").title = ["Calls for memory that failed, the largest first:", ...failed.rows].join("\n");
  }

  rangeMeaning(range, view) {
    const text = (us) => exactTime(us, this.model.data.timePrecision);
    const [from, to] = this.model.span(range).map(text);
    if (view !== 0) return `Allocated from ${from} to ${to} and not freed by the end of that.`;
    const high = this.model.highest(range);
    return `Live at the highest moment of ${from} to ${to}: at ${text(high.time)}, with ${formatSize(high.bytes)} of heap.`;
  }

  leftOut() {
    const { hide } = this.layout.selection;
    const hidden = OWNERS.map((owner, at) => ({ ...owner, at, value: this.owners[at][this.metric] }));
    const inBase = (at) => this.owners[at][this.metric === "bytes" ? "baseBytes" : "baseCount"];
    return hidden
      .filter(({ at, value }) => (value || inBase(at)) && (hide >> at) & 1)
      .flatMap(({ at, id, title, value }) => {
        const held =
          {
            imports: "held by imports",
            arenas: "reserved by Python's allocator (used and unused)",
            own: "of own code",
            frameless: "of threads without Python frames",
          }[id] || `of the ${title.toLowerCase()}`;
        const button = element("button", "inline", "show");
        button.title = OWNERS[at].meaning;
        button.onclick = () => this.on.toggle(at);
        const amount = this.model.diff
          ? this.change(this.owners[at])
          : this.metric === "bytes"
            ? formatSize(value)
            : plural(value, "allocation", "allocations");
        return [
          element("b", "", ` ${amount} ${held} ${this.metric === "count" && value !== 1 ? "are" : "is"} left out `),
          button,
        ];
      });
  }

  /** A figure of the base and of the new capture. */
  change(owner) {
    const base = owner[this.metric === "bytes" ? "baseBytes" : "baseCount"];
    return `${formatAmount(base, this.metric)} → ${formatAmount(owner[this.metric], this.metric)}`;
  }

  /** A button that opens the dialog with the notes. */
  notes() {
    const { notes } = this.model.data;
    if (!notes.length) return [];
    const button = element("button", "inline", plural(notes.length, "note", "notes"));
    button.title = notes.join("\n");
    button.onclick = () => showAbout(this.model);
    return [" ", button];
  }

  showOwnLines() {
    const ownLines = new OwnLines(this.layout);
    const { diff, data } = this.model;
    // Lines below a thousandth are omitted, unless there are no others; in a difference, those that are no news.
    const floor = diff ? this.model.floor(this.layout.selection) : this.layout.whole / 1000;
    const least = diff ? floor : 0;
    const own = ownLines.own(MOST_OWN_LINES, least);
    const all = ownLines.hasOwn ? own : ownLines.others(MOST_OWN_LINES, least);
    const rows = all.filter(({ value }, at) => (at === 0 && !diff) || Math.abs(value) >= floor);
    const what = diff ? "Changes by line" : this.ownLinesTitle();
    $("ownLinesTitle").textContent = ownLines.hasOwn || !rows.length ? what : `${what} (no own code on any stack)`;
    $("ownLines").replaceChildren(...rows.map((row) => this.ownLine(row)));
    const moved = diff ? data.moved[this.layout.selection.view] : "";
    $("noOwnLines").hidden = rows.length > 0 && !moved;
    if (diff) {
      const none = rows.length ? [] : ["No function changed by more than two runs of one program differ."];
      $("noOwnLines").textContent = [...none, ...(moved ? [`${moved}.`] : [])].join(" ");
    }
  }

  ownLinesTitle() {
    const { view, range } = this.layout.selection;
    if (range) return view === 0 ? "Live by line" : "Kept by line";
    return [
      "Live at the peak by line",
      "Leaked by line",
      "Live at exit by line",
      "Temporary by line",
      "Allocated by line",
      "Pinned pages by line",
      "Objects by line",
    ][view];
  }

  ownLine({ frame: number, value, within, via, viaValue }) {
    const frame = this.model.frames[number];
    const item = element("li");
    const button = element("button", "frame");
    const bar = element("i", "bar");
    const part = this.layout.whole ? Math.min(100, (Math.abs(value) * 100) / this.layout.whole) : 0;
    bar.style.setProperty("--part", `${part}%`);
    bar.style.setProperty("--swatch", this.palette.frame(frame, 0));
    const amount = this.model.diff ? formatChange(value, this.metric) : formatAmount(value, this.metric);
    const share = this.model.diff ? "" : formatPercent(value, this.layout.whole);
    const text = element("span", "what");
    text.append(element("b", "", frame.shortLine || "<no file>"), ` ${frame.brief}`, ...this.via(via, viaValue, value));
    const interval = within ? element("span", "within", `± ${formatAmount(within, this.metric)}`) : "";
    button.append(bar, element("span", "amount", amount), interval, element("span", "share", share), text);
    const through = via >= 0 ? `\nvia ${this.model.frames[via].name} ${this.model.frames[via].place}` : "";
    button.title = `${frame.name}\n${frame.place}${through}\nClick to zoom in`;
    button.onclick = () => this.on.choose(number);
    item.append(button);
    return item;
  }

  via(via, viaValue, value) {
    if (via < 0) return [];
    const frame = this.model.frames[via];
    const mostly = Math.abs(viaValue - value) > Math.abs(value) * 0.005 ? "mostly via" : "via";
    return [element("span", "via", ` ${mostly} ${frame.brief}${frame.shortPlace && `, ${frame.shortPlace}`}`)];
  }

  /** The owners, as buttons that show and hide them. */
  showOwners() {
    const { hide } = this.layout.selection;
    const sums = this.owners.map((owner) => owner[this.metric]);
    const all = sums.reduce((sum, value) => sum + value, 0);
    const present = (at) =>
      this.owners.some(
        (owner, other) => other === at && (owner.bytes || owner.count || owner.baseBytes || owner.baseCount),
      );
    const shown = OWNERS.map((owner, at) => ({ ...owner, at })).filter(({ at }) => present(at));
    $("owners").replaceChildren(
      ...shown.map(({ at, meaning }) => {
        const button = element("button", "owner");
        const swatch = element("i");
        swatch.style.background = this.palette.owner(at);
        const isShown = !((hide >> at) & 1);
        button.setAttribute("aria-pressed", String(isShown));
        const amount = this.model.diff
          ? this.change(this.owners[at])
          : `${formatAmount(sums[at], this.metric)}, ${formatPercent(sums[at], all)}`;
        button.append(
          swatch,
          `${ownerTitle(this.model.data, at, this.layout.selection.view)} `,
          element("span", "", amount),
        );
        button.title = `${meaning}. Click to ${isShown ? "leave it out" : "show it"}`;
        button.onclick = () => this.on.toggle(at);
        return button;
      }),
    );
  }
}
