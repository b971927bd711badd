// The embedded source lines, if any.

class SourceLines {
  constructor({ sourceFile, sourceLine, sourceText, strings }) {
    this.files = new Map();
    undelta(sourceFile || []).forEach((file, at) => {
      const path = strings[file];
      if (!this.files.has(path)) this.files.set(path, new Map());
      this.files.get(path).set(sourceLine[at], strings[sourceText[at]]);
    });
  }

  get isEmpty() {
    return this.files.size === 0;
  }

  /** A line without indentation; empty if unknown. */
  line(file, number) {
    return this.files.get(file)?.get(number)?.trim() || "";
  }

  /** A line and its neighbours. */
  around(file, number, reach = 4) {
    const lines = this.files.get(file);
    if (!lines?.has(number)) return [];
    const known = [];
    for (let at = number - reach; at <= number + reach; at++)
      if (lines.has(at)) known.push({ number: at, text: lines.get(at) });
    return known;
  }
}
