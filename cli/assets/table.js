// The table: own and total figures of each frame under the selection, sorted by any column, and as CSV.

const MOST_ROWS = 500;

class Table {
  /** `search(text)` is called with the name of a row that was clicked. */
  constructor(pane, model, search) {
    Object.assign(this, { pane, model, search });
    this.sort = { key: model.diff ? "change" : "own", down: true };
    this.columns = model.diff ? [
      { key: "change", title: "Own change", value: (row, m) => row[m][0] - row[this.base(m)][0], signed: true },
      { key: "own", title: "Own", value: (row, m) => row[m][0] },
      { key: "baseOwn", title: "Own in base", value: (row, m) => row[this.base(m)][0] },
      { key: "totalChange", title: "Total change", value: (row, m) => row[m][1] - row[this.base(m)][1], signed: true },
      { key: "total", title: "Total", value: (row, m) => row[m][1] },
    ] : [
      { key: "own", title: "Own", value: (row, m) => row[m][0] },
      { key: "ownPart", title: "Part", value: (row, m) => row[m][0], part: true },
      { key: "total", title: "Total", value: (row, m) => row[m][1] },
      { key: "totalPart", title: "Part", value: (row, m) => row[m][1], part: true },
      { key: "count", title: "Own count", value: (row) => row.count[0], plain: true },
    ];
  }

  base(metric) {
    return metric === "bytes" ? "baseBytes" : "baseCount";
  }

  show(figures, metric, matches) {
    Object.assign(this, { metric, whole: figures[metric].total[0] });
    this.rows = this.model.byFrame(figures).filter((row) => !matches || matches[row.frame]);
    this.render();
  }

  sorted() {
    const { key, down } = this.sort, column = this.columns.find((one) => one.key === key);
    const name = (row) => this.model.frames[row.frame].name;
    const total = (row) => Math.max(row[this.metric][1], row[this.base(this.metric)][1]);
    const compare = column ? (a, b) => column.value(b, this.metric) - column.value(a, this.metric) || total(b) - total(a)
      : (a, b) => name(b).localeCompare(name(a));
    return this.rows.sort((a, b) => (down ? compare(a, b) : compare(b, a)));
  }

  text(column, row) {
    const value = column.value(row, this.metric);
    if (column.part) return formatPercent(value, this.whole);
    const text = column.plain || this.metric === "count" ? formatCount(value) : formatSize(value);
    return column.signed && value > 0 ? `+${text}` : text;
  }

  render() {
    const [head, body] = [this.pane.querySelector("thead"), this.pane.querySelector("tbody")];
    const arrow = (key) => (this.sort.key === key ? (this.sort.down ? " ▾" : " ▴") : "");
    const header = document.createElement("tr");
    for (const { key, title } of [...this.columns, { key: "name", title: "Function" }]) {
      const cell = document.createElement("th");
      cell.textContent = title + arrow(key);
      cell.className = key === "name" ? "name" : "";
      cell.onclick = () => { this.sort = { key, down: this.sort.key === key ? !this.sort.down : true }; this.render(); };
      header.append(cell);
    }
    head.replaceChildren(header);
    body.replaceChildren(...this.sorted().slice(0, MOST_ROWS).map((row) => this.line(row)));
    const more = this.rows.length - MOST_ROWS;
    this.pane.querySelector("#more").textContent = more > 0 ? `and ${formatCount(more)} more; the CSV export has all`
      : this.rows.length ? "" : "Nothing here.";
  }

  line(row) {
    const line = document.createElement("tr"), { name, place, shortPlace } = this.model.frames[row.frame];
    for (const column of this.columns) line.insertCell().textContent = this.text(column, row);
    const cell = line.insertCell(), at = document.createElement("span");
    cell.className = "name";
    // In a narrow window the beginning of a path would leave no room for its end.
    const shown = this.pane.clientWidth < 900 ? shortPlace : place;
    at.textContent = shown ? `  ${shown}` : "";
    cell.append(name, at);
    cell.title = `${place}\nClick to show in the graph`.trim();
    cell.onclick = () => this.search(name);
    return line;
  }

  /** All rows, as RFC 4180 has it, with plain numbers. */
  csv() {
    const quote = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const metrics = ["bytes", "count"].flatMap((name) => [[name, 0, `own_${name}`], [name, 1, `total_${name}`]]);
    const base = this.model.diff ? metrics.map(([name, at, title]) => [this.base(name), at, `base_${title}`]) : [];
    const columns = [...metrics, ...base];
    const lines = this.sorted().map((row) => {
      const { name, file, line } = this.model.frames[row.frame];
      return [quote(name), quote(file), line || "", ...columns.map(([key, at]) => row[key][at])].join(",");
    });
    return [["function", "file", "line", ...columns.map((column) => column[2])].join(","), ...lines, ""].join("\r\n");
  }
}
