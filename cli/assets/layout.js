// Blocks of the graph, built on demand from sets of nodes of the call tree. A block is one frame in one context.
//
// The layout transforms the call tree: inverts it, splits it by thread, folds imports, omits frames, and draws chains of
// single callees as one block. A block's figures are always those of all its nodes, including folded ones.

/** Pseudo frames of blocks that represent no frame of the capture. */
const ROOT = -1;
const ARENAS = -2;
const LOADING = -3;
/** The block of thread n has this pseudo frame minus n. */
const FIRST_THREAD = -16;

class Block {
  constructor(frame, parent, figures) {
    this.frame = frame;
    this.parent = parent;
    this.depth = parent ? parent.depth + 1 : 0;
    this.figures = figures;
    this.nodes = []; // counted with all below them
    this.ownNodes = []; // counted with their own figures alone
    this.origins = null; // inverted: the nodes where the chains of callers begin
    this.skippedOwn = []; // nodes of frames left out, whose own figures count here
    this.chain = []; // frames of single callees that are folded into this block, outermost first
    this.value = 0;
    this.kids = null;
    this.shade = 0;
  }

  /** Whether it represents a frame of the capture. */
  get isFrame() {
    return this.frame >= 0;
  }

  get thread() {
    return this.frame <= FIRST_THREAD ? FIRST_THREAD - this.frame : null;
  }

  /** This block's path of frames from the root, for links. */
  path() {
    const path = [];
    for (let block = this; block.parent; block = block.parent) path.unshift(block.frame);
    return path;
  }
}

class Layout {
  /** `options`: inverted, split, frames (one of FRAMES). */
  constructor(model, selection, options) {
    Object.assign(this, { model, selection, options });
    // If Python's arenas are separate, they are one block; otherwise they are at the frames that mapped them.
    this.withoutArenas = { ...selection, hide: selection.hide | (selection.apart ? 1 << OWNER.arenas : 0) };
    this.figures = model.figures(this.withoutArenas);
    this.root = this.fill(new Block(ROOT, null, this.figures));
    this.arenas = !selection.apart || (selection.hide >> OWNER.arenas) & 1 ? 0 : this.arenaTotal();
    this.root.value += this.arenas;
  }

  /** Everything that is shown. */
  get whole() {
    return this.root.value;
  }

  arenaTotal() {
    const { bytes, count, baseBytes, baseCount } = this.model.byOwner(this.selection)[OWNER.arenas];
    this.arenaFigures = { bytes, count, baseBytes, baseCount };
    return { bytes, count }[this.selection.metric];
  }

  fill(block) {
    const { metric } = this.selection;
    if (this.options.inverted) {
      const { own } = block.figures[metric];
      const base = block.figures.base?.[metric].own;
      for (let node = 1; node < this.model.count; node++) if (own[node] || base?.[node]) block.nodes.push(node);
      block.origins = block.nodes;
    } else {
      block.nodes = [0];
    }
    block.value = block.figures[metric].total[0];
    return block;
  }

  get folds() {
    return this.options.frames !== "all";
  }

  /** Whether imports are drawn as separate blocks, without frames of the import system. */
  get foldsImports() {
    return this.folds && this.options.frames !== "own";
  }

  /** Whether a frame is omitted, so that its callees become callees of its caller. */
  skips(frame) {
    const { isPlumbing, isNative, isOwn } = this.model.frames[frame];
    switch (this.options.frames) {
      case "all":
        return false;
      case "own":
        return !isOwn;
      case "python":
        return isNative || isPlumbing;
      default:
        return isPlumbing;
    }
  }

  kids(block) {
    this.fold(block);
    if (!block.kids) {
      block.kids = this.kidsOf(block);
      block.kids.sort((a, b) => b.value - a.value || a.frame - b.frame);
      // A shade that differs from those of the caller and of neighbours.
      block.kids.forEach((kid, at) => (kid.shade = (block.shade + 1 + (at % 3)) % 4));
    }
    return block.kids;
  }

  kidsOf(block) {
    if (block.frame === ARENAS) return [];
    if (block !== this.root) return this.options.inverted ? this.callers(block) : this.callees(block);
    const kids = this.options.split
      ? this.threadKids()
      : this.options.inverted
        ? this.callers(block)
        : this.callees(block);
    if (this.arenas) {
      const arenas = new Block(ARENAS, block, this.figures);
      arenas.value = this.arenas;
      kids.push(arenas);
    }
    return kids;
  }

  threadKids() {
    const threads = this.model.threads(this.withoutArenas).slice(0, 200);
    return threads.map((thread) => {
      const figures = this.model.figures({ ...this.withoutArenas, thread });
      return this.fill(new Block(FIRST_THREAD - thread, this.root, figures));
    });
  }

  /** The callees of a block's nodes. Not recursive: omitted frames may be deeper than JavaScript's stack. */
  callees(block) {
    const { frame, end, frames } = this.model;
    const { total } = block.figures[this.selection.metric];
    const base = block.figures.base?.[this.selection.metric].total;
    const kids = new Map();
    const todo = block.nodes.map((node) => ({ node, importing: false }));
    while (todo.length) {
      const { node, importing } = todo.pop();
      for (let child = node + 1; child < end[node]; child = end[child]) {
        if (!total[child] && !base?.[child]) continue;
        const { isImporting } = frames[frame[child]];
        if (this.foldsImports && (isImporting || importing)) {
          this.importing(kids, block, child, todo);
        } else if (this.skips(frame[child])) {
          block.skippedOwn.push(child);
          todo.push({ node: child, importing: false });
        } else {
          this.addKid(kids, block, frame[child], total[child]).nodes.push(child);
        }
      }
    }
    return [...kids.values()];
  }

  /** A node of, or called by, the import system: module bodies are blocks, everything else is loading. */
  importing(kids, block, node, todo) {
    const { frame, frames, functionOf } = this.model;
    const { own, total } = block.figures[this.selection.metric];
    const { isImporting, name } = frames[frame[node]];
    if (isImporting) {
      if (own[node] || block.figures.base?.[this.selection.metric].own[node]) {
        this.addKid(kids, block, LOADING, own[node]).ownNodes.push(node);
      }
      todo.push({ node, importing: true });
    } else if (name === "<module>") {
      this.addKid(kids, block, functionOf[frame[node]], total[node], true).nodes.push(node);
    } else {
      this.addKid(kids, block, LOADING, total[node]).nodes.push(node);
    }
  }

  callers(block) {
    const { frame, parent } = this.model;
    const { own } = block.figures[this.selection.metric];
    const kids = new Map();
    const isTop = !block.isFrame;
    block.nodes.forEach((node, index) => {
      let caller = isTop ? node : parent[node];
      while (caller > 0 && this.skipsCaller(frame[caller])) caller = parent[caller];
      if (caller <= 0) return;
      const origin = block.origins[index];
      const kid = this.addKid(kids, block, frame[caller], own[origin]);
      kid.nodes.push(caller);
      (kid.origins ||= []).push(origin);
    });
    return [...kids.values()];
  }

  skipsCaller(frame) {
    return this.skips(frame) || (this.foldsImports && this.model.frames[frame].isImporting);
  }

  addKid(kids, block, frame, value, isImport = false) {
    const key = isImport ? `import ${frame}` : frame;
    if (!kids.has(key)) {
      kids.set(key, new Block(frame, block, block.figures));
      kids.get(key).isImport = isImport;
    }
    const kid = kids.get(key);
    kid.value += value;
    return kid;
  }

  /** Merges single callees with all bytes of a block into it, up to the first one of own code. */
  fold(block) {
    if (block.isFolded || !this.folds) return;
    block.isFolded = true;
    if (!block.isFrame || block.isImport || this.model.frames[block.frame].isOwn) return;
    for (;;) {
      const kids = this.kidsOf(block);
      // Omitted frames are visited again when the callees are computed.
      block.skippedOwn = [];
      if (kids.length !== 1 || !this.joins(block, kids[0])) return;
      const { frame, nodes, origins } = kids[0];
      block.chain.push(frame);
      Object.assign(block, { nodes, origins });
    }
  }

  /** Whether a callee may be merged with its caller. */
  joins(block, only) {
    // A difference has two values for each block.
    if (this.model.diff || !only.isFrame || only.isImport || this.model.frames[only.frame].isOwn) return false;
    if (this.model.frames[only.frame].origin !== this.model.frames[block.frame].origin) return false;
    if (this.options.inverted) return only.origins.length === block.origins.length;
    const sum = (nodes, { total }) => nodes.reduce((all, node) => all + total[node], 0);
    const { bytes, count } = block.figures;
    return [bytes, count].every((figures) => sum(block.nodes, figures) === sum(only.nodes, figures));
  }

  /** Figures of a block: self and total of bytes and counts. */
  describe(block, figures = block.figures) {
    const result = {};
    for (const metric of ["bytes", "count"]) {
      const { own, total } = figures[metric];
      const join = figures.join ?? sumOf;
      const sum = (nodes, values) => nodes.reduce((s, node) => join(s, values[node]), 0);
      if (block.frame === ARENAS) {
        result[metric] = this.describeArenas(metric, figures);
      } else if (this.options.inverted) {
        const all = sum(block.origins, own);
        const isLeaf = block.depth === (this.options.split ? 2 : 1);
        result[metric] = { total: block.isFrame ? all : total[0], own: isLeaf ? all : 0 };
      } else {
        this.kids(block);
        const ownOnly = sum(block.ownNodes, own);
        const ownSum = join(join(sum(block.nodes, own), sum(block.skippedOwn, own)), ownOnly);
        result[metric] = { total: join(sum(block.nodes, total), ownOnly), own: ownSum };
      }
      const hasArenas = block === this.root && this.arenas && !figures.isSpread;
      if (hasArenas) result[metric].total += this.describeArenas(metric, figures).total;
    }
    return result;
  }

  /** How far the 95 % interval of a figure reaches down and up; null where figures are exact or nothing is known of it. */
  reach(block, metric, which, figures = block.figures) {
    if (!figures?.spread || block.frame === ARENAS) return null;
    const of = (what) => {
      const { bytes, count } = this.describe(block, what);
      return { bytes: bytes[which], count: count[which] };
    };
    return reachOfParts(metric, of, figures);
  }

  /** Whether the difference of a figure lies within its 95 % interval. */
  isNoise(block, metric, which, now, base) {
    const after = this.reach(block, metric, which);
    const before = this.reach(block, metric, which, block.figures.base);
    if (!after || !before) return false;
    const change = now - base;
    return Math.abs(change) <= (change > 0 ? Math.hypot(after.down, before.up) : Math.hypot(after.up, before.down));
  }

  describeArenas(metric, figures) {
    // Mappings are exact.
    if (figures.isSpread) return { total: 0, own: 0 };
    const isBase = figures === this.figures.base || figures === this.figures.news?.base;
    const key = isBase ? { bytes: "baseBytes", count: "baseCount" }[metric] : metric;
    const value = this.arenaFigures[key];
    return { total: value, own: value };
  }

  /** The figures of the base; blocks contain the nodes of both captures, so these are complete. */
  describeBase(block) {
    return block.figures.base ? this.describe(block, block.figures.base) : null;
  }

  /** Bytes or counts by allocator under a block, the largest first. */
  allocators(block) {
    const { model } = this;
    const { groupAllocator, allocators } = model.data;
    const groups = model.groupFigures(this.selection)[this.selection.metric];
    const selection = { ...this.withoutArenas, thread: this.threadOf(block) };
    const sums = new Map();
    const add = (from, to) => {
      for (let group = lowerBound(model.groupNode, from); group < model.groupNode.length; group++) {
        if (model.groupNode[group] >= to) break;
        if (!groups[group] || !model.selects(selection, group)) continue;
        const allocator = allocators[groupAllocator[group]];
        sums.set(allocator, (sums.get(allocator) || 0) + groups[group]);
      }
    };
    if (block.frame === ARENAS) return [];
    if (this.options.inverted && block.isFrame) block.origins.forEach((node) => add(node, node + 1));
    else if (block === this.root || block.thread !== null) add(0, model.count);
    else block.nodes.forEach((node) => add(node, model.end[node]));
    block.ownNodes.forEach((node) => add(node, node + 1));
    return [...sums].sort((a, b) => b[1] - a[1]);
  }

  threadOf(block) {
    for (let at = block; at; at = at.parent) if (at.thread !== null) return at.thread;
    return this.selection.thread;
  }

  /** The block at a path of frames, or the deepest existing one on it. */
  find(path) {
    let block = this.root;
    for (const frame of path) {
      const next = this.kids(block).find((kid) => kid.frame === frame);
      if (!next) break;
      block = next;
    }
    return block;
  }

  /** The largest block for a frame, or with it in its chain; searched from the root, largest callees first. */
  largest(frame) {
    let best = null;
    const todo = [this.root];
    while (todo.length) {
      const block = todo.pop();
      if (best && block.value <= best.value) continue;
      if (block.frame === frame || block.chain.includes(frame)) best = block;
      else for (const kid of this.kids(block)) if (!best || kid.value > best.value) todo.push(kid);
    }
    return best;
  }

  /** The name of a block. */
  name(block) {
    if (block.isImport) return `import ${this.model.frames[block.frame].importName}`;
    if (block.isFrame) return this.model.frames[block.frame].name;
    if (block.thread !== null) return threadName(this.model.data.threads[block.thread]);
    if (block.frame === ARENAS) return "Python's arenas (used and unused)";
    if (block.frame === LOADING) return "finding and loading modules";
    return "";
  }
}

/** Colour class of a change, in steps of 15, 30, 50 and 100 percent; functions that the base lacks are new. */
function changeClass(now, base, inBase, vanished, floor) {
  if (vanished) return "gone";
  if (Math.abs(now - base) < floor) return "same";
  if (!inBase) return "new";
  const percent = base ? ((now - base) * 100) / base : 100 * Math.sign(now);
  const size = Math.abs(percent);
  if (size < 15) return "same";
  const step = size >= 100 ? 4 : size > 50 ? 3 : size > 30 ? 2 : 1;
  return (percent > 0 ? "grown" : "shrunk") + step;
}
