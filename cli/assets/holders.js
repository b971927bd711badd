// Who holds it: the lines of the program's own code for which most is there, and through which library they got it. The
// calls within a line are one.

class Holders {
  constructor(layout) {
    this.model = layout.model;
    this.metric = layout.selection.metric;
    this.figures = layout.figures;
    this.assign();
  }

  /** For each node the nearest frame of own code, and the place where memory is asked for: plumbing is not told. */
  assign() {
    const { count, frame, frames, lineOf, parent } = this.model;
    this.holder = new Int32Array(count).fill(-1);
    this.place = new Int32Array(count).fill(-1);
    // The call in the holder's line.
    this.call = new Int32Array(count).fill(-1);
    for (let node = 1; node < count; node++) {
      const { isOwn, isPlumbing, isImporting } = frames[frame[node]];
      // What a line imported is not its own memory.
      this.holder[node] = isOwn && !isPlumbing ? lineOf[frame[node]] : isImporting ? -1 : this.holder[parent[node]];
      this.call[node] = isOwn && !isPlumbing ? frame[node] : this.call[parent[node]];
      // Plumbing is the place where nothing else is.
      const isPassed = isImporting || (isPlumbing && this.place[parent[node]] >= 0);
      this.place[node] = isPassed ? this.place[parent[node]] : lineOf[frame[node]];
    }
  }

  /** What a node has: of a difference, how that changed. */
  value(node) {
    const { news } = this.figures;
    if (news) return news.now[this.metric].own[node] - news.base[this.metric].own[node];
    return this.figures[this.metric].own[node];
  }

  /** The lines of own code that hold most, the largest first: frame, value, and the largest place that they got it through. */
  own(most) {
    const rows = this.sums((node) => this.holder[node]);
    rows.delete(-1);
    const largest = [...rows].sort((a, b) => Math.abs(b[1].value) - Math.abs(a[1].value)).slice(0, most);
    return largest
      .filter(([, row]) => row.value)
      .map(([line, row]) => {
        const [frame] = this.largest(this.call, row.nodes);
        return { frame, value: row.value, ...this.through(line, row.nodes) };
      });
  }

  /** The same of code that no own code called: by the place that asked. */
  others(most) {
    const rows = this.sums((node) => (this.holder[node] < 0 ? this.place[node] : -1));
    rows.delete(-1);
    const largest = [...rows].sort((a, b) => Math.abs(b[1].value) - Math.abs(a[1].value)).slice(0, most);
    return largest.filter(([, row]) => row.value).map(([frame, row]) => ({ frame, value: row.value, via: -1 }));
  }

  sums(keyOf) {
    const rows = new Map();
    for (let node = 1; node < this.model.count; node++) {
      const value = this.value(node);
      if (!value) continue;
      const key = keyOf(node);
      if (!rows.has(key)) rows.set(key, { value: 0, nodes: [] });
      rows.get(key).value += value;
      rows.get(key).nodes.push(node);
    }
    return rows;
  }

  /** The frame, of those that nodes have, for which most of these nodes' memory is there, and how much. */
  largest(frameOf, nodes) {
    const sums = new Map();
    for (const node of nodes) sums.set(frameOf[node], (sums.get(frameOf[node]) || 0) + this.value(node));
    return [...sums].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))[0];
  }

  /** The place through which most of these nodes' memory came, and its part; none where it is the holder itself. */
  through(holder, nodes) {
    const [place, value] = this.largest(this.place, nodes);
    return place === holder || place < 0 ? { via: -1, viaValue: 0 } : { via: place, viaValue: value };
  }
}
