// The source lines that the page holds, if it was made with them.

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

  /** A line without its indent; empty where it is not known. */
  line(file, number) {
    return this.files.get(file)?.get(number)?.trim() || "";
  }

  /** The lines next to one, itself among them. */
  around(file, number, reach = 4) {
    const lines = this.files.get(file);
    if (!lines?.has(number)) return [];
    const known = [];
    for (let at = number - reach; at <= number + reach; at++)
      if (lines.has(at)) known.push({ number: at, text: lines.get(at) });
    return known;
  }
}
