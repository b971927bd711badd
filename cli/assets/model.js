// The data of the page, and everything that is computed from it. Nothing here touches the document.
//
// The call tree stands in preorder: the nodes below node i are those from i + 1 up to end[i], so sums over a subtree are
// sums over a range. Node 0 is the root. What is drawn is another tree, of Blocks, made on demand from sets of nodes:
// inverted, with frames hidden, or split by thread.

/** Unpacks the page's data: base64, deflated, JSON. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.replace(/\s+/g, "")), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).json();
}

/** Running sums of a column of steps. */
function undelta(steps) {
  let sum = 0;
  return steps.map((step) => (sum += step));
}

/** Bytes with three digits, as everywhere in memtrack. */
function formatSize(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
  let value = Math.abs(bytes), unit = 0;
  if (value < 1000) return `${bytes < 0 ? "-" : ""}${value} B`;
  while (value >= 999.5 && unit < 6) { value /= 1000; unit++; }
  const digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${bytes < 0 ? "-" : ""}${value.toFixed(digits)} ${units[unit]}`;
}

const formatCount = (count) => count.toLocaleString("en-US");
const formatPercent = (part, whole) => (whole ? `${((part * 100) / whole).toFixed(part >= whole * 0.9995 ? 0 : 1)} %` : "0 %");
const formatTime = (us) => (us < 9.995e6 ? `${(us / 1e6).toFixed(2)} s` : us < 6e7 ? `${(us / 1e6).toFixed(1)} s`
  : `${Math.floor(us / 6e7)} min ${String(Math.floor((us % 6e7) / 1e6)).padStart(2, "0")} s`);

/** A thread, its name first. */
function threadName(text) {
  const [, id, name] = /^(\d+|\?) (.+)$/.exec(text) || [];
  return name ? `${name} (thread ${id})` : text;
}

/** The last part of a path, with the module's own name for the files of a package: `pandas/__init__.py`. */
function fileName(path) {
  const parts = path.split("/"), last = parts[parts.length - 1];
  return last === "__init__.py" || last === "__main__.py" || last === "mod.rs" ? parts.slice(-2).join("/") : last;
}

/** A native function's name without parameters and template arguments: for where there is no room for them. */
function briefName(name) {
  if (name.startsWith("<") || /\boperator\b/.test(name)) return name;
  let depth = 0, brief = "";
  for (const char of name.replaceAll("(anonymous namespace)", "{anonymous}")) {
    if (char === "<" || char === "(") depth++;
    if (depth === 0) brief += char;
    if (char === ">" || char === ")") depth = Math.max(0, depth - 1);
  }
  // What is before the last space is what it returns.
  return brief.replace(/( const| volatile|&)+$/, "").replaceAll("std::__cxx11::basic_string", "std::string").trim().split(" ").pop() || name;
}

/** A module's name without what its build added: `_json.cpython-311-x86_64-linux-gnu.so` is `_json`. */
function briefModule(name) {
  const brief = name.replace(/(\.cpython-[^.]*|\.abi3)?\.so(\.[\d.]+)?$/, "");
  return brief.length > 24 ? `${brief.slice(0, 23)}…` : brief;
}

class Model {
  constructor(data) {
    this.data = data;
    this.diff = data.kind === "diff";
    const count = data.nodeDepth.length + 1;
    this.count = count;
    this.frame = new Int32Array(count).fill(-1);
    this.parent = new Int32Array(count);
    this.end = new Int32Array(count).fill(count);
    const path = [0];
    for (let node = 1; node < count; node++) {
      const depth = data.nodeDepth[node - 1];
      this.frame[node] = data.nodeFrame[node - 1];
      while (path.length > depth) this.end[path.pop()] = node;
      this.parent[node] = path[path.length - 1];
      path.push(node);
    }
    this.groupNode = Int32Array.from(undelta(data.groupNode));
    this.frames = data.frameName.map((name, frame) => this.describe(frame));
    this.sums = new Map();
    if (data.time) {
      this.time = undelta(data.time);
      if (data.liveGroup) this.liveGroup = Int32Array.from(undelta(data.liveGroup));
    }
  }

  describe(frame) {
    const { strings, frameName, frameFile, frameLine, frameColumn, frameModule, frameSource, frameKind } = this.data;
    const name = strings[frameName[frame]], file = strings[frameFile[frame]], line = frameLine[frame];
    const column = frameColumn[frame], module = strings[frameModule[frame]], source = strings[frameSource[frame]];
    const imports = file.startsWith("<frozen importlib") || /\/importlib\/[^/]*$/.test(file);
    const native = frameKind[frame] > 0, interpreter = frameKind[frame] === 2;
    const library = file !== "" && module === "" && !native;
    const at = (line ? `:${line}` : "") + (column ? `:${column}` : "");
    // Where there is no line, the file of native code is the library, which the colour tells.
    const place = file + at, shortPlace = native && !line ? "" : fileName(file) + at, brief = native ? briefName(name) : name;
    return { name, brief, file, line, column, module, imports, library, native, interpreter, source, place, shortPlace };
  }

  /** Bytes and counts of each group: in a view, at the highest moment of a range, or left over by a range. */
  groupFigures(selection, side = "new") {
    const { view, range } = selection;
    if (!range) return { bytes: this.data[`${side}Bytes${view}`], count: this.data[`${side}Count${view}`] };
    const bytes = new Float64Array(this.groupNode.length), count = new Float64Array(this.groupNode.length);
    const { liveFirst, liveEnd, liveBytes, liveCount } = this.data;
    const [from, to] = range, high = this.highest(range);
    for (let i = 0; i < this.liveGroup.length; i++) {
      const first = liveFirst[i], end = liveEnd[i];
      const counts = view === 0 ? first <= high && high < end : first > from && first <= to && end > to;
      if (!counts) continue;
      bytes[this.liveGroup[i]] += liveBytes[i];
      count[this.liveGroup[i]] += liveCount[i];
    }
    return { bytes, count };
  }

  /** The moment of a range at which most was live, the first of them. */
  highest([from, to]) {
    let high = from;
    for (let at = from; at <= to; at++) if (this.data.heap[at] > this.data.heap[high]) high = at;
    return high;
  }

  /** Own and total figures of every node for a selection: of bytes and of counts, and those of the base. */
  figures(selection) {
    const key = JSON.stringify([selection.view, selection.range, selection.thread, !!selection.vanished]);
    if (this.sums.has(key)) return this.sums.get(key);
    if (this.sums.size > 24) this.sums.clear();
    const own = this.ownFigures(selection, "new");
    const base = this.diff ? this.ownFigures(selection, "base") : null;
    const shown = selection.vanished ? this.gone(own, base) : own;
    const figures = { ...this.withTotals(shown), base: base && this.withTotals(base) };
    if (selection.vanished) figures.now = this.withTotals(own);
    this.sums.set(key, figures);
    return figures;
  }

  ownFigures(selection, side) {
    const groups = this.groupFigures(selection, side);
    const bytes = new Float64Array(this.count), count = new Float64Array(this.count);
    const { groupThread } = this.data, { thread } = selection;
    for (let group = 0; group < this.groupNode.length; group++) {
      if (thread >= 0 && groupThread[group] !== thread) continue;
      bytes[this.groupNode[group]] += groups.bytes[group];
      count[this.groupNode[group]] += groups.count[group];
    }
    return { bytes, count };
  }

  /** What the base has at nodes where the new capture has nothing. */
  gone(own, base) {
    const absent = (node) => own.bytes[node] === 0 && own.count[node] === 0;
    return {
      bytes: base.bytes.map((value, node) => (absent(node) ? value : 0)),
      count: base.count.map((value, node) => (absent(node) ? value : 0)),
    };
  }

  /** The number of distinct call stacks that only the base has: as stored, counted before anything was merged. */
  vanishedStacks(selection) {
    if (selection.thread < 0) return this.data.vanishedStacks[selection.view];
    const { bytes, count } = this.gone(this.ownFigures(selection, "new"), this.ownFigures(selection, "base"));
    return count.reduce((sum, value, node) => sum + (value > 0 || bytes[node] > 0 ? 1 : 0), 0);
  }

  withTotals({ bytes, count }) {
    const totals = (own) => {
      const total = own.slice();
      for (let node = this.count - 1; node > 0; node--) total[this.parent[node]] += total[node];
      return { own, total };
    };
    return { bytes: totals(bytes), count: totals(count) };
  }

  /** Threads that have something in a selection, the largest first. */
  threads(selection) {
    const groups = this.groupFigures(selection)[selection.metric], sums = new Map();
    const base = this.diff ? this.groupFigures(selection, "base")[selection.metric] : null;
    this.data.groupThread.forEach((thread, group) => {
      const sum = groups[group] + (base ? base[group] : 0);
      if (sum) sums.set(thread, (sums.get(thread) || 0) + sum);
    });
    return [...sums].sort((a, b) => b[1] - a[1]).map(([thread]) => thread);
  }

  /** The frames whose function, file or module contains the text; null for an empty text. */
  matching(text) {
    if (!text) return null;
    const needle = text.toLowerCase();
    const hit = (frame) => [frame.name, frame.place, frame.module].some((part) => part.toLowerCase().includes(needle));
    return Uint8Array.from(this.frames, (frame) => (hit(frame) ? 1 : 0));
  }

  /** What is allocated under matching frames, each byte once. */
  matchedTotal(figures, metric, matches) {
    const own = figures[metric].own, covered = new Uint8Array(this.count);
    let sum = 0;
    for (let node = 1; node < this.count; node++) {
      covered[node] = covered[this.parent[node]] || matches[this.frame[node]];
      if (covered[node]) sum += own[node];
    }
    return sum;
  }

  /** The module that a frame's colour stands for; "" for those that are grey. */
  colorModule(frame) {
    const { module, library, interpreter } = this.frames[frame];
    return library || interpreter ? "" : module;
  }

  /** What the code of each coloured module allocated, itself or through frames that are grey or hidden: [module, amount], largest first. */
  byModule(figures, metric, hides) {
    const { own } = figures[metric], sums = new Map();
    const modules = this.frames.map((_, frame) => (hides(frame) ? "" : this.colorModule(frame)));
    const inherited = new Array(this.count).fill("");
    for (let node = 1; node < this.count; node++) {
      const module = (inherited[node] = modules[this.frame[node]] || inherited[this.parent[node]]);
      if (own[node]) sums.set(module, (sums.get(module) || 0) + own[node]);
    }
    return [...sums].sort((a, b) => b[1] - a[1]);
  }

  /** Own and total of each frame, recursion counted once. */
  byFrame(figures) {
    const rows = new Map(), open = new Map(), path = [];
    const names = ["bytes", "count"], base = figures.base;
    for (let node = 1; node < this.count; node++) {
      while (path.length && this.end[path[path.length - 1]] <= node) {
        const left = this.frame[path.pop()];
        open.set(left, open.get(left) - 1);
      }
      const frame = this.frame[node], outermost = !open.get(frame);
      open.set(frame, (open.get(frame) || 0) + 1);
      path.push(node);
      let row = rows.get(frame);
      if (!row) rows.set(frame, (row = { frame, bytes: [0, 0], count: [0, 0], baseBytes: [0, 0], baseCount: [0, 0] }));
      for (const name of names) {
        row[name][0] += figures[name].own[node];
        if (outermost) row[name][1] += figures[name].total[node];
        if (!base) continue;
        const key = name === "bytes" ? row.baseBytes : row.baseCount;
        key[0] += base[name].own[node];
        if (outermost) key[1] += base[name].total[node];
      }
    }
    const used = (row) => row.bytes[1] || row.count[1] || row.baseBytes[1] || row.baseCount[1];
    return [...rows.values()].filter(used);
  }
}

/** A rectangle of the graph: one frame in one context, and the nodes that it stands for. */
class Block {
  constructor(frame, parent, figures) {
    this.frame = frame; // -1 for the root, -2 - n for thread n
    this.parent = parent;
    this.depth = parent ? parent.depth + 1 : 0;
    this.figures = figures;
    this.nodes = [];
    this.origins = null; // inverted: where the nodes' callers chains began
    this.hiddenOwn = []; // nodes of hidden frames, whose own figures count here
    this.value = 0;
    this.kids = null;
  }

  /** This block's path of frames from the root, for links. */
  path() {
    const path = [];
    for (let block = this; block.parent; block = block.parent) path.unshift(block.frame);
    return path;
  }
}

/** Makes blocks on demand. */
class Layout {
  constructor(model, selection, options) {
    Object.assign(this, { model, selection, options });
    this.figures = model.figures(selection);
    this.root = new Block(-1, null, this.figures);
    this.fill(this.root);
  }

  fill(block) {
    const { metric } = this.selection;
    if (this.options.inverted) {
      const { own } = block.figures[metric], base = block.figures.base?.[metric].own;
      for (let node = 1; node < this.model.count; node++) if (own[node] || base?.[node]) block.nodes.push(node);
      block.origins = block.nodes;
    } else {
      block.nodes = [0];
    }
    block.value = block.figures[metric].total[0];
  }

  hidden(frame) {
    const { imports, library, native, interpreter } = this.model.frames[frame], { options } = this;
    return (options.imports && imports) || (options.library && (library || imports)) || (options.native && native)
      || (options.interpreter && interpreter);
  }

  kids(block) {
    if (!block.kids) {
      block.kids = block === this.root && this.options.split ? this.threadKids() : this.options.inverted
        ? this.callers(block) : this.callees(block);
      block.kids.sort((a, b) => b.value - a.value || a.frame - b.frame);
    }
    return block.kids;
  }

  threadKids() {
    return this.model.threads(this.selection).slice(0, 200).map((thread) => {
      const block = new Block(-2 - thread, this.root, this.model.figures({ ...this.selection, thread }));
      this.fill(block);
      return block;
    });
  }

  callees(block) {
    const { frame, end } = this.model, { metric } = this.selection, kids = new Map();
    const { total } = block.figures[metric], base = block.figures.base?.[metric].total;
    const todo = [...block.nodes];
    // Without recursion: hidden frames may be deeper than the script's own stack.
    while (todo.length) {
      const node = todo.pop();
      for (let child = node + 1; child < end[node]; child = end[child]) {
        if (!total[child] && !base?.[child]) continue;
        if (this.hidden(frame[child])) {
          block.hiddenOwn.push(child);
          todo.push(child);
        } else {
          this.kid(kids, block, frame[child], child, total[child]);
        }
      }
    }
    return [...kids.values()];
  }

  callers(block) {
    const { frame, parent } = this.model, { own } = block.figures[this.selection.metric], kids = new Map();
    const isTop = block.frame < 0;
    block.nodes.forEach((node, index) => {
      let caller = isTop ? node : parent[node];
      while (caller > 0 && this.hidden(frame[caller])) caller = parent[caller];
      if (caller <= 0) return;
      const origin = block.origins[index];
      const kid = this.kid(kids, block, frame[caller], caller, own[origin]);
      (kid.origins ||= []).push(origin);
    });
    return [...kids.values()];
  }

  kid(kids, block, frame, node, value) {
    let kid = kids.get(frame);
    if (!kid) kids.set(frame, (kid = new Block(frame, block, block.figures)));
    kid.nodes.push(node);
    kid.value += value;
    return kid;
  }

  /** Figures of a block: own and total of bytes and counts; for a difference those of the base too. */
  describe(block, figures = block.figures) {
    const { inverted } = this.options, result = {};
    for (const metric of ["bytes", "count"]) {
      const { own, total } = figures[metric], sum = (nodes, values) => nodes.reduce((s, node) => s + values[node], 0);
      if (inverted) {
        const all = sum(block.origins, own);
        const isLeaf = block.depth === (this.options.split ? 2 : 1);
        result[metric] = { total: block.frame < 0 ? total[0] : all, own: isLeaf ? all : 0 };
      } else {
        this.kids(block);
        result[metric] = { total: sum(block.nodes, total), own: sum(block.nodes, own) + sum(block.hiddenOwn, own) };
      }
    }
    return result;
  }

  /** The base's figures; blocks hold the nodes of both captures, so that these are whole. */
  describeBase(block) {
    return block.figures.base ? this.describe(block, block.figures.base) : null;
  }

  /** Bytes and counts by allocator under a block, the largest first. */
  allocators(block) {
    const { model, selection } = this, groups = model.groupFigures(selection), sums = new Map();
    const thread = this.threadOf(block);
    const add = (from, to) => {
      for (let group = lowerBound(model.groupNode, from); group < model.groupNode.length; group++) {
        if (model.groupNode[group] >= to) break;
        if (thread >= 0 && model.data.groupThread[group] !== thread) continue;
        const allocator = model.data.allocators[model.data.groupAllocator[group]];
        const value = groups[selection.metric][group];
        if (value) sums.set(allocator, (sums.get(allocator) || 0) + value);
      }
    };
    if (this.options.inverted && block.frame >= 0) block.origins.forEach((node) => add(node, node + 1));
    else if (block.frame < 0) add(0, model.count);
    else block.nodes.forEach((node) => add(node, model.end[node]));
    return [...sums].sort((a, b) => b[1] - a[1]);
  }

  threadOf(block) {
    for (let at = block; at; at = at.parent) if (at.frame <= -2) return -2 - at.frame;
    return this.selection.thread;
  }

  /** The block at a path of frames; as far along as it exists. */
  find(path) {
    let block = this.root;
    for (const frame of path) {
      const next = this.kids(block).find((kid) => kid.frame === frame);
      if (!next) break;
      block = next;
    }
    return block;
  }
}

/** The first index whose value is not below `value`. */
function lowerBound(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

/** How a figure changed, as a class of colour: the steps are 15, 30, 50 and 100 percent. New is what the base lacks. */
function changeClass(now, base, inBase, vanished) {
  if (vanished) return "gone";
  if (!inBase) return "new";
  if (now === base) return "same";
  const percent = base ? ((now - base) * 100) / base : 100 * Math.sign(now);
  const size = Math.abs(percent);
  if (size < 15) return "same";
  const step = size >= 100 ? 4 : size > 50 ? 3 : size > 30 ? 2 : 1;
  return (percent > 0 ? "grown" : "shrunk") + step;
}
