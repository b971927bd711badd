// The table: self and total figures of each function or each line under the selection, sorted by any column, and as CSV.

const MOST_ROWS = 500;

class Table {
  /** `choose(frame)` is called with the frame of a row that was clicked. */
  constructor(pane, model, palette, choose) {
    Object.assign(this, { pane, model, palette, choose });
    this.sort = { key: "owner", down: true };
    this.by = "function";
  }

  base(metric) {
    return metric === "bytes" ? "baseBytes" : "baseCount";
  }

  columns(isBrief) {
    if (this.model.diff) {
      const columns = [
        { key: "change", title: "Self change", value: (row, m) => row[m][0] - row[this.base(m)][0], signed: true },
        { key: "own", title: "Self", value: (row, m) => row[m][0], wide: true },
        { key: "baseOwn", title: "Self in base", value: (row, m) => row[this.base(m)][0], wide: true },
        {
          key: "totalChange",
          title: "Total change",
          value: (row, m) => row[m][1] - row[this.base(m)][1],
          signed: true,
        },
        { key: "total", title: "Total", value: (row, m) => row[m][1], wide: true },
      ];
      return columns.filter((column) => !isBrief || !column.wide);
    }
    const columns = [
      { key: "total", title: "Total", value: (row, m) => row[m][1] },
      { key: "totalPart", title: "Part", value: (row, m) => row[m][1], part: true, wide: true },
      { key: "own", title: "Self", value: (row, m) => row[m][0] },
      { key: "ownPart", title: "Part", value: (row, m) => row[m][0], part: true, wide: true },
      { key: "count", title: "Self count", value: (row) => row.count[0], plain: true, wide: true },
    ];
    return columns.filter((column) => !isBrief || !column.wide);
  }

  /** Shows the figures by "function" or by "line"; with fewer columns beside the graph. */
  show(layout, by, matches, isBrief) {
    const { metric } = layout.selection;
    Object.assign(this, { metric, by, isBrief, whole: layout.whole });
    const { model } = this;
    const passes = (frame) => layout.skips(frame) || (layout.folds && model.frames[frame].isImporting);
    const rows = model.byKey(layout.figures, by === "function" ? model.functionOf : model.lineOf, passes);
    this.rows = rows.filter(({ frame }) => !matches || matches[frame]);
    this.render();
  }

  /** Own code before libraries, and these before the standard library. */
  rank(row) {
    const { origin, isPlumbing } = this.model.frames[row.frame];
    return isPlumbing ? ORIGIN.runtime : origin;
  }

  sorted() {
    const { key, down } = this.sort;
    const column = this.columns(false).find((one) => one.key === key);
    const { frames, diff } = this.model;
    const change = (row) => Math.abs(row[this.metric][0] - row[this.base(this.metric)][0]);
    const total = (row) => Math.max(row[this.metric][1], row[this.base(this.metric)][1]);
    const weight = diff ? change : total;
    const byOwner = (a, b) =>
      this.rank(a) - this.rank(b) || weight(b) - weight(a) || b[this.metric][0] - a[this.metric][0];
    const byName = (a, b) => frames[b.frame].name.localeCompare(frames[a.frame].name);
    const byColumn = (a, b) => column.value(b, this.metric) - column.value(a, this.metric) || total(b) - total(a);
    const compare = key === "name" ? byName : column ? byColumn : byOwner;
    return this.rows.sort((a, b) => (down ? compare(a, b) : compare(b, a)));
  }

  text(column, row) {
    const value = column.value(row, this.metric);
    if (column.part) return formatPercent(value, this.whole);
    const text = formatAmount(value, column.plain ? "count" : this.metric);
    return column.signed && value > 0 ? `+${text}` : text;
  }

  render() {
    const header = document.createElement("tr");
    const columns = this.columns(this.isBrief);
    const title = this.by === "function" ? "Function" : "Line";
    header.append(...columns.map(({ key, title }) => this.heading(key, title)));
    header.append(this.heading("owner", this.isBrief ? "" : "Whose"), this.heading("name", title));
    this.pane.querySelector("thead").replaceChildren(header);
    const rows = this.sorted().slice(0, this.isBrief ? 100 : MOST_ROWS);
    this.pane.querySelector("tbody").replaceChildren(...rows.map((row) => this.line(row, columns)));
    const more = this.rows.length - rows.length;
    const note = more > 0 ? `and ${formatCount(more)} more; the CSV export has all` : "";
    this.pane.querySelector(".more").textContent = this.rows.length ? note : "Nothing here.";
  }

  heading(key, title) {
    const cell = document.createElement("th");
    cell.textContent = title + (this.sort.key === key ? (this.sort.down ? " ▾" : " ▴") : "");
    cell.className = key;
    cell.onclick = () => {
      this.sort = { key, down: this.sort.key === key ? !this.sort.down : true };
      this.render();
    };
    if (key === "owner") cell.title = "Own code first";
    return cell;
  }

  line(row, columns) {
    const line = document.createElement("tr");
    const frame = this.model.frames[row.frame];
    for (const column of columns) line.insertCell().textContent = this.text(column, row);
    line.append(this.ownerCell(frame));
    const cell = line.insertCell();
    const place = document.createElement("span");
    cell.className = "name";
    const file = this.by === "function" ? frame.shortPlace.replace(/(:\d+)+$/, "") : frame.shortLine;
    place.textContent = file;
    const name = this.isBrief ? frame.brief : frame.name;
    cell.append(...(this.by === "function" ? [name, "  ", place] : [place, "  ", name]));
    cell.title = `${frame.name}\n${frame.place}\nClick to show it in the graph`;
    line.onclick = () => this.choose(row.frame);
    return line;
  }

  ownerCell(frame) {
    const cell = document.createElement("td");
    const swatch = document.createElement("i");
    cell.className = "owner";
    swatch.style.background = this.palette.frame(frame, 0);
    cell.append(swatch, this.isBrief ? "" : ORIGINS[frame.origin]);
    cell.title = ORIGINS[frame.origin];
    return cell;
  }

  /** All rows as CSV (RFC 4180), with plain numbers. */
  csv() {
    const quote = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const metrics = ["bytes", "count"].flatMap((name) => [
      [name, 0, `own_${name}`],
      [name, 1, `total_${name}`],
    ]);
    const base = this.model.diff ? metrics.map(([name, at, title]) => [this.base(name), at, `base_${title}`]) : [];
    const columns = [...metrics, ...base];
    const lines = this.sorted().map((row) => {
      const { name, file, line } = this.model.frames[row.frame];
      const place = [quote(name), quote(file), this.by === "line" ? line || "" : ""];
      return [...place, ...columns.map(([key, at]) => row[key][at])].join(",");
    });
    return [["function", "file", "line", ...columns.map((column) => column[2])].join(","), ...lines, ""].join("\r\n");
  }
}
