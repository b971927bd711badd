// A frame in all its contexts: its callers and callees. Frames that the graph omits are skipped.

class Sandwich {
  constructor(layout, frame) {
    Object.assign(this, { layout, model: layout.model, frame });
    this.total = layout.figures[layout.selection.metric].total;
    this.nodes = this.outermost();
  }

  /** The outermost nodes of the frame. */
  outermost() {
    const { model } = this;
    const nodes = [];
    for (let node = 1; node < model.count;) {
      if (model.frame[node] === this.frame) {
        nodes.push(node);
        node = model.end[node];
      } else {
        node++;
      }
    }
    return nodes;
  }

  passes(node) {
    const frame = this.model.frame[node];
    return this.layout.skips(frame) || (this.layout.folds && this.model.frames[frame].isImporting);
  }

  /** Callers, and how much of the frame's total came through each, largest first. */
  callers() {
    const { parent, frame } = this.model;
    const sums = new Map();
    for (const node of this.nodes) {
      let caller = parent[node];
      while (caller > 0 && this.passes(caller)) caller = parent[caller];
      if (caller > 0) this.add(sums, frame[caller], this.total[node]);
    }
    return this.sorted(sums);
  }

  /** Callees, and how much of the frame's total each has, largest first. */
  callees() {
    const { end, frame } = this.model;
    const sums = new Map();
    const todo = [...this.nodes];
    while (todo.length) {
      const node = todo.pop();
      for (let child = node + 1; child < end[node]; child = end[child]) {
        if (!this.total[child]) continue;
        if (frame[child] === this.frame || this.passes(child)) todo.push(child);
        else this.add(sums, frame[child], this.total[child]);
      }
    }
    return this.sorted(sums);
  }

  add(sums, frame, value) {
    sums.set(frame, (sums.get(frame) || 0) + value);
  }

  sorted(sums) {
    return [...sums].filter(([, value]) => value).sort((a, b) => b[1] - a[1]);
  }
}
