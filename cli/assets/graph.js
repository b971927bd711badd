// The flame graph: blocks on a canvas. Only what is wider than half a pixel is laid out and drawn.

const ROW = 19;
const CHAR = 6.65;

class Graph {
  /** `on` has: hover(block, event), choose(block). */
  constructor(canvas, pane, model, on) {
    Object.assign(this, { canvas, pane, model, on });
    this.context = canvas.getContext("2d");
    this.scroll = 0;
    this.drawn = [];
    this.colors = new Map();
    pane.addEventListener("mousemove", (event) => this.move(event));
    pane.addEventListener("mouseleave", () => { this.hovered = null; this.on.hover(null); this.draw(); });
    pane.addEventListener("click", (event) => { const block = this.at(event); if (block) { this.picked = block; this.on.choose(block); } });
    pane.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    pane.addEventListener("keydown", (event) => this.key(event));
  }

  /** Shows a layout, zoomed to a block. */
  show(layout, focus, state) {
    Object.assign(this, { layout, focus, state });
    if (this.shownFocus !== focus) { this.scroll = 0; this.picked = focus; }
    this.shownFocus = focus;
    this.hovered = null;
    this.draw();
  }

  resize() {
    const ratio = window.devicePixelRatio || 1, { clientWidth: width, clientHeight: height } = this.pane;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.width = width;
    this.height = height;
  }

  theme() {
    const style = getComputedStyle(document.documentElement);
    this.color = (name) => style.getPropertyValue(`--${name}`).trim();
    this.dark = document.documentElement.dataset.theme === "dark";
    this.colors.clear();
  }

  draw() {
    if (!this.layout) return;
    cancelAnimationFrame(this.pending);
    this.pending = requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.resize();
    const { context } = this;
    context.fillStyle = this.color("bg");
    context.fillRect(0, 0, this.width, this.height);
    context.font = "11px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
    context.textBaseline = "middle";
    this.drawn = [];
    this.deepest = 0;
    for (let block = this.focus; block; block = block.parent) this.place(block, 0, this.width, block !== this.focus);
    if (this.focus.value) this.below(this.focus, 0, this.width);
    for (const row of this.drawn) if (row) for (const item of row) this.paintBlock(item);
    if (!this.layout.root.value) this.say("Nothing here: no such allocations in this selection.");
  }

  say(text) {
    this.context.fillStyle = this.color("dim");
    this.context.fillText(text, 16, 40);
  }

  below(block, x, width) {
    const scale = width / block.value;
    let left = x;
    for (const kid of this.layout.kids(block)) {
      const part = kid.value * scale;
      if (part < 0.5) break;
      this.place(kid, left, part, false);
      if (kid.depth * ROW - this.scroll < this.height + 4000) this.below(kid, left, part);
      left += part;
    }
  }

  place(block, x, width, isAbove) {
    this.deepest = Math.max(this.deepest, block.depth);
    (this.drawn[block.depth] ||= []).push({ block, x, width, isAbove });
  }

  top(depth) {
    const y = depth * ROW - this.scroll;
    return this.state.flame ? this.height - y - ROW : y;
  }

  paintBlock({ block, x, width, isAbove }) {
    const y = this.top(block.depth), { context } = this;
    if (y + ROW < 0 || y > this.height) return;
    const matches = this.state.matches, isMatch = matches && block.frame >= 0 && matches[block.frame];
    context.globalAlpha = (matches && !isMatch) || isAbove ? 0.35 : 1;
    context.fillStyle = isMatch ? this.color("match") : this.fill(block);
    context.fillRect(x, y, Math.max(width - (width > 3 ? 1 : 0.2), 0.4), ROW - 1);
    context.globalAlpha = isAbove ? 0.75 : 1;
    if (block === this.hovered || (block === this.picked && document.activeElement === this.pane)) {
      context.strokeStyle = this.color("hover");
      context.lineWidth = 1.5;
      context.strokeRect(x + 0.75, y + 0.75, Math.max(width - 2.5, 1), ROW - 2.5);
    }
    if (width > 28) this.label(block, x, y, width, matches && !isMatch);
    context.globalAlpha = 1;
  }

  label(block, x, y, width, isDim) {
    const room = Math.floor((width - 8) / CHAR);
    if (room < 2) return;
    let text = this.name(block);
    if (block.frame >= 0) {
      const { brief, shortPlace } = this.model.frames[block.frame];
      if (text.length > room) text = brief;
      if (shortPlace && text.length + shortPlace.length + 2 <= room) text += `  ${shortPlace}`;
    }
    if (text.length > room) text = `${text.slice(0, room - 1)}…`;
    const isPlain = isDim || (this.dark && this.focus !== block && block.depth < this.focus.depth);
    const isStrong = this.model.diff && block.frame >= 0 && /^(grown|shrunk)4$/.test(this.change(block));
    this.context.fillStyle = this.color(isPlain ? "text" : isStrong ? "strong-text" : "frame-text");
    this.context.fillText(text, x + 4, y + ROW / 2);
  }

  name(block) {
    if (block.frame >= 0) return this.model.frames[block.frame].name;
    if (block.frame <= -2) return threadName(this.model.data.threads[-2 - block.frame]);
    const { view, metric, range, vanished } = this.layout.selection, title = this.model.data.views[view];
    const format = (value) => (metric === "bytes" ? formatSize(value) : `${formatCount(value)} allocations`);
    if (vanished) return `Only in the base, ${title.toLowerCase()}: ${format(block.value)}`;
    const base = this.model.diff ? `${format(block.figures.base[metric].total[0])} → ` : "";
    return `${title}${range ? " of the range" : ""}: ${base}${format(block.value)}`;
  }

  fill(block) {
    if (block.frame < 0) return this.color("root");
    if (this.model.diff) return this.color(this.change(block));
    const module = this.model.colorModule(block.frame);
    if (!module) return this.color("internal");
    if (!this.colors.has(block.frame)) this.colors.set(block.frame, this.shade(module, block.frame));
    return this.colors.get(block.frame);
  }

  /** The hue of a module: from its name, the same in every page. */
  hue(module) {
    let hash = 2166136261;
    for (const char of module) hash = Math.imul(hash ^ char.codePointAt(0), 16777619);
    hash ^= hash >>> 13;
    return (hash >>> 0) % 360;
  }

  moduleColor(module, step = 2) {
    const hue = this.hue(module);
    return this.dark ? `hsl(${hue} 46% ${59 + 2 * step}%)` : `hsl(${hue} 68% ${72 + 2 * step}%)`;
  }

  /** A colour for a frame: that of its module; neighbours differ a little. */
  shade(module, frame) {
    return this.moduleColor(module, (Math.imul(frame, 2654435761) >>> 28) % 5);
  }

  change(block) {
    const by = this.state.colorBy, { metric, vanished } = this.layout.selection;
    const key = `${by}`;
    if (block.changeBy !== key) {
      const now = this.layout.describe(block), base = this.layout.describeBase(block);
      const inBase = base.bytes.total > 0 || base.count.total > 0;
      // Callers of what vanished are shown with it; grey, where the new capture has them.
      const after = vanished ? this.layout.describe(block, block.figures.now) : null;
      const stays = after && (after.bytes.total > 0 || after.count.total > 0);
      block.change = stays ? "same" : changeClass(now[metric][by], base[metric][by], inBase, vanished);
      block.changeBy = key;
    }
    return block.change;
  }

  at(event) {
    const box = this.pane.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const depth = Math.floor(((this.state.flame ? this.height - y : y) + this.scroll) / ROW);
    const row = this.drawn[depth] || [];
    return row.find((item) => x >= item.x && x < item.x + item.width)?.block || null;
  }

  move(event) {
    const block = this.at(event);
    if (block !== this.hovered) { this.hovered = block; this.draw(); }
    this.pane.style.cursor = block ? "pointer" : "default";
    this.on.hover(block, event);
  }

  wheel(event) {
    const most = Math.max(0, (this.deepest + 2) * ROW - this.height);
    const before = this.scroll, by = this.state.flame ? -event.deltaY : event.deltaY;
    this.scroll = Math.min(most, Math.max(0, this.scroll + by));
    if (this.scroll !== before) { event.preventDefault(); this.draw(); }
  }

  key(event) {
    const block = this.picked || this.focus, flip = this.state.flame;
    const siblings = block.parent ? this.layout.kids(block.parent) : [block], index = siblings.indexOf(block);
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
    if (!next || !next.value) return;
    this.picked = next;
    const y = next.depth * ROW;
    if (y < this.scroll) this.scroll = y;
    if (y + 2 * ROW > this.scroll + this.height) this.scroll = y + 2 * ROW - this.height;
    this.on.hover(next);
    this.draw();
  }
}
