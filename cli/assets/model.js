// The data of the page and sums over it. Independent of the document.
//
// The call tree is in preorder: the nodes below node i are those from i + 1 up to end[i]. Node 0 is the root. A group is
// the allocations of one thread with one allocator at one node, of one owner.

/** Unpacks the page's data: base64, deflated, JSON. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.replace(/\s+/g, "")), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).json();
}

/** Decodes a column of differences. */
function undelta(steps) {
  let sum = 0;
  return steps.map((step) => (sum += step));
}

/** The texts of the views, by their numbers. */
const VIEW_NAMES = ["Peak", "Leaks", "At exit", "Temporary", "All", "Pinned", "Objects"];
/** So many views are there always; the others where they have something. */
const STEADY_VIEWS = 5;

/** How figures of nodes add up, unless they are joined otherwise. */
const sumOf = (one, other) => one + other;

/** The first index whose value is not below `value`. */
function lowerBound(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

class Model {
  constructor(data) {
    this.data = data;
    this.diff = data.kind === "diff";
    this.readTree();
    this.groupNode = Int32Array.from(undelta(data.groupNode));
    this.frames = describeFrames(data);
    this.functionOf = numberFunctions(this.frames);
    this.lineOf = numberFunctions(this.frames, true);
    this.readOwners();
    this.sums = new Map();
    if (data.time) {
      this.time = undelta(data.time);
      this.heapTime = undelta(data.heapTime);
      if (data.liveGroup) this.liveGroup = Int32Array.from(undelta(data.liveGroup));
    }
  }

  readTree() {
    const { nodeDepth, nodeFrame } = this.data;
    const count = (this.count = nodeDepth.length + 1);
    this.frame = new Int32Array(count).fill(-1);
    this.parent = new Int32Array(count);
    this.end = new Int32Array(count).fill(count);
    const path = [0];
    for (let node = 1; node < count; node++) {
      this.frame[node] = nodeFrame[node - 1];
      while (path.length > nodeDepth[node - 1]) this.end[path.pop()] = node;
      this.parent[node] = path[path.length - 1];
      path.push(node);
    }
  }

  /**
   * The owner of each group. In selections that separate Python's arenas, these are a class of their own, because it is
   * unknown how much of them is in use.
   */
  readOwners() {
    const { allocators, groupAllocator, groupOwner } = this.data;
    this.groupOwner = Uint8Array.from(groupOwner);
    this.groupOwnerApart = Uint8Array.from(groupOwner, (owner, group) =>
      allocators[groupAllocator[group]].endsWith("_arena") ? OWNER.arenas : owner,
    );
  }

  owner({ apart }, group) {
    return (apart ? this.groupOwnerApart : this.groupOwner)[group];
  }

  /** The numbers of the views that are shown. */
  views() {
    return [...VIEW_NAMES.keys()].filter((view) => view < STEADY_VIEWS || this.hasAny(view));
  }

  hasAny(view) {
    return [this.data[`newBytes${view}`], this.data[`baseBytes${view}`]].some((column) =>
      column?.some((bytes) => bytes > 0),
    );
  }

  /** Bytes and counts of each group: in a view, at the highest moment of a range, or kept after a range. */
  groupFigures({ view, range }, side = "new") {
    if (!range) return { bytes: this.data[`${side}Bytes${view}`], count: this.data[`${side}Count${view}`] };
    const { liveFirst, liveEnd, liveBytes, liveCount } = this.data;
    const bytes = new Float64Array(this.groupNode.length);
    const count = new Float64Array(this.groupNode.length);
    const [from, to] = range;
    const high = this.highest(range).moment;
    if (view === 0 && high === null) return this.groupFigures({ view, range: null }, side);
    for (let i = 0; i < this.liveGroup.length; i++) {
      const first = liveFirst[i];
      const end = liveEnd[i];
      const counts = view === 0 ? first <= high && high < end : first > from && first <= to && end > to;
      if (!counts) continue;
      bytes[this.liveGroup[i]] += liveBytes[i];
      count[this.liveGroup[i]] += liveCount[i];
    }
    return { bytes, count };
  }

  /** Time and bytes of the highest heap in a range. `moment` is null for a peak between moments. */
  highest([from, to]) {
    const { heap, peak } = this.data;
    let moment = from;
    for (let at = from; at <= to; at++) if (heap[at] > heap[moment]) moment = at;
    const hasPeak = peak && peak.time >= this.time[from] && peak.time < this.time[to];
    if (hasPeak && peak.bytes > heap[moment]) return { moment: null, ...peak };
    return { moment, time: this.time[moment], bytes: heap[moment] };
  }

  /** Start and end time of a range: its last moment lasts until the next event or moment. */
  span([from, to]) {
    const { time, heapTime } = this;
    const next = heapTime[lowerBound(heapTime, time[to] + 1)] ?? Infinity;
    return [time[from], Math.min(next, time[to + 1] ?? time[to])];
  }

  /** Self and total figures of every node for a selection: bytes and counts, and those of the base. */
  figures(selection) {
    const { view, range, thread, vanished, hide, apart } = selection;
    const key = JSON.stringify([view, range, thread, !!vanished, hide, !!apart]);
    if (this.sums.has(key)) return this.sums.get(key);
    if (this.sums.size > 24) this.sums.clear();
    const own = this.ownFigures(selection, "new");
    const base = this.diff ? this.ownFigures(selection, "base") : null;
    const shown = vanished ? this.gone(own, base) : own;
    const figures = { ...this.withTotals(shown), base: base && this.withTotals(base) };
    if (this.data.sampled && !range) {
      figures.spread = this.spread(selection, "new");
      if (base) figures.base.spread = this.spread(selection, "base");
    }
    if (base) figures.news = { now: this.news(selection, own, "new"), base: this.news(selection, base, "base") };
    if (vanished) figures.now = this.withTotals(own);
    this.sums.set(key, figures);
    return figures;
  }

  ownFigures(selection, side) {
    const groups = this.groupFigures(selection, side);
    const bytes = new Float64Array(this.count);
    const count = new Float64Array(this.count);
    this.groupNode.forEach((node, group) => {
      if (!this.selects(selection, group)) return;
      bytes[node] += groups.bytes[group];
      count[node] += groups.count[group];
    });
    return { bytes, count };
  }

  /**
   * How exact the figures of nodes are, where they are estimates from samples: variances, third cumulants, what may be unseen, and how
   * a peak differs at other moments that may have been it.
   */
  spread(selection, side) {
    const sums = (bytes, count, join = sumOf) => {
      const own = (values) => {
        const of = join === joinMissing ? new Array(this.count).fill(0) : new Float64Array(this.count);
        if (!values) return of;
        this.groupNode.forEach((node, group) => {
          if (this.selects(selection, group)) of[node] = join(of[node], values[group]);
        });
        return of;
      };
      return { ...this.withTotals({ bytes: own(bytes), count: own(count) }, join), isSpread: true, join };
    };
    const column = (name) => this.data[`${side}${name}${selection.view}`];
    const of = (what, join) => sums(column(`Bytes${what}`), column(`Count${what}`), join);
    const threads = column("MissingOf");
    const missing = column("Missing")?.map((number, group) => ({ number, threads: threads[group] }));
    const move = (at) => (selection.view === 0 ? this.data[`${side}Move${at}`] : null);
    const moves = [sums(move(0), move(4)), ...[1, 2, 3, 5].map((at) => sums(move(at), null))];
    return {
      variance: of("Variance"),
      skew: of("Skew"),
      unseen: of("Unseen", Math.max),
      missing: sums(null, missing, joinMissing),
      moves,
    };
  }

  /** A side of a difference without the blocks that are matched with another function on the other side. */
  news(selection, own, side) {
    const setOff = this.ownFigures(selection, `${side}SetOff`);
    const less = (metric) => own[metric].map((value, node) => value - setOff[metric][node]);
    return this.withTotals({ bytes: less("bytes"), count: less("count") });
  }

  /** Minimum change that is coloured. */
  floor({ view, metric }) {
    return this.data.floors[view][metric === "bytes" ? 0 : 1];
  }

  /** Whether a group belongs to the selected thread and to a shown owner. */
  selects(selection, group) {
    const { thread, hide } = selection;
    if (thread >= 0 && this.data.groupThread[group] !== thread) return false;
    return !((hide >> this.owner(selection, group)) & 1);
  }

  /** Bytes and counts of each owner in a view, of the new capture and of the base. */
  byOwner(selection) {
    const owners = OWNERS.map(() => ({ bytes: 0, count: 0, baseBytes: 0, baseCount: 0 }));
    const everyone = { ...selection, hide: 0 };
    for (const side of this.diff ? ["new", "base"] : ["new"]) {
      const { bytes, count } = this.groupFigures(selection, side);
      const keys = side === "new" ? ["bytes", "count"] : ["baseBytes", "baseCount"];
      bytes.forEach((value, group) => {
        if (!this.selects(everyone, group)) return;
        const owner = owners[this.owner(selection, group)];
        owner[keys[0]] += value;
        owner[keys[1]] += count[group];
      });
    }
    return owners;
  }

  /** Bytes of Python's arenas in a selection. */
  arenaBytes(selection) {
    const { bytes } = this.groupFigures(selection);
    const isCounted = (group) => this.groupOwnerApart[group] === OWNER.arenas && this.selects(selection, group);
    return bytes.reduce((sum, value, group) => sum + (isCounted(group) ? value : 0), 0);
  }

  /** Figures of the base at nodes where the new capture has none. */
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
    const whole = { ...selection, hide: 0 };
    const { bytes, count } = this.gone(this.ownFigures(whole, "new"), this.ownFigures(whole, "base"));
    return count.reduce((sum, value, node) => sum + (value > 0 || bytes[node] > 0 ? 1 : 0), 0);
  }

  withTotals({ bytes, count }, join = sumOf) {
    const totals = (own) => {
      const total = own.slice();
      for (let node = this.count - 1; node > 0; node--) {
        const parent = this.parent[node];
        total[parent] = join(total[parent], total[node]);
      }
      return { own, total };
    };
    return { bytes: totals(bytes), count: totals(count) };
  }

  /** Threads with allocations in a selection, largest first. */
  threads(selection) {
    const groups = this.groupFigures(selection)[selection.metric];
    const base = this.diff ? this.groupFigures(selection, "base")[selection.metric] : null;
    const sums = new Map();
    this.data.groupThread.forEach((thread, group) => {
      if (!this.selects(selection, group)) return;
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

  /** Allocations under matching frames, each byte counted once. */
  matchedTotal(figures, metric, matches) {
    const { own } = figures[metric];
    const covered = new Uint8Array(this.count);
    let sum = 0;
    for (let node = 1; node < this.count; node++) {
      covered[node] = covered[this.parent[node]] || matches[this.frame[node]];
      if (covered[node]) sum += own[node];
    }
    return sum;
  }

  /**
   * Self and total figures of each key (`keyOf[frame]`), recursion counted once. Self figures of skipped frames count for
   * the nearest caller that is not skipped.
   */
  byKey(figures, keyOf, passes) {
    const rows = new Map();
    const shown = new Int32Array(this.count);
    const open = new Map();
    const path = [];
    const { base } = figures;
    for (let node = 1; node < this.count; node++) {
      while (path.length && this.end[path[path.length - 1]] <= node) {
        const left = keyOf[this.frame[path.pop()]];
        open.set(left, open.get(left) - 1);
      }
      const frame = this.frame[node];
      const key = keyOf[frame];
      const isPassed = passes(frame);
      shown[node] = isPassed ? shown[this.parent[node]] : node;
      const outermost = !open.get(key);
      open.set(key, (open.get(key) || 0) + 1);
      path.push(node);
      if (!rows.has(key)) rows.set(key, { frame, bytes: [0, 0], count: [0, 0], baseBytes: [0, 0], baseCount: [0, 0] });
      const owner = shown[node] ? rows.get(keyOf[this.frame[shown[node]]]) : rows.get(key);
      const total = outermost && (!isPassed || owner === rows.get(key)) ? rows.get(key) : null;
      addNode(owner, total, figures, node, ["bytes", "count"]);
      if (base) addNode(owner, total, base, node, ["baseBytes", "baseCount"]);
    }
    const used = (row) => row.bytes[1] || row.count[1] || row.baseBytes[1] || row.baseCount[1];
    return [...rows.values()].filter(used);
  }
}

/** Adds a node's self figures to the row that they count for, and its totals to that of its frame, if it has one. */
function addNode(owner, totalRow, figures, node, keys) {
  ["bytes", "count"].forEach((name, at) => {
    owner[keys[at]][0] += figures[name].own[node];
    if (totalRow) totalRow[keys[at]][1] += figures[name].total[node];
  });
}
