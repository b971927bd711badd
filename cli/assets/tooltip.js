// The figures of the block under the pointer.

class Tooltip {
  constructor(tip, pane, model, sources) {
    Object.assign(this, { tip, pane, model, sources });
  }

  /** Shows a block beside the pointer, or in the corner if it was chosen by keyboard; hides itself for null. */
  show(graph, block, event) {
    this.tip.hidden = !block;
    if (!block) return;
    this.graph = graph;
    this.fill(block);
    const box = this.pane.getBoundingClientRect();
    const size = this.tip.getBoundingClientRect();
    const x = event ? event.clientX : box.right;
    const y = event ? event.clientY : box.bottom;
    const below = y + 18 + size.height <= innerHeight;
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - size.width - 8))}px`;
    this.tip.style.top = `${below ? y + 18 : Math.max(4, y - size.height - 12)}px`;
  }

  fill(block) {
    const { layout, focus } = this.graph;
    const frame = block.isFrame ? this.model.frames[block.frame] : null;
    this.lines = document.createElement("table");
    this.tip.replaceChildren(element("b", "", this.graph.name(block)));
    if (frame) this.tip.append(element("div", "file", this.placeText(frame, block)));
    const source = frame && this.sources.line(frame.file, frame.line);
    if (source) this.tip.append(element("code", "", source));
    if (this.model.diff) this.compare(block);
    else this.figures(block);
    const parts = [`${formatPercent(block.value, layout.whole)} of all`];
    if (focus !== layout.root) parts.push(`${formatPercent(block.value, focus.value)} of the selection`);
    this.row("Part", ...parts);
    for (const [name, number] of layout.allocators(block).slice(0, 4)) {
      this.row(name, formatAmount(number, layout.selection.metric));
    }
    this.tip.append(this.lines);
    if (block.frame === ARENAS) this.tip.append(element("div", "file", OWNERS[OWNER.arenas].meaning));
  }

  placeText(frame, block) {
    const folded = block.chain.length ? `with ${plural(block.chain.length, "call", "calls")} folded into it` : "";
    const whose = [ORIGINS[frame.origin], frame.module].filter(Boolean).join(" ");
    return [frame.place, whose, folded].filter(Boolean).join(" · ");
  }

  row(...cells) {
    const line = this.lines.insertRow();
    cells.forEach((text) => (line.insertCell().textContent = text));
  }

  figures(block) {
    const { bytes, count } = this.graph.layout.describe(block);
    const shown = (name, which) => {
      const allocations = plural(count[which], "allocation", "allocations");
      this.row(
        name,
        formatSize(bytes[which]) + this.within(block, "bytes", which),
        allocations + this.within(block, "count", which),
      );
    };
    shown("Total", "total");
    shown("Self", "own");
  }

  /** Half the 95 % interval of an estimated figure, the larger one; of a number that may be much larger, both ends. */
  within(block, metric, which, figures = block.figures) {
    const { layout } = this.graph;
    const reach = layout.reach(block, metric, which, figures);
    const half = reach ? Math.max(reach.down, reach.up) : 0;
    const value = half ? layout.describe(block, figures)[metric][which] : 0;
    if (metric === "count" && half > value && reach.up > 3 * reach.down) {
      return ` (${formatCount(value - reach.down)} to ${formatCount(value + reach.up)})`;
    }
    return half ? ` ± ${formatAmount(half, metric)}` : "";
  }

  compare(block) {
    const { layout } = this.graph;
    const base = layout.describeBase(block);
    const now = layout.selection.vanished ? layout.describe(block, block.figures.now) : layout.describe(block);
    this.row("", "Base", "New", "Difference", "Percent");
    for (const [metric, of] of [
      ["bytes", ""],
      ["count", ", number"],
    ]) {
      for (const [which, title] of [
        ["total", "Total"],
        ["own", "Self"],
      ]) {
        const after = now[metric][which];
        const before = base[metric][which];
        if (metric === "count" && !after && !before) continue;
        const format = (value) => formatAmount(value, metric);
        this.row(
          title + of,
          format(before) + this.within(block, metric, which, block.figures.base),
          format(after) + this.within(block, metric, which),
          formatChange(after - before, metric),
          changePercent(before, after),
        );
      }
    }
  }
}

/** The change in percent, unless the percentage is too large to be informative. */
function changePercent(before, after) {
  if (!before) return after ? "new" : "";
  const percent = ((after - before) * 100) / before;
  if (percent >= 1000) return `${(after / before).toFixed(0)} times`;
  return `${percent > 0 ? "+" : ""}${percent.toFixed(1)} %`;
}
