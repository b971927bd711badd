// Memory over time: heap and resident memory as steps, the latter divided into classes, with a range to select by dragging.

/** The next larger round time step, in microseconds. */
function timeStep(least) {
  const steps = [];
  for (let unit = 1; unit < 1e7; unit *= 10) steps.push(unit, 2 * unit, 5 * unit);
  steps.push(10e6, 15e6, 30e6, 6e7, 12e7, 3e8, 6e8, 18e8, 36e8);
  return steps.find((step) => step >= least) || Math.ceil(least / 36e8) * 36e8;
}

/** Label of an axis tick, with as many digits as the step needs. */
function tickText(us, step) {
  if (us >= 6e7) return formatTime(us);
  return `${(us / 1e6).toFixed(Math.max(0, Math.ceil(-Math.log10(step / 1e6))))} s`;
}

/** A step function: bytes from each time until the next. */
class Steps {
  constructor(time, bytes) {
    this.time = time;
    this.bytes = bytes;
    this.most = bytes.reduce((most, value) => Math.max(most, value), 0);
  }

  /** The last step that begins at or before a time; -1 before the first. */
  at(us) {
    return lowerBound(this.time, Math.floor(us) + 1) - 1;
  }

  /** The highest step in a range of time, including the one in effect at its start; -1 for none. */
  highest(from, to) {
    const last = this.at(to);
    let high = Math.min(Math.max(lowerBound(this.time, Math.ceil(from)) - 1, 0), last);
    for (let at = high; at <= last; at++) if (this.bytes[at] > this.bytes[high]) high = at;
    return high;
  }
}

/** How far resident memory may be from the sum of an account's classes that are still shown: a part of it, and bytes. */
const NEAR = 0.1;
const NEAR_BYTES = 4e6;

/** Resident memory, divided into classes at some moments, and stacked. `rss` and `end`: its steps, and the end of time. */
class Bands {
  constructor({ data }, rss, end) {
    this.time = undelta(data.bandTime);
    this.classes = data.bands.map(([name, meaning], at) => ({ name, meaning, bytes: data[`band${at}`] }));
    let below = this.time.map(() => 0);
    for (const band of this.classes) {
      [band.low, band.high] = [below, below.map((bytes, at) => bytes + band.bytes[at])];
      below = band.high;
    }
    this.most = below.reduce((most, value) => Math.max(most, value), 0);
    this.until = this.time.map((from, at) =>
      this.departure(rss, from, this.time[at + 1] ?? Math.max(from, end), below[at]),
    );
  }

  /** When resident memory is no longer near what an account has, at most until the next one. */
  departure(rss, from, next, bytes) {
    for (let at = Math.max(0, lowerBound(rss.time, from)); at < rss.time.length && rss.time[at] < next; at++) {
      if (Math.abs(rss.bytes[at] - bytes) > bytes * NEAR + NEAR_BYTES) return rss.time[at];
    }
    return next;
  }

  /** The last moment at or before a time; -1 before the first. */
  at(us) {
    return lowerBound(this.time, Math.floor(us) + 1) - 1;
  }
}

/** Vertical positions of the peak's label and of the top of the chart. */
const LABEL = 10;
const TOP = 18;

class Chart {
  /** `select(range)` is called with indices of moments, or null. */
  constructor(canvas, model, select) {
    const { data, time } = model;
    Object.assign(this, { canvas, model, select, time });
    this.heap = new Steps(model.heapTime, data.heapBytes);
    this.rss = new Steps(undelta(data.rssTime), data.rssBytes);
    this.first = Math.min(time[0], ...this.heap.time.slice(0, 1));
    this.last = Math.max(time[time.length - 1], ...this.heap.time.slice(-1));
    this.bands = new Bands(model, this.rss, this.last);
    this.canSelect = !!model.liveGroup && time.length > 1;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    if (!this.canSelect) canvas.style.cursor = "default";
  }

  x(us) {
    return this.left + ((us - this.first) / (this.last - this.first || 1)) * (this.width - this.left - 6);
  }

  timeAt(x) {
    const us = this.first + ((x - this.left) / (this.width - this.left - 6)) * (this.last - this.first);
    return Math.min(Math.max(us, this.first), this.last);
  }

  pointerX(event) {
    return event.clientX - this.canvas.getBoundingClientRect().left;
  }

  /** The range of moments between two positions of the chart, with the peak if it lies there. */
  momentsOf(fromX, toX) {
    const [from, to] = [Math.min(fromX, toX), Math.max(fromX, toX)].map((x) => this.timeAt(x));
    const { peak } = this.model.data;
    const first = this.momentAt(from);
    let last = Math.max(first, this.momentAt(to));
    const hasPeak = peak && from <= peak.time && peak.time <= to;
    if (hasPeak && this.time[last] <= peak.time) last = Math.min(last + 1, this.time.length - 1);
    return [first, last];
  }

  /**
   * The moment that shows what is live at a time: the last until then. But in captures that put events down to the time
   * before a pause it may show what was there before them, and the next one shows them.
   */
  momentAt(us) {
    const { heap } = this.model.data;
    const last = Math.max(0, lowerBound(this.time, Math.floor(us) + 1) - 1);
    const live = this.heap.bytes[this.heap.at(us)] ?? 0;
    return heap[last] !== live && heap[last + 1] === live ? last + 1 : last;
  }

  down(event) {
    if (!this.canSelect) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.dragFrom = this.pointerX(event);
  }

  isDragged() {
    return this.dragFrom !== undefined && Math.abs(this.pointer - this.dragFrom) > 3;
  }

  move(event) {
    this.pointer = this.pointerX(event);
    if (this.isDragged()) this.drag = this.momentsOf(this.dragFrom, this.pointer);
    this.draw();
  }

  up(event) {
    if (this.dragFrom === undefined) return;
    this.pointer = this.pointerX(event);
    const range = this.isDragged() ? this.momentsOf(this.dragFrom, this.pointer) : null;
    this.dragFrom = this.drag = undefined;
    this.select(range);
  }

  leave() {
    this.pointer = null;
    this.draw();
  }

  show(range) {
    this.range = range;
    this.draw();
  }

  draw() {
    this.cancel?.();
    this.cancel = paintSoon(() => this.paint());
  }

  paint() {
    const { canvas, heap, rss } = this;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    this.ratio = window.devicePixelRatio || 1;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    this.left = 62;
    canvas.width = this.width * this.ratio;
    canvas.height = this.height * this.ratio;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.font = "11px system-ui, sans-serif";
    const most = Math.max(1, heap.most, rss.most, this.bands.most) * 1.02;
    const floor = this.height - 17;
    const y = (bytes) => floor - (bytes / most) * (floor - TOP);
    this.axes(context, color, y, most, floor);
    this.paintBands(context, color, y);
    this.shade(context, color, y, floor);
    this.line(context, color("rss"), rss, y);
    this.line(context, color("heap"), heap, y, floor);
    this.mark(context, color, y);
    const under = this.pointer == null ? null : this.under();
    if (under) this.cross(context, color, y, floor, under);
    this.readout(under);
  }

  axes(context, color, y, most, floor) {
    context.strokeStyle = color("line");
    context.fillStyle = color("dim");
    context.lineWidth = 1;
    context.textAlign = "right";
    const rough = most / 4.5;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((n) => n * unit >= rough) * unit;
    for (let bytes = 0; bytes < most; bytes += step) {
      context.beginPath();
      context.moveTo(this.left, Math.round(y(bytes)) + 0.5);
      context.lineTo(this.width - 6, Math.round(y(bytes)) + 0.5);
      context.stroke();
      context.fillText(formatSize(bytes), this.left - 6, y(bytes) + 3.5);
    }
    const { first, last } = this;
    const tick = timeStep((last - first) / (this.width / 110));
    for (let us = Math.ceil(first / tick) * tick; us <= last; us += tick) {
      const x = this.x(us);
      context.fillRect(Math.round(x), floor, 1, 3);
      context.textAlign = x - this.left < 16 ? "left" : this.width - x < 24 ? "right" : "center";
      context.fillText(tickText(us, tick), x, floor + 13);
    }
  }

  /** The selected range, and the time in it that the figures refer to. */
  shade(context, color, y, floor) {
    const range = this.drag || this.range;
    if (!range) return;
    const [from, to] = this.model.span(range).map((us) => this.x(us));
    context.fillStyle = color("select");
    context.fillRect(from, 0, Math.max(to - from, 1.5), floor);
    context.fillStyle = color("accent");
    context.fillRect(from, 0, 1, floor);
    context.fillRect(to, 0, 1, floor);
    const high = this.model.highest(range);
    context.beginPath();
    context.arc(this.x(high.time), y(high.bytes), 5, 0, 2 * Math.PI);
    context.fill();
  }

  /** The classes: what an account says stands until the next one, or until resident memory is another. */
  paintBands(context, color, y) {
    const { time, until, classes } = this.bands;
    const pixel = (us) => Math.round(this.x(us) * this.ratio) / this.ratio;
    context.globalAlpha = 0.45;
    for (const { name, low, high } of classes) {
      context.fillStyle = color(`band-${name}`);
      time.forEach((from, at) => {
        const left = pixel(from);
        context.fillRect(left, y(high[at]), pixel(until[at]) - left, y(low[at]) - y(high[at]));
      });
    }
    context.globalAlpha = 1;
  }

  line(context, color, steps, y, floor) {
    if (!steps.time.length) return;
    context.strokeStyle = context.fillStyle = color;
    context.lineWidth = 1.5;
    context.beginPath();
    this.trace(context, steps, y, floor);
    context.stroke();
    if (floor === undefined) return;
    context.lineTo(this.x(this.last), floor);
    context.lineTo(this.x(steps.time[0]), floor);
    context.globalAlpha = 0.12;
    context.fill();
    context.globalAlpha = 1;
  }

  /** The path along steps, horizontally and then vertically, with no more lines than the screen has columns. */
  trace(context, steps, y, floor) {
    const column = (at) => Math.round(this.x(steps.time[at]) * this.ratio) / this.ratio;
    let x = column(0);
    context.moveTo(x, floor ?? y(steps.bytes[0]));
    for (let at = 0; at < steps.time.length;) {
      let low = steps.bytes[at];
      let high = low;
      let last = low;
      for (at++; at < steps.time.length && column(at) === x; at++) {
        last = steps.bytes[at];
        low = Math.min(low, last);
        high = Math.max(high, last);
      }
      for (const bytes of [high, low, last]) context.lineTo(x, y(bytes));
      x = at < steps.time.length ? column(at) : this.x(this.last);
      context.lineTo(x, y(last));
    }
  }

  /** The high-water mark. With filters, the (unfiltered) heap line can exceed it. */
  mark(context, color, y) {
    const { peak, heapOfEverything } = this.model.data;
    if (!peak || heapOfEverything) return;
    const x = this.x(peak.time);
    const top = y(peak.bytes);
    const text = `peak ${formatSize(peak.bytes)}`;
    context.fillStyle = color("heap");
    context.beginPath();
    context.arc(x, top, 3, 0, 2 * Math.PI);
    context.fill();
    // Above all lines: none reaches this height.
    const half = context.measureText(text).width / 2 + 2;
    const at = Math.min(Math.max(x, this.left + half), this.width - half);
    context.textAlign = "center";
    context.fillStyle = color("text");
    context.fillText(text, at, LABEL);
    context.fillStyle = color("dim");
    if (top - 5 > LABEL + 4) context.fillRect(Math.round(x), LABEL + 4, 1, top - 5 - (LABEL + 4));
  }

  /** The time under the pointer, and the highest steps in that column of the screen. */
  under() {
    const span = [this.timeAt(this.pointer - 0.5), this.timeAt(this.pointer + 0.5)];
    const time = this.timeAt(this.pointer);
    return { time, heap: this.heap.highest(...span), rss: this.rss.highest(...span), band: this.bands.at(time) };
  }

  cross(context, color, y, floor, under) {
    const x = this.x(under.time);
    context.fillStyle = color("dim");
    context.fillRect(x, TOP, 1, floor - TOP);
    for (const name of ["heap", "rss"]) {
      if (under[name] < 0) continue;
      context.fillStyle = color(name);
      context.fillRect(x - 2.5, y(this[name].bytes[under[name]]) - 2.5, 6, 6);
    }
  }

  /** Legend of the lines with their values at the pointer, below the chart. */
  readout(under) {
    const { timePrecision: precision, heapOfEverything } = this.model.data;
    const value = (name) => (under ? ` ${formatSize(this[name].bytes[under[name]] ?? 0)}` : "");
    const since = under && under.heap >= 0 ? ` since ${exactTime(this.heap.time[under.heap], precision)}` : "";
    const entries = [["heap", `Heap${heapOfEverything ? " of everything" : ""}${value("heap")}${since}`]];
    if (this.rss.time.length) entries.push(["rss", `Resident memory${value("rss")}`]);
    const spans = entries.map(([name, text]) => legendEntry(name, text));
    const column = (this.last - this.first) / (this.width - this.left);
    const time = under ? `at ${exactTime(under.time, Math.max(precision, column))}` : "";
    $("readout").replaceChildren(...spans, element("span", "", time));
    $("bands").replaceChildren(...this.bandEntries(under));
  }

  /** The classes of resident memory, with their values at the last moment before the pointer. */
  bandEntries(under) {
    const { time, classes } = this.bands;
    if (!time.length) return [];
    const isKnown = under && under.band >= 0;
    const entries = classes.map(({ name, meaning, bytes }) => {
      const value = isKnown ? ` ${formatSize(bytes[under.band])}` : "";
      const entry = legendEntry(`band-${name}`, `${name.replace("_", " ")}${value}`);
      entry.title = `Of resident memory: ${meaning}`;
      return entry;
    });
    const at = isKnown ? exactTime(time[under.band], this.model.data.timePrecision) : "";
    return [...entries, element("span", "", at && `pages at ${at}`)];
  }
}

/** A text with the colour that it explains. */
function legendEntry(name, text) {
  const entry = element("span", "", text);
  const swatch = element("i");
  swatch.style.background = `var(--${name})`;
  entry.prepend(swatch);
  return entry;
}
