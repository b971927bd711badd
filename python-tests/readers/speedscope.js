// Imports a file with speedscope's own importer and prints what it makes of it, as JSON.
// Arguments: the bundle that the speedscope package ships, and the file.
//
// The bundle exports nothing; its importer is the function that takes a file's name and content, found by how the page
// calls it. The page itself cannot start without a browser, which comes after everything that the importer needs.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [bundle, file] = process.argv.slice(2);
const source = fs.readFileSync(bundle, "utf8");
const importer = /await (\w+)\(\w+,await \w+\.arrayBuffer\(\)\)/.exec(source);
if (!importer) throw new Error(`${bundle}: no importer found`);
const hooked = source.replace("(()=>{", `(()=>{globalThis.importFile=(...file)=>${importer[1]}(...file);`);

const element = () => new Proxy(function () {}, { get: () => element(), apply: () => element() });
const page = {
  console: { log() {}, warn() {}, error() {} },
  document: element(),
  navigator: { userAgent: "" },
  localStorage: { getItem: () => null, setItem() {} },
  location: { hash: "", href: "http://localhost/", protocol: "http:" },
  matchMedia: () => ({ matches: false, addEventListener() {}, addListener() {} }),
  addEventListener() {},
  requestAnimationFrame() {},
};
const context = vm.createContext({
  ...page,
  window: page,
  self: page,
  TextDecoder,
  TextEncoder,
  URL,
  URLSearchParams,
  setTimeout,
  clearTimeout,
  performance,
  ArrayBuffer,
  Uint8Array,
  Buffer,
  atob,
});
try {
  vm.runInContext(hooked, context);
} catch (error) {
  if (!context.importFile) throw error;
}

const bytes = fs.readFileSync(file);
const content = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
context.importFile(path.basename(file), content).then(
  (group) => {
    if (!group) throw new Error("not recognized as any format");
    const profiles = group.profiles.map((profile) => {
      const heaviest = { name: null, weight: -1 };
      let own = 0;
      profile.forEachFrame((frame) => {
        own += frame.getSelfWeight();
        if (frame.getTotalWeight() > heaviest.weight)
          Object.assign(heaviest, { name: frame.name, weight: frame.getTotalWeight() });
      });
      return { name: profile.getName(), unit: profile.getWeightUnit(), total: profile.getTotalWeight(), own, heaviest };
    });
    process.stdout.write(JSON.stringify({ name: group.name, profiles }));
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
