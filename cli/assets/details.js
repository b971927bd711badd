// Details of the zoomed block: location, source, callers, callees, and frames folded into it.

class Details {
  /** `choose(frame)` is called with a frame to show. */
  constructor(pane, model, palette, sources, choose) {
    Object.assign(this, { pane, model, palette, sources, choose });
  }

  /** Shows a block, or nothing for the root. */
  show(layout, block) {
    this.pane.hidden = !block.isFrame;
    if (!block.isFrame) return this.pane.replaceChildren();
    this.layout = layout;
    const frame = this.model.frames[block.frame];
    const name = element("h2", "", layout.name(block));
    const place = element("p", "place", [frame.place, ORIGINS[frame.origin]].filter(Boolean).join(" · "));
    const sandwich = new Sandwich(layout, block.frame);
    this.pane.replaceChildren(
      name,
      place,
      this.figures(block),
      ...this.source(frame),
      ...this.list("Called by", sandwich.callers(), block),
      ...this.list("Calls", sandwich.callees(), block),
      ...this.folded(block),
    );
  }

  figures(block) {
    const { metric } = this.layout.selection;
    const { bytes, count } = this.layout.describe(block);
    const part = formatPercent(block.value, this.layout.whole);
    const allocations = plural(count.total, "allocation", "allocations");
    const own = { bytes, count }[metric].own;
    return element(
      "p",
      "figures",
      `${formatSize(bytes.total)} in ${allocations} here, ${part}; ${formatAmount(own, metric)} of it in the function itself`,
    );
  }

  source(frame) {
    const lines = this.sources.around(frame.file, frame.line);
    if (!lines.length) return [];
    const code = element("pre", "source");
    for (const { number, text } of lines) {
      const line = element("span", number === frame.line ? "at" : "", `${String(number).padStart(5)}  ${text}\n`);
      code.append(line);
    }
    return [code];
  }

  list(title, rows, block) {
    if (!rows.length) return [];
    const { metric } = this.layout.selection;
    const list = element("ul", "frames");
    for (const [number, value] of rows.slice(0, 8)) {
      const frame = this.model.frames[number];
      const item = element("li");
      const button = element("button", "frame");
      const swatch = element("i");
      swatch.style.background = this.palette.frame(frame, 0);
      button.append(
        element("b", "", formatAmount(value, metric)),
        swatch,
        frame.brief,
        element("span", "", frame.fileLine),
      );
      button.title = `${frame.name}\n${frame.place}`;
      button.onclick = () => this.choose(number);
      item.append(button);
      list.append(item);
    }
    const more = rows.length > 8 ? ` (8 of ${formatCount(rows.length)})` : "";
    const everywhere =
      this.model.frame.reduce((sum, frame) => sum + (frame === block.frame ? 1 : 0), 0) > block.nodes.length;
    return [element("h3", "", `${title}${everywhere ? ", in all contexts" : ""}${more}`), list];
  }

  folded(block) {
    if (!block.chain.length) return [];
    const list = element("ul", "folded");
    for (const number of block.chain) {
      const frame = this.model.frames[number];
      const item = element("li", "", frame.brief);
      item.append(element("span", "", frame.shortPlace));
      list.append(item);
    }
    return [element("h3", "", "Which calls, one after the other"), list];
  }
}

/** How long an animation frame may take before it is done without, in milliseconds, and how often. */
const FRAME_PATIENCE = 250;
const FRAME_TRIES = 20;

/**
 * Paints with the next animation frame. A frame of a notebook that a browser takes to be out of view, as it may be when it is put
 * in, gets none: then without one. `paint` returns false while there is no room, and is called again then. Returns what cancels it.
 */
function paintSoon(paint) {
  let left = FRAME_TRIES;
  const attempt = () => {
    if (left <= 0) return;
    if (paint() !== false) left = 0;
    else if (--left) setTimeout(attempt, FRAME_PATIENCE);
  };
  let started = false;
  const start = () => {
    if (!started) attempt();
    started = true;
  };
  requestAnimationFrame(start);
  setTimeout(start, FRAME_PATIENCE);
  return () => {
    left = 0;
  };
}

/** An element with a class and a text. */
function element(name, className = "", text = "") {
  return Object.assign(document.createElement(name), { className, textContent: text });
}
