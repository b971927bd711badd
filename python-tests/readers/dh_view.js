// Loads a file into valgrind's dh_view.js and prints what its tree adds up to, as JSON.
// Arguments: dh_view.js and the file.
"use strict";
const fs = require("fs");
const vm = require("vm");

const [viewer, file] = process.argv.slice(2);
const context = vm.createContext({
  performance,
  window: {},
  document: {},
  console,
  URLSearchParams,
  data: fs.readFileSync(file, "utf8"),
});
const tail = `
gSelect = { childNodes: gSelectData.map(() => ({})), selectedIndex: 0 };
gData = JSON.parse(data);
buildTree();
JSON.stringify({
  total: [gRoot._totalBytes, gRoot._totalBlocks],
  peak: [gRoot._atTGmaxBytes, gRoot._atTGmaxBlocks],
  end: [gRoot._atTEndBytes, gRoot._atTEndBlocks],
  lifetimes: gRoot._totalLifetimes,
  points: gData.pps.length,
});`;
process.stdout.write(vm.runInContext(fs.readFileSync(viewer, "utf8") + tail, context));
