// Memory over time: heap and resident memory, with a range to select by dragging.

/** The next step of time, in microseconds, that reads well. */
function timeStep(least) {
  const steps = [];
  for (let unit = 1; unit < 1e7; unit *= 10) steps.push(unit, 2 * unit, 5 * unit);
  steps.push(15e6, 30e6, 6e7, 12e7, 3e8, 6e8, 18e8, 36e8);
  return steps.find((step) => step >= least) || Math.ceil(least / 36e8) * 36e8;
}

/** A time at a tick, with no more digits than the steps have. */
function tickText(us, step) {
  if (us >= 6e7) return formatTime(us);
  return `${(us / 1e6).toFixed(Math.max(0, Math.ceil(-Math.log10(step / 1e6))))} s`;
}

class Chart {
  /** `select(range)` is called with indices of moments, or null. */
  constructor(canvas, model, select) {
    Object.assign(this, { canvas, model, select });
    this.time = model.time;
    this.canSelect = !!model.liveGroup && this.time.length > 1;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.draw();
    });
    if (!this.canSelect) canvas.style.cursor = "default";
  }

  x(us) {
    const first = this.time[0],
      span = this.time[this.time.length - 1] - first || 1;
    return this.left + ((us - first) / span) * (this.width - this.left - 6);
  }

  moment(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    let best = 0;
    this.time.forEach((us, at) => {
      if (Math.abs(this.x(us) - x) < Math.abs(this.x(this.time[best]) - x)) best = at;
    });
    return best;
  }

  down(event) {
    if (!this.canSelect) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.dragFrom = this.moment(event);
    this.dragX = event.clientX;
  }

  move(event) {
    this.pointer = this.moment(event);
    if (this.dragFrom !== undefined && Math.abs(event.clientX - this.dragX) > 3) this.drag = this.ordered(this.pointer);
    this.draw();
  }

  up(event) {
    if (this.dragFrom === undefined) return;
    const range = Math.abs(event.clientX - this.dragX) > 3 ? this.ordered(this.moment(event)) : null;
    this.dragFrom = this.drag = undefined;
    this.select(range);
  }

  ordered(moment) {
    return [Math.min(this.dragFrom, moment), Math.max(this.dragFrom, moment)];
  }

  show(range) {
    this.range = range;
    this.draw();
  }

  draw() {
    cancelAnimationFrame(this.pending);
    this.pending = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const { canvas } = this,
      ratio = window.devicePixelRatio || 1,
      context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement),
      color = (name) => style.getPropertyValue(`--${name}`).trim();
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    this.left = 62;
    canvas.width = this.width * ratio;
    canvas.height = this.height * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px system-ui, sans-serif";
    const { heap, rss } = this.model.data,
      most = Math.max(1, ...heap, ...rss, this.model.data.peak?.bytes || 0) * 1.2,
      floor = this.height - 17;
    const y = (bytes) => floor - (bytes / most) * (floor - 14);
    this.axes(context, color, y, most, floor);
    this.shade(context, color, floor);
    this.line(context, color("rss"), rss, y);
    this.line(context, color("heap"), heap, y, floor);
    this.peak(context, color, y);
    if (this.pointer != null) this.cross(context, color, y, floor);
    this.readout();
  }

  axes(context, color, y, most, floor) {
    context.strokeStyle = color("line");
    context.fillStyle = color("dim");
    context.lineWidth = 1;
    context.textAlign = "right";
    const rough = most / 4.5,
      unit = 10 ** Math.floor(Math.log10(rough)),
      step = [1, 2, 2.5, 5, 10].find((n) => n * unit >= rough) * unit;
    for (let bytes = 0; bytes < most; bytes += step) {
      context.beginPath();
      context.moveTo(this.left, Math.round(y(bytes)) + 0.5);
      context.lineTo(this.width - 6, Math.round(y(bytes)) + 0.5);
      context.stroke();
      context.fillText(formatSize(bytes), this.left - 6, y(bytes) + 3.5);
    }
    const first = this.time[0],
      last = this.time[this.time.length - 1],
      tick = timeStep((last - first) / (this.width / 110));
    for (let us = Math.ceil(first / tick) * tick; us <= last; us += tick) {
      const x = this.x(us);
      context.fillRect(Math.round(x), floor, 1, 3);
      context.textAlign = x - this.left < 16 ? "left" : this.width - x < 24 ? "right" : "center";
      context.fillText(tickText(us, tick), x, floor + 13);
    }
  }

  shade(context, color, floor) {
    const range = this.drag || this.range;
    if (!range) return;
    const from = this.x(this.time[range[0]]),
      to = this.x(this.time[range[1]]);
    context.fillStyle = color("select");
    context.fillRect(from, 0, Math.max(to - from, 1.5), floor);
    context.fillStyle = color("accent");
    context.fillRect(from, 0, 1, floor);
    context.fillRect(to, 0, 1, floor);
  }

  line(context, color, values, y, floor) {
    context.strokeStyle = context.fillStyle = color;
    context.lineWidth = 1.5;
    context.beginPath();
    values.forEach((value, at) => context.lineTo(this.x(this.time[at]), y(value)));
    if (values.length === 1) context.rect(this.x(this.time[0]) - 2, y(values[0]) - 2, 4, 4);
    context.stroke();
    if (floor === undefined || values.length < 2) return;
    context.lineTo(this.x(this.time[values.length - 1]), floor);
    context.lineTo(this.x(this.time[0]), floor);
    context.globalAlpha = 0.12;
    context.fill();
    context.globalAlpha = 1;
  }

  /** The high-water mark, which may lie between two snapshots. */
  peak(context, color, y) {
    const { peak } = this.model.data;
    if (!peak) return;
    const x = this.x(peak.time),
      top = y(peak.bytes),
      text = `peak ${formatSize(peak.bytes)}`;
    context.fillStyle = color("heap");
    context.beginPath();
    context.arc(x, top, 3, 0, 2 * Math.PI);
    context.fill();
    // Above the point, with a rim, since the lines pass there.
    const half = context.measureText(text).width / 2 + 2,
      at = Math.min(Math.max(x, this.left + half), this.width - half);
    context.textAlign = "center";
    context.lineWidth = 3;
    context.strokeStyle = color("bg");
    context.strokeText(text, at, top - 7);
    context.fillStyle = color("text");
    context.fillText(text, at, top - 7);
  }

  cross(context, color, y, floor) {
    const at = this.pointer,
      { heap, rss } = this.model.data,
      x = this.x(this.time[at]);
    context.fillStyle = color("dim");
    context.fillRect(x, 14, 1, floor - 14);
    for (const [name, value] of [
      ["heap", heap[at]],
      ["rss", rss[at]],
    ]) {
      context.fillStyle = color(name);
      context.fillRect(x - 2.5, y(value) - 2.5, 6, 6);
    }
  }

  /** What the lines are, and their values at the pointer: below the chart, where it covers nothing. */
  readout() {
    const at = this.pointer,
      { heap, rss } = this.model.data;
    const value = (values) => (at == null ? "" : ` ${formatSize(values[at])}`);
    const entries = [
      ["heap", `Heap${value(heap)}`],
      ["rss", `Resident memory${value(rss)}`],
    ];
    const spans = entries.map(([name, text]) => {
      const entry = element("span", "", text),
        swatch = element("i");
      swatch.style.background = `var(--${name})`;
      entry.prepend(swatch);
      return entry;
    });
    $("readout").replaceChildren(...spans, element("span", "", at == null ? "" : `at ${formatTime(this.time[at])}`));
  }
}
