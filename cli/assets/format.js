// Formats amounts, times and names.

/** Bytes with three digits, as everywhere in memtrack. */
function formatSize(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
  const sign = bytes < 0 ? "-" : "";
  let value = Math.abs(bytes);
  let unit = 0;
  if (value < 1000) return `${sign}${value} B`;
  while (value >= 999.5 && unit < 6) {
    value /= 1000;
    unit++;
  }
  const digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${sign}${value.toFixed(digits)} ${units[unit]}`;
}

const formatCount = (count) => count.toLocaleString("en-US");

/** An amount of a metric: bytes, or a number of allocations. */
const formatAmount = (value, metric) => (metric === "bytes" ? formatSize(value) : formatCount(value));

/** The same with a sign. */
const formatChange = (value, metric) => `${value > 0 ? "+" : ""}${formatAmount(value, metric)}`;

function formatPercent(part, whole) {
  if (!whole) return "0 %";
  return `${((part * 100) / whole).toFixed(part >= whole * 0.9995 ? 0 : 1)} %`;
}

function formatTime(us) {
  if (us < 9.995e6) return `${(us / 1e6).toFixed(2)} s`;
  if (us < 6e7) return `${(us / 1e6).toFixed(1)} s`;
  return `${Math.floor(us / 6e7)} min ${String(Math.floor((us % 6e7) / 1e6)).padStart(2, "0")} s`;
}

/** A time with the digits that a precision (in microseconds) justifies. */
function exactTime(us, precision) {
  const digits = Math.min(6, Math.max(0, Math.ceil(6 - Math.log10(precision))));
  if (us < 6e7) return `${(us / 1e6).toFixed(digits)} s`;
  return `${Math.floor(us / 6e7)} min ${((us % 6e7) / 1e6).toFixed(digits).padStart(digits ? digits + 3 : 2, "0")} s`;
}

const plural = (count, one, many) => `${formatCount(count)} ${count === 1 ? one : many}`;

/** A thread, its name first. */
function threadName(text) {
  const [, id, name] = /^(\d+|\?) (.+)$/.exec(text) || [];
  return name ? `${name} (thread ${id})` : text;
}

/** The file name of a path, with the package for names that every package has: `pandas/__init__.py`. */
function fileName(path) {
  const parts = path.split("/");
  const last = parts[parts.length - 1];
  return ["__init__.py", "__main__.py", "mod.rs"].includes(last) ? parts.slice(-2).join("/") : last;
}

/** The name of a native function without parameters and template arguments, for narrow places. */
function briefName(name) {
  if (name.startsWith("<") || /\boperator\b/.test(name)) return name;
  let depth = 0;
  let brief = "";
  for (const char of name.replaceAll("(anonymous namespace)", "{anonymous}")) {
    if (char === "<" || char === "(") depth++;
    if (depth === 0) brief += char;
    if (char === ">" || char === ")") depth = Math.max(0, depth - 1);
  }
  brief = brief.replace(/( const| volatile|&)+$/, "").replaceAll("std::__cxx11::basic_string", "std::string");
  brief = brief.replace(/(::)+/g, "::").replace(/::$/, "");
  // The return type precedes the last space.
  return brief.trim().split(" ").pop() || name;
}

/** Text cut to a number of characters, with an ellipsis. */
const clipped = (text, room) => (text.length > room ? `${text.slice(0, Math.max(room - 1, 0))}…` : text);
