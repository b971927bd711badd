// Own-code lines with the most memory, and the library functions that they called. All calls of a line are one row.

class OwnLines {
  constructor(layout) {
    this.model = layout.model;
    this.metric = layout.selection.metric;
    this.figures = layout.figures;
    this.assign();
  }

  /** For each node the nearest own-code frame, and the allocating frame outside of allocator wrappers. */
  assign() {
    const { count, frame, frames, lineOf, parent } = this.model;
    this.ownLine = new Int32Array(count).fill(-1);
    this.place = new Int32Array(count).fill(-1);
    // The call in the own-code line.
    this.call = new Int32Array(count).fill(-1);
    for (let node = 1; node < count; node++) {
      const { isOwn, isPlumbing, isImporting } = frames[frame[node]];
      // Memory of an import is not attributed to the importing line.
      this.ownLine[node] = isOwn && !isPlumbing ? lineOf[frame[node]] : isImporting ? -1 : this.ownLine[parent[node]];
      this.call[node] = isOwn && !isPlumbing ? frame[node] : this.call[parent[node]];
      // An allocator wrapper counts if there is no other frame.
      const isPassed = isImporting || (isPlumbing && this.place[parent[node]] >= 0);
      this.place[node] = isPassed ? this.place[parent[node]] : lineOf[frame[node]];
    }
  }

  /** The figure of a node; in a difference, its change. */
  value(node) {
    const { base } = this.figures;
    return this.figures[this.metric].own[node] - (base ? base[this.metric].own[node] : 0);
  }

  /** The same without blocks that cancel out: it decides which lines of a difference have a row, whose figure has all. */
  news(node) {
    const { news } = this.figures;
    return news ? news.now[this.metric].own[node] - news.base[this.metric].own[node] : this.value(node);
  }

  /** Own-code lines, largest first: frame, value, and the called function with the most. In a difference only news of `least`. */
  own(most, least) {
    const rows = this.sums((node) => this.ownLine[node]);
    rows.delete(-1);
    this.hasOwn = [...rows.values()].some((row) => row.value);
    return this.largestRows(rows, most, least).map(([line, row]) => {
      const [frame] = this.largest(this.call, row);
      return { frame, value: row.value, within: this.within(row), ...this.through(line, row) };
    });
  }

  /** The same for stacks without own code: by allocating frame. */
  others(most, least) {
    const rows = this.sums((node) => (this.ownLine[node] < 0 ? this.place[node] : -1));
    rows.delete(-1);
    const shown = ([frame, row]) => ({ frame, value: row.value, within: this.within(row), via: -1 });
    return this.largestRows(rows, most, least).map(shown);
  }

  largestRows(rows, most, least) {
    return [...rows]
      .filter(([, row]) => row.value && Math.abs(row.news) >= least)
      .sort((a, b) => Math.abs(b[1].value) - Math.abs(a[1].value))
      .slice(0, most);
  }

  sums(keyOf) {
    const rows = new Map();
    for (let node = 1; node < this.model.count; node++) {
      const value = this.value(node);
      if (!value) continue;
      const key = keyOf(node);
      if (!rows.has(key)) rows.set(key, { value: 0, news: 0, nodes: [] });
      rows.get(key).value += value;
      rows.get(key).news += this.news(node);
      rows.get(key).nodes.push(node);
    }
    return rows;
  }

  /** Half the 95 % interval of a row's figure, the larger one; 0 where figures are exact, and in a difference. */
  within(row) {
    const { spread, base } = this.figures;
    if (!spread || base) return 0;
    const of = (what) => {
      const sum = (metric) => {
        const { own } = what[metric];
        return row.nodes.reduce((all, node) => (what.join ?? sumOf)(all, own[node]), 0);
      };
      return { bytes: sum("bytes"), count: sum("count") };
    };
    const { down, up } = reachOfParts(this.metric, of, this.figures);
    return Math.max(down, up);
  }

  /** Of the frames of a row's nodes, the one with the most memory, and how much: in a difference, with the most of the row's change. */
  largest(frameOf, row) {
    const sums = new Map();
    for (const node of row.nodes) sums.set(frameOf[node], (sums.get(frameOf[node]) || 0) + this.value(node));
    const sign = Math.sign(row.value);
    return [...sums].sort((a, b) => sign * (b[1] - a[1]))[0];
  }

  /** The called function with most of a row's memory, and how much; none if it is the line itself. */
  through(ownLine, row) {
    const [place, value] = this.largest(this.place, row);
    return place === ownLine || place < 0 ? { via: -1, viaValue: 0 } : { via: place, viaValue: value };
  }
}
