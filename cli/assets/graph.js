// The flame graph: blocks on a canvas. Only blocks wider than half a pixel are laid out and drawn.

const CHAR = 6.65;
const FONT = "11px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";

class Graph {
  /** `on` has: hover(block, event), choose(block), label(frame): a source line to show instead of a name, if any. */
  constructor(canvas, pane, model, palette, on) {
    Object.assign(this, { canvas, pane, model, palette, on });
    this.context = canvas.getContext("2d");
    this.scroll = 0;
    this.drawn = [];
    this.row = 19;
    pane.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.move(event));
    pane.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.leave());
    pane.addEventListener("click", (event) => this.click(event));
    pane.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    pane.addEventListener("keydown", (event) => this.key(event));
  }

  /** Shows a layout, zoomed to a block. */
  show(layout, focus, state) {
    Object.assign(this, { layout, focus, state });
    if (this.shownFocus !== focus) {
      this.scroll = 0;
      this.picked = focus;
    }
    this.shownFocus = focus;
    this.hovered = null;
    this.draw();
  }

  /** If the page itself scrolls (narrow screens, printing), the pane is as high as the graph. */
  get isWhole() {
    return this.isNarrow || this.isPrinted;
  }

  get isNarrow() {
    return document.body.classList.contains("narrow");
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.row = this.isNarrow ? 26 : 19;
    if (this.isWhole) this.pane.style.height = `${Math.min(Math.max((this.deepest + 2) * this.row, 240), 8000)}px`;
    else this.pane.style.height = "";
    const { clientWidth: width, clientHeight: height } = this.pane;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.width = width;
    this.height = height;
  }

  color(name) {
    return this.palette.color(name);
  }

  draw() {
    if (!this.layout) return;
    this.cancel?.();
    this.cancel = paintSoon(() => this.paint());
  }

  paint() {
    if (!this.pane.clientWidth) return false;
    this.width = this.pane.clientWidth;
    this.height = this.isWhole ? 8000 : this.pane.clientHeight;
    this.place();
    this.resize();
    const { context } = this;
    context.fillStyle = this.color("bg");
    context.fillRect(0, 0, this.width, this.height);
    context.font = FONT;
    context.textBaseline = "middle";
    for (const row of this.drawn) if (row) for (const item of row) this.paintBlock(item);
    if (!this.layout.whole) this.say("Nothing here: no such allocations in this selection.");
    return true;
  }

  say(text) {
    this.context.fillStyle = this.color("dim");
    this.context.fillText(text, 16, 40);
  }

  /** Computes positions: the zoomed block with its callers above and its callees below. */
  place() {
    this.drawn = [];
    this.deepest = 0;
    for (let block = this.focus; block; block = block.parent)
      this.placeBlock(block, 0, this.width, block !== this.focus);
    if (this.focus.value) this.placeKids(this.focus, 0, this.width);
  }

  placeKids(block, x, width) {
    const scale = width / block.value;
    let left = x;
    for (const kid of this.layout.kids(block)) {
      const part = kid.value * scale;
      if (part < 0.5) break;
      this.layout.fold(kid);
      this.placeBlock(kid, left, part, false);
      if (kid.depth * this.row - this.scroll < this.height + 4000) this.placeKids(kid, left, part);
      left += part;
    }
  }

  placeBlock(block, x, width, isAbove) {
    this.deepest = Math.max(this.deepest, block.depth);
    (this.drawn[block.depth] ||= []).push({ block, x, width, isAbove });
  }

  top(depth) {
    const y = depth * this.row - this.scroll;
    return this.state.flame ? this.height - y - this.row : y;
  }

  paintBlock({ block, x, width, isAbove }) {
    const y = this.top(block.depth);
    const { context, row } = this;
    if (y + row < 0 || y > this.height) return;
    const { matches } = this.state;
    const isMatch = matches && [block.frame, ...block.chain].some((frame) => frame >= 0 && matches[frame]);
    context.globalAlpha = (matches && !isMatch) || isAbove ? 0.35 : 1;
    context.fillStyle = isMatch ? this.color("match") : this.fill(block);
    context.fillRect(x, y, Math.max(width - (width > 3 ? 1 : 0.2), 0.4), row - 1);
    this.paintUncertain(block, x, y, width);
    context.globalAlpha = isAbove ? 0.8 : 1;
    if (block === this.hovered || (block === this.picked && document.activeElement === this.pane)) {
      context.strokeStyle = this.color("hover");
      context.lineWidth = 1.5;
      context.strokeRect(x + 0.75, y + 0.75, Math.max(width - 2.5, 1), row - 2.5);
    }
    if (width > 28) this.label(block, x, y, width, (matches && !isMatch) || isAbove);
    context.globalAlpha = 1;
  }

  /** Hatches the end of a block that lies within its 95 % interval. */
  paintUncertain(block, x, y, width) {
    const reach = width > 8 && block.value && this.layout.reach(block, this.layout.selection.metric, "total");
    if (!reach) return;
    const part = Math.min((reach.down / block.value) * width, width) - 1;
    if (part < 2) return;
    const { context, row } = this;
    context.save();
    context.beginPath();
    context.rect(x + width - 1 - part, y, part, row - 1);
    context.clip();
    context.strokeStyle = this.color("bg");
    context.lineWidth = 1;
    context.beginPath();
    for (let left = x + width - part - row; left < x + width; left += 5) {
      context.moveTo(left, y + row);
      context.lineTo(left + row, y);
    }
    context.stroke();
    context.restore();
  }

  label(block, x, y, width, isDim) {
    const room = Math.floor((width - 8) / CHAR);
    if (room < 2) return;
    const isStrong = this.model.diff && block.isFrame && /^(grown|shrunk)4$/.test(this.change(block));
    this.context.fillStyle = this.color(isDim && this.palette.dark ? "text" : isStrong ? "strong-text" : "frame-text");
    this.context.font = this.isOwn(block) ? `600 ${FONT}` : FONT;
    this.context.fillText(this.labelText(block, room), x + 4, y + this.row / 2);
  }

  isOwn(block) {
    return block.isFrame && !this.model.diff && this.model.frames[block.frame].isOwn;
  }

  /** Name, size and location of a block, in this priority, as far as they fit. */
  labelText(block, room) {
    if (block === this.layout.root) return clipped(this.name(block), room);
    const { metric } = this.layout.selection;
    const size = formatAmount(block.value, metric);
    const frame = this.model.frames[block.frame];
    let name = this.layout.name(block);
    const source = block.isFrame && !block.isImport ? this.on.label(block.frame) : "";
    if (source) name = source;
    else if (block.isFrame && !block.isImport && name.length + size.length + 2 > room) name = frame.brief;
    let text = name.length + size.length + 2 <= room ? `${name}  ${size}` : clipped(name, room);
    if (!block.isFrame || block.isImport || text.length < name.length + size.length) return text;
    const places = source ? [frame.fileLine] : [frame.shortPlace, frame.fileLine];
    const place = places.find((place) => place && text.length + place.length + 2 <= room);
    if (place) text += `  ${place}`;
    return text + this.chainText(block, room - text.length);
  }

  /** The frames folded into a block: the last one, and the number of others. */
  chainText({ chain }, room) {
    if (!chain.length) return "";
    const last = this.model.frames[chain[chain.length - 1]];
    const more = chain.length > 1 ? `… ${chain.length - 1} … ` : "";
    const texts = [`  › ${more}${last.brief}  ${last.shortPlace}`, `  › ${more}${last.brief}`, `  +${chain.length}`];
    return texts.find((text) => text.length <= room) || "";
  }

  name(block) {
    if (block !== this.layout.root) return this.layout.name(block);
    const { view, metric, range, vanished } = this.layout.selection;
    const title = this.model.data.views[view];
    const format = (value) => (metric === "bytes" ? formatSize(value) : `${formatCount(value)} allocations`);
    if (vanished) return `Only in the base, ${title.toLowerCase()}: ${format(block.value)}`;
    const base = this.model.diff ? `${format(this.layout.describeBase(block)[metric].total)} → ` : "";
    return `${title}${range ? " of the range" : ""}: ${base}${format(block.value)}`;
  }

  fill(block) {
    if (block.frame === ARENAS) return this.color("arenas");
    if (!block.isFrame && block.frame !== LOADING) return this.color("root");
    if (this.model.diff) return this.color(this.change(block));
    if (block.frame === LOADING || block.isImport) return this.color("imports");
    return this.palette.frame(this.model.frames[block.frame], block.shade);
  }

  change(block) {
    const by = this.state.colorBy;
    const { metric, vanished } = this.layout.selection;
    if (block.changeBy !== by) {
      const { news } = block.figures;
      const now = vanished ? this.layout.describe(block) : this.layout.describe(block, news.now);
      const base = this.layout.describe(block, vanished ? block.figures.base : news.base);
      const inBase = base.bytes.total > 0 || base.count.total > 0;
      // Callers of vanished functions are shown with them; grey if the new capture has them.
      const after = vanished ? this.layout.describe(block, block.figures.now) : null;
      const stays = after && (after.bytes.total > 0 || after.count.total > 0);
      const { layout } = this;
      const isNoise = layout.isNoise(block, metric, by, layout.describe(block)[metric][by], base[metric][by]);
      block.change =
        stays || isNoise
          ? "same"
          : changeClass(now[metric][by], base[metric][by], inBase, vanished, this.model.floor(this.layout.selection));
      block.changeBy = by;
    }
    return block.change;
  }

  at(event) {
    const box = this.pane.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const depth = Math.floor(((this.state.flame ? this.height - y : y) + this.scroll) / this.row);
    const row = this.drawn[depth] || [];
    return row.find((item) => x >= item.x && x < item.x + item.width)?.block || null;
  }

  move(event) {
    const block = this.at(event);
    if (block !== this.hovered) {
      this.hovered = block;
      this.draw();
    }
    this.pane.style.cursor = block ? "pointer" : "default";
    this.on.hover(block, event);
  }

  leave() {
    this.hovered = null;
    this.on.hover(null);
    this.draw();
  }

  click(event) {
    const block = this.at(event);
    if (!block) return;
    this.picked = block;
    this.on.choose(block);
  }

  wheel(event) {
    const most = Math.max(0, (this.deepest + 2) * this.row - this.height);
    const before = this.scroll;
    const by = this.state.flame ? -event.deltaY : event.deltaY;
    this.scroll = Math.min(most, Math.max(0, this.scroll + by));
    if (this.scroll === before) return;
    event.preventDefault();
    this.draw();
  }

  key(event) {
    const block = this.picked || this.focus;
    const flip = this.state.flame;
    const siblings = block.parent ? this.layout.kids(block.parent) : [block];
    const index = siblings.indexOf(block);
    const moves = {
      [flip ? "ArrowUp" : "ArrowDown"]: () => this.layout.kids(block)[0],
      [flip ? "ArrowDown" : "ArrowUp"]: () => block.parent,
      ArrowRight: () => siblings[index + 1],
      ArrowLeft: () => siblings[index - 1],
      Home: () => this.layout.root,
    };
    if (event.key === "Enter") return this.on.choose(block);
    if (!moves[event.key]) return;
    event.preventDefault();
    const next = moves[event.key]();
    if (next?.value) this.pick(next);
  }

  pick(block) {
    this.picked = block;
    const y = block.depth * this.row;
    if (y < this.scroll) this.scroll = y;
    if (y + 2 * this.row > this.scroll + this.height) this.scroll = y + 2 * this.row - this.height;
    this.on.hover(block);
    this.draw();
  }
}
