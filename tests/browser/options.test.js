// What the options of the command line make of a page, and that its sums are those of the other reports.

import assert from "node:assert/strict";
import { drawn, inPage, named, report, state } from "./browser.js";

const OWNERS = ["own", "libraries", "stdlib", "imports"];
const ALL = 4;
/** Of the owners in `stats --json` and of filters, the part of the standard library that the page has apart. */
const FRAMELESS = 5;
const LEAKS = 1;

/** Bytes and count of a sum in `stats --json`. */
const figures = ({ bytes, count, allocations }) => [bytes, count ?? allocations];

/** Bytes and count of each owner in a view. */
const byOwner = (page, view) =>
  page.evaluate((view) => {
    const { model } = window.memtrack;
    return model.byOwner({ view, range: null, thread: -1, hide: 0 }).map(({ bytes, count }) => [bytes, count]);
  }, view);

/** The same, with threads without Python code in the standard library, as filters have them. */
const byFilter = async (page, view) => {
  const found = await byOwner(page, view);
  const [bytes, count] = found.splice(FRAMELESS, 1)[0];
  const standard = found[OWNERS.indexOf("stdlib")];
  [standard[0], standard[1]] = [standard[0] + bytes, standard[1] + count];
  return found;
};

inPage("threads without Python code are named as stats does", "owners.html", async (page) => {
  const { leaked } = await report("owners-stdlib");
  const [apart] = (await byOwner(page, LEAKS)).slice(FRAMELESS);
  assert.ok(apart[0] >= 700_000 && apart[0] < leaked.bytes, `${apart[0]} of ${leaked.bytes}`);
  assert.match(await page.textContent("#owners"), /Threads without Python code 7\d\d kB/);
});

inPage("each owner has what the command line's filters give him", "owners.html", async (page) => {
  const [all, leaked] = [await byFilter(page, ALL), await byFilter(page, LEAKS)];
  for (const [at, owner] of OWNERS.entries()) {
    const expected = await report(`owners-${owner}`);
    assert.deepEqual(all[at], figures(expected.allocations), owner);
    assert.deepEqual(leaked[at], figures(expected.leaked), owner);
    assert.ok(leaked[at][0] >= 500_000, `${owner} has something: ${leaked[at][0]}`);
  }
});

for (const [at, owner] of OWNERS.entries()) {
  inPage(`a page of --${owner} alone`, `owners-${owner}.html`, async (page) => {
    const expected = await report(`owners-${owner}`);
    const found = await byFilter(page, ALL);
    assert.deepEqual(found[at], figures(expected.allocations));
    const others = found.filter((_, other) => other !== at);
    assert.ok(others.flat().every((figure) => figure === 0));
    // The page was asked for with --leaks, where imports are left out unless they are what is asked for.
    assert.equal((await drawn(page))[0].value, expected.leaked.bytes);
    assert.doesNotMatch(await page.textContent("#meaning"), /left out/);
  });
}

inPage("leaks leave out imports, and say how much that is", "leaks.html", async (page) => {
  assert.match(await page.textContent("#meaning"), /[\d.]+ MB held by imports is left out/);
  assert.equal((await state(page)).frames, "folded");
  assert.ok(await named(page, "keep"));
});

inPage("--with-imports, --all-frames and --skip-function", "wishes.html", async (page) => {
  const imports = await report("owners-imports");
  assert.doesNotMatch(await page.textContent("#meaning"), /left out/);
  const names = (await drawn(page)).map(({ name }) => name);
  assert.ok(names.includes("_find_and_load"), "the import system's frames are drawn");
  assert.ok(names.includes("keep"), "a function that is skipped is drawn where all are");
  const found = (await byOwner(page, LEAKS))[OWNERS.indexOf("imports")];
  assert.deepEqual(found, figures(imports.leaked));
  await page.selectOption("#frames", "folded");
  const folded = (await drawn(page)).map(({ name }) => name);
  assert.ok(!folded.includes("keep") && !folded.includes("_find_and_load"), folded.join());
  const ownLines = await page.$$eval("#ownLines li", (rows) => rows.map((row) => row.textContent));
  assert.match(ownLines[0], /owners\.py:\d+ main/, "who called it holds what it allocated");
});

inPage("a difference takes the same options", "wishes-diff.html", async (page) => {
  assert.equal((await state(page)).frames, "all");
  const skipped = await page.evaluate(() => {
    const { frames } = window.memtrack.model;
    return frames.filter(({ isPlumbing, isNative }) => isPlumbing && !isNative).map(({ name }) => name);
  });
  assert.deepEqual(skipped, ["keep"]);
});
