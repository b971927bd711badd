// Frames: name, location, and whose code they are.

/** Owners of memory, by their numbers in the page's data. Arenas are recognized by their allocator. */
const OWNER = { own: 0, library: 1, stdlib: 2, imports: 3, arenas: 4, frameless: 5 };

const OWNERS = [
  { id: "own", title: "Own code", meaning: "Asked for by the program's own code, itself or through libraries" },
  { id: "library", title: "Libraries", meaning: "Asked for by libraries, without own code on the stack" },
  {
    id: "stdlib",
    title: "Standard library",
    meaning:
      "Asked for by the standard library, the interpreter or the runtime alone; what has no stack in the main thread, too",
  },
  {
    id: "imports",
    title: "Imports",
    meaning: "Held by imports: modules of others while they were being imported, and the code of all modules",
  },
  {
    id: "arenas",
    title: "Python's arenas",
    meaning: "Reserved by Python's allocator (used and unused); record with --trace-python-allocators to see objects",
  },
  {
    id: "frameless",
    title: "Threads without Python code",
    meaning: "Asked for without a Python frame in other threads than the main one; record with --native to see by whom",
  },
];

/** The name of an owner in a view. Of threads without Python frames it depends on whether they run Python elsewhere. */
const ownerTitle = (data, at, view) => (at === OWNER.frameless && data.frameless?.[view]) || OWNERS[at].title;

/** Origins of frames, by their numbers in the page's data. */
const ORIGIN = { own: 0, library: 1, standard: 2, importing: 3, runtime: 4 };
const ORIGINS = ["own code", "library", "standard library", "import system", "runtime"];

/** All frames of the page. */
function describeFrames(data) {
  return data.frameName.map((name, frame) => describeFrame(data, frame));
}

function describeFrame(data, frame) {
  const text = (column) => data.strings[data[column][frame]];
  const name = text("frameName");
  const file = text("frameFile");
  const short = text("frameShort");
  const line = data.frameLine[frame];
  const column = data.frameColumn[frame];
  const origin = data.frameOrigin[frame];
  const isNative = data.frameNative[frame] === 1;
  const at = (line ? `:${line}` : "") + (column ? `:${column}` : "");
  return {
    name,
    brief: isNative ? briefName(name) : name,
    file,
    line,
    module: text("frameModule"),
    origin,
    isNative,
    isOwn: origin === ORIGIN.own,
    // Allocator wrappers: functions that allocate for their callers (containers, the runtime).
    isPlumbing: data.framePlumbing[frame] === 1 || origin === ORIGIN.runtime,
    isImporting: origin === ORIGIN.importing,
    place: file + at,
    // For paths outside of known directories, the file name; for native code without lines, the library.
    shortPlace: (isNative && !line) || short.startsWith("/") ? fileName(short) + at : short + at,
    shortLine: ((isNative && !line) || short.startsWith("/") ? fileName(short) : short) + (line ? `:${line}` : ""),
    fileLine: fileName(short) + at,
    // For top-level code of a module: its import name.
    importName: text("frameImport"),
  };
}

/** For each frame the first frame with the same function and file, or also the same line. */
function numberFunctions(frames, byLine = false) {
  const first = new Map();
  return Int32Array.from(frames, ({ name, file, line }, frame) => {
    const key = `${file}\n${name}\n${byLine ? line : ""}`;
    if (!first.has(key)) first.set(key, frame);
    return first.get(key);
  });
}
