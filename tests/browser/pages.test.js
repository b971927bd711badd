// What a page shows of a capture and of a difference, and how it is used.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { browser, click, drawn, inPage, named, pick, report, state, withEverything } from "./browser.js";

inPage("views are switched, and their roots have their totals", "flamegraph.html", async (page) => {
  const expected = await report("stats");
  const totals = {
    Peak: expected.peak,
    Leaks: expected.leaked,
    Temporary: expected.temporary,
    All: expected.allocations,
  };
  for (const [view, { bytes }] of Object.entries(totals)) {
    await pick(page, "views", view);
    await withEverything(page);
    assert.equal((await drawn(page))[0].value, bytes, view);
  }
  await pick(page, "metrics", "Number");
  assert.equal((await drawn(page))[0].value, expected.allocations.count);
});

inPage("in a frame, the page follows the theme of what shows it", "flamegraph.html", async (page) => {
  // Messages arrive in their order: once this one is here, the page has had the one before.
  const told = (message) =>
    page.evaluate(async (message) => {
      const arrived = new Promise((done) => addEventListener("message", ({ data }) => data === "after it" && done()));
      postMessage(message, "*");
      postMessage("after it", "*");
      await arrived;
      return document.documentElement.dataset.theme;
    }, message);
  assert.equal(await told({ memtrackTheme: "dark" }), "dark");
  for (const other of [null, "light", { memtrackTheme: "red" }, { theme: "light" }])
    assert.equal(await told(other), "dark");
  assert.equal(await told({ memtrackTheme: "light" }), "light");
});

inPage("zoom in, and out again with the keyboard", "flamegraph.html", async (page) => {
  await click(page, "stays");
  const zoomed = await named(page, "stays");
  assert.equal(zoomed.width, (await drawn(page))[0].width);
  assert.match(await page.textContent("#status"), /stays: 2\.00 MB/);
  await page.keyboard.press("Backspace");
  assert.equal((await named(page, "main")).width, zoomed.width);
  await page.keyboard.press("Escape");
  assert.deepEqual((await state(page)).zoom, []);
});

test("without JavaScript the page says so, and has the figures", async () => {
  const context = await browser.newContext({ javaScriptEnabled: false }),
    page = await context.newPage();
  await page.goto(pathToFileURL(join(process.env.MEMTRACK_PAGES, "flamegraph.html")).href);
  const text = await page.innerText("body");
  assert.match(text, /needs JavaScript/);
  assert.match(text, /Peak\s+\d.* in [\d,]+ allocations/);
  assert.doesNotMatch(text, /Reading/);
  await context.close();
});

inPage("the peak is where the heap was highest", "flamegraph.html", async (page) => {
  const expected = await report("stats");
  const peak = await page.evaluate(() => window.memtrack.model.data.peak);
  assert.equal(peak.bytes, expected.peak.bytes);
  assert.ok(Math.abs(peak.time / 1000 - expected.peak.time_ms) <= 1);
  const { bytes, most } = await page.evaluate(() => {
    const { heap } = window.memtrack.chart,
      { peak } = window.memtrack.model.data;
    return { bytes: heap.bytes[heap.highest(peak.time, peak.time)], most: heap.most };
  });
  assert.deepEqual([bytes, most], [peak.bytes, peak.bytes]);
});

/** What the chart draws when it paints itself: the ends of lines, and the centres of dots. */
const painted = (page) =>
  page.evaluate(() => {
    const lines = [],
      dots = [],
      { prototype } = CanvasRenderingContext2D,
      { moveTo, lineTo, arc } = prototype;
    let at;
    const of = (kept, own) =>
      function (x, y, ...rest) {
        kept(x, y);
        own.call(this, x, y, ...rest);
      };
    prototype.moveTo = of((x, y) => (at = [x, y]), moveTo);
    prototype.lineTo = of((x, y) => {
      lines.push([...at, x, y]);
      at = [x, y];
    }, lineTo);
    prototype.arc = of((x, y) => dots.push([x, y]), arc);
    window.memtrack.chart.paint();
    Object.assign(prototype, { moveTo, lineTo, arc });
    return { lines, dots };
  });

/** Drags over the chart from one time to another, in seconds. */
async function dragOver(page, from, to) {
  const box = await page.locator("#chart").boundingBox();
  const x = (seconds) => page.evaluate((seconds) => window.memtrack.chart.x(seconds * 1e6), seconds);
  await page.mouse.move(box.x + (await x(from)), box.y + 50);
  await page.mouse.down();
  await page.mouse.move(box.x + (await x(to)), box.y + 50, { steps: 4 });
  await page.mouse.up();
}

/** When the block of steps.py that stays was made and freed, and the other one was there, in seconds. */
const timesOfSteps = (page) =>
  page.evaluate(() => {
    const { time, bytes } = window.memtrack.chart.heap;
    const first = (is) => time[bytes.findIndex((value, at) => is(value - (bytes[at - 1] || 0)))] / 1e6;
    return [
      first((change) => change > 19e6),
      first((change) => change > 59e6),
      first((change) => change < -19e6 && change > -21e6),
    ];
  });

inPage("memory over time is drawn in steps, and the peak's dot lies on them", "steps.html", async (page) => {
  const { lines, dots } = await painted(page);
  const slopes = lines.filter(([x, y, toX, toY]) => Math.abs(x - toX) > 0.01 && Math.abs(y - toY) > 0.01);
  assert.deepEqual(slopes, []);
  const [x, y] = dots[0];
  assert.equal(dots.length, 1);
  const isBetween = (value, a, b) => Math.min(a, b) - 0.6 <= value && value <= Math.max(a, b) + 0.6;
  assert.ok(
    lines.some(([fromX, fromY, toX, toY]) => isBetween(x, fromX, toX) && isBetween(y, fromY, toY)),
    `${dots}`,
  );
  const [made, spike, freed] = await timesOfSteps(page);
  assert.ok(spike - made > 0.9 && freed - spike > 0.9, `${[made, spike, freed]}`);
});

inPage("the readout has the step under the pointer", "steps.html", async (page) => {
  const [made, spike] = await timesOfSteps(page);
  const x = await page.evaluate((us) => window.memtrack.chart.x(us), (made + spike) * 5e5);
  await page.hover("#chart", { position: { x, y: 60 } });
  const expected = await page.evaluate(
    (us) => {
      const { heap } = window.memtrack.chart,
        at = heap.at(us);
      return `Heap ${formatSize(heap.bytes[at])} since ${(heap.time[at] / 1e6).toFixed(6)} s`;
    },
    (made + spike) * 5e5,
  );
  await page.waitForFunction((text) => document.querySelector("#readout").textContent.startsWith(text), expected);
});

inPage("a range of idle time has what the line shows there", "steps.html", async (page) => {
  const [made, spike, freed] = await timesOfSteps(page);
  const shown = (from, to) =>
    page.evaluate(
      ([from, to]) => {
        const { heap } = window.memtrack.chart;
        return heap.bytes[heap.highest(from * 1e6, to * 1e6)];
      },
      [from, to],
    );
  for (const [from, to] of [
    [made + 0.3, made + 0.6],
    [spike + 0.3, spike + 0.6],
    [freed + 0.1, freed + 0.3],
  ]) {
    await dragOver(page, from, to);
    await withEverything(page);
    assert.equal((await drawn(page))[0].value, await shown(from, to), `${[from, to]}`);
    assert.match(
      await page.textContent("#meaning"),
      /^Live at the highest moment of [\d.]+ s to [\d.]+ s: at [\d.]{8,} s, with /,
    );
  }
});

inPage("a range over the peak shows the peak, whether or not a moment saw it", "steps.html", async (page) => {
  const [, spike] = await timesOfSteps(page);
  await dragOver(page, spike - 0.3, spike + 0.3);
  const peak = await page.evaluate(() => window.memtrack.model.data.peak.bytes);
  assert.equal((await drawn(page))[0].value, peak);
  assert.match(await page.textContent("#meaning"), /with 8\d\.\d MB of heap/);
});

inPage("of what a filter leaves the chart and its moments are, too", "filtered.html", async (page) => {
  const [most, heap] = await page.evaluate(() => [window.memtrack.chart.heap.most, window.memtrack.model.data.heap]);
  assert.equal(most, 0);
  assert.ok(heap.every((bytes) => bytes === 0));
});

inPage("the first glance names the program, what the view is of, and who holds it", "flamegraph.html", async (page) => {
  assert.equal(await page.title(), "program.py - memtrack");
  assert.match(
    await page.textContent("#meaning"),
    /^Memory live at the peak, [\d.]+ m?s after the start of a run of \d/,
  );
  const ownLines = await page.$$eval("#ownLines li", (rows) => rows.map((row) => row.textContent));
  assert.match(ownLines[0], /^3\.00 MB\d+\.\d %program\.py:\d+ only_in_base$/);
  assert.ok(
    ownLines.some((row) => /^2\.00 MB\d+\.\d %program\.py:\d+ stays$/.test(row)),
    ownLines.join(),
  );
  await page.click("#ownLines li:has-text('stays') button");
  assert.match(await page.textContent("#status"), /^stays: 2\.00 MB/);
  await pick(page, "views", "Leaks");
  assert.match(await page.textContent("#meaning"), /^What was still live when Python began to finalize/);
});

inPage("memory is put down to its owners, who can be left out", "flamegraph.html", async (page) => {
  const [{ value }] = await drawn(page);
  const owners = await page.evaluate(() =>
    window.memtrack.model.byOwner(window.memtrack.selection()).map((owner) => owner.bytes),
  );
  assert.equal(
    owners.reduce((sum, bytes) => sum + bytes),
    value,
  );
  await page.click('#owners button:has-text("Imports")');
  assert.equal((await drawn(page))[0].value, value - owners[3]);
  assert.match(await page.textContent("#meaning"), /held by imports is left out/);
  await page.click("#meaning button");
  assert.equal((await drawn(page))[0].value, value);
  await page.evaluate(() => window.memtrack.set({ imports: null }));
  await pick(page, "views", "Leaks");
  assert.match(await page.textContent("#meaning"), /held by imports is left out/, "by default");
  await page.keyboard.press("4");
  assert.doesNotMatch(await page.textContent("#meaning"), /imports/);
});

/** Makes arenas of all mappings; gives their bytes in what is shown. */
const makeArenas = (page) =>
  page.evaluate(() => {
    const page = window.memtrack,
      { model } = page;
    model.data.allocators = model.data.allocators.map((name) => (name === "mmap" ? "pymalloc_arena" : name));
    model.readOwners();
    model.sums.clear();
    page.layoutKey = null;
    page.update();
    return model.arenaBytes(page.selection());
  });

inPage("at the peak Python's arenas are where they were mapped", "flamegraph.html", async (page) => {
  const before = await drawn(page);
  const ownLines = await page.textContent("#ownLines");
  const arenas = await makeArenas(page);
  assert.ok(arenas > 0 && arenas < before[0].value);
  assert.deepEqual(await drawn(page), before);
  assert.equal(await page.textContent("#ownLines"), ownLines);
  assert.equal(await page.locator('#owners button:has-text("arenas")').count(), 0);
});

inPage(
  "leaks have Python's arenas as a block of their own, when they are asked for",
  "flamegraph.html",
  async (page) => {
    await makeArenas(page);
    await pick(page, "views", "Leaks");
    assert.equal(await named(page, "Python's arenas (used and unused)"), undefined);
    assert.match(await page.textContent("#meaning"), /reserved by Python's allocator \(used and unused\) is left out/);
    const leaks = (await drawn(page))[0].value;
    await page.click("#meaning button:text-is('show') >> nth=-1");
    const arenas = await page.evaluate(() => window.memtrack.model.byOwner(window.memtrack.selection())[4].bytes);
    const shown = await named(page, "Python's arenas (used and unused)");
    assert.deepEqual([(await drawn(page))[0].value, shown.value, shown.depth], [leaks + arenas, arenas, 1]);
    await page.click('#owners button:has-text("arenas")');
    assert.equal((await drawn(page))[0].value, leaks);
  },
);

inPage("the calls within a line are one row", "failed.html", async (page) => {
  const rows = await page.$$eval("#ownLines li", (items) => items.map((item) => item.textContent));
  assert.equal(rows.filter((text) => /failed\.py:\d+ pair/.test(text)).length, 1, rows.join("\n"));
  assert.match(rows[0], /^30\.0 MB.*failed\.py:\d+ pair/);
});

inPage("the table of lines and its CSV have a row for each line", "failed.html", async (page) => {
  await pick(page, "panes", "Lines");
  const rows = await page.$$eval("#tablePane tbody tr", (items) => items.map((item) => item.textContent));
  const [pair] = rows.filter((text) => /failed\.py:\d+  pair/.test(text));
  assert.match(pair, /^30\.0 MB/);
  const csv = await page.evaluate(() => window.memtrack.table.csv());
  assert.equal(csv.split("\n").filter((row) => /^pair,.*failed\.py,\d+,300000\d\d,/.test(row)).length, 1);
});

inPage("the readout moves nothing", "failed.html", async (page) => {
  const place = () => page.evaluate(() => document.getElementById("graphPane").getBoundingClientRect().top);
  const before = await place();
  await page.hover("#chart");
  await page.waitForFunction(() => /at /.test(document.getElementById("readout").textContent));
  assert.equal(await place(), before);
});

inPage("on paper are the graph as a whole and what was found, on white", "flamegraph.html", async (page) => {
  await page.keyboard.press("t");
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  assert.equal(await theme(), "dark");
  await page.setViewportSize({ width: 1280, height: 420 });
  await page.evaluate(() => window.memtrack.set({ frames: "all" }));
  await page.emulateMedia({ media: "print" });
  await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
  assert.equal(await theme(), "light");
  for (const seen of ["#ownLines", "#chart", "#graph", "#sideTable"]) assert.ok(await page.isVisible(seen), seen);
  for (const absent of ["#search", "#controls", "#info"]) assert.ok(!(await page.isVisible(absent)), absent);
  const [shown, needed] = await page.evaluate(() => {
    const { graph } = window.memtrack;
    return [graph.canvas.clientHeight, (graph.deepest + 1) * graph.row];
  });
  assert.ok(shown >= needed && shown < needed + 100 && needed > 420, `${shown} of ${needed}`);
  await page.evaluate(() => dispatchEvent(new Event("afterprint")));
  await page.emulateMedia({ media: "screen" });
  assert.equal(await theme(), "dark");
});

inPage("calls for memory that failed are named with their place and number", "failed.html", async (page) => {
  const { failed_allocations: failed } = await report("failed");
  assert.equal(failed.count, 3);
  const text = await page.textContent("#failed");
  assert.match(text, /^Failed allocations: 9\.01 PB in .*ask at .*failed\.py:\d+.*, the largest of 3, after /);
  assert.match(await page.getAttribute("#failed", "title"), /\n2 calls in .*again/);
});

inPage("where nothing failed nothing is said of it", "flamegraph.html", async (page) => {
  assert.equal(await page.isVisible("#failed"), false);
});

inPage("no line passes through the peak's label", "failed.html", async (page) => {
  const found = await page.evaluate(async () => {
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const { chart } = window.memtrack;
    const context = chart.canvas.getContext("2d");
    const color = getComputedStyle(document.documentElement).getPropertyValue("--rss").trim();
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    const { data } = context.getImageData(0, 0, chart.canvas.width, Math.round((LABEL + 3) * chart.ratio));
    let lines = 0;
    for (let at = 0; at < data.length; at += 4)
      if (Math.abs(data[at] - red) + Math.abs(data[at + 1] - green) + Math.abs(data[at + 2] - blue) < 30) lines++;
    return { lines, isHigher: chart.rss.most > chart.heap.most };
  });
  assert.deepEqual(found, { lines: 0, isHigher: true });
});

inPage("imports are folded into one block, and chains of library code, too", "flamegraph.html", async (page) => {
  const names = (await drawn(page)).map((block) => block.name);
  assert.ok(names.includes("import threading"), names.join());
  assert.ok(!names.some((name) => /_find_and_load|exec_module/.test(name)), names.join());
  const [{ value }] = await drawn(page);
  await page.selectOption("#frames", "all");
  const all = await drawn(page);
  assert.ok(all.some((block) => block.name === "_find_and_load"));
  assert.equal(all[0].value, value);
});

inPage("search tells the matched total, each byte once", "flamegraph.html", async (page) => {
  await page.keyboard.press("/");
  await page.keyboard.type("NESTED");
  await page.waitForFunction(() => document.querySelector("#matched").textContent !== "");
  assert.match(await page.textContent("#matched"), /Matched: 1\.00 MB/);
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => document.querySelector("#matched").textContent === "");
});

inPage("a range shows what was live in it", "flamegraph.html", async (page) => {
  const chart = await page.locator("#chart").boundingBox();
  const drag = async (from, to) => {
    await page.mouse.move(chart.x + from, chart.y + 50);
    await page.mouse.down();
    await page.mouse.move(chart.x + to, chart.y + 50, { steps: 4 });
    await page.mouse.up();
  };
  await drag(70, chart.width - 30);
  const { range } = await state(page),
    [root] = await drawn(page);
  const { heap, peak } = await page.evaluate(() => window.memtrack.model.data);
  assert.equal(root.value, Math.max(...heap.slice(range[0], range[1] + 1), peak.bytes), "the peak is in it");
  assert.equal(await page.isDisabled('#views button:text-is("Temporary")'), true);
  await page.click("#range button");
  assert.equal((await state(page)).range, null);
});

inPage("every moment's flame graph adds up to the heap shown there", "flamegraph.html", async (page) => {
  const wrong = await page.evaluate(() => {
    const { model } = window.memtrack,
      at = model.data.heap.map((heap, moment) => [heap, moment]);
    const live = (moment) =>
      model.figures({ view: 0, range: [moment, moment], thread: -1, metric: "bytes" }).bytes.total[0];
    return at.filter(([heap, moment]) => live(moment) !== heap);
  });
  assert.deepEqual(wrong, []);
});

inPage("inverted, split by thread and hidden frames keep the total", "flamegraph.html", async (page) => {
  const [{ value }] = await drawn(page);
  for (const id of ["inverted", "split", "flame"]) {
    await page.check(`#${id}`);
    const blocks = await drawn(page),
      first = blocks.filter((block) => block.depth === 1);
    assert.equal(blocks[0].value, value, id);
    assert.ok(first.reduce((sum, block) => sum + block.value, 0) <= value, id);
  }
  assert.ok((await drawn(page)).some((block) => /^worker.* \(thread \d+\)$/.test(block.name)));
});

inPage("frames are left out on request, and their bytes stay", "flamegraph.html", async (page) => {
  assert.equal(await page.$eval("#frames [value=python]", (option) => option.hidden), true);
  const [{ value }] = await drawn(page);
  await page.evaluate(() => {
    for (const frame of window.memtrack.model.frames) {
      frame.isNative = ["stays", "grows"].includes(frame.name);
      frame.isPlumbing = frame.name === "stays";
      frame.isOwn &&= frame.name !== "main";
    }
  });
  const has = async (frames) => {
    await page.evaluate((frames) => window.memtrack.set({ frames, zoom: [] }), frames);
    const blocks = await drawn(page);
    assert.equal(blocks[0].value, value, frames);
    return ["stays", "grows", "main"].map((name) => blocks.some((block) => block.name === name));
  };
  assert.deepEqual(await has("all"), [true, true, true]);
  assert.deepEqual(await has("python"), [false, false, true]);
  assert.deepEqual(await has("own"), [true, true, false]);
  assert.deepEqual(await has("folded"), [false, true, true]);
});

inPage("the tooltip has self, total, part, allocator and place", "flamegraph.html", async (page) => {
  const block = await named(page, "stays");
  await page.hover("#graphPane", { position: { x: block.x + 3, y: block.depth * 19 + 9 } });
  const text = await page.textContent("#tooltip");
  for (const part of [
    /stays/,
    /program\.py:\d+/,
    /Total2\.00 MB/,
    /Self2\.00 MB/,
    /1 allocation/,
    /% of all/,
    /m(alloc|map)2\.00 MB/,
  ]) {
    assert.match(text, part);
  }
});

inPage("a part is told of all and of the selection", "flamegraph.html", async (page) => {
  await click(page, "<module>");
  const block = await named(page, "stays");
  await page.hover("#graphPane", { position: { x: block.x + 3, y: block.depth * 19 + 9 } });
  const part = await page.evaluate(() => {
    const { graph, layout } = window.memtrack,
      stays = graph.drawn.flat().find(({ block }) => graph.name(block) === "stays").block;
    return [layout.root.value, graph.focus.value].map((whole) => `${((stays.value * 100) / whole).toFixed(1)} %`);
  });
  assert.ok((await page.textContent("#tooltip")).includes(`Part${part[0]} of all${part[1]} of the selection`));
});

inPage("source lines are there where they were embedded", "sources.html", async (page) => {
  const block = await named(page, "stays");
  await page.hover("#graphPane", { position: { x: block.x + 3, y: block.depth * 19 + 9 } });
  assert.equal(await page.textContent("#tooltip code"), "kept.append(bytearray(2_000_000))");
});

inPage("no source line leaves the machine unasked", "flamegraph.html", async (page) => {
  const strings = await page.evaluate(() => window.memtrack.model.data.strings);
  assert.ok(!strings.some((text) => text.includes("kept.append")));
});

inPage("the tables sort, own code first, and go out as CSV", "flamegraph.html", async (page) => {
  await pick(page, "panes", "Functions");
  assert.match(await page.textContent("#tablePane tbody tr:first-child"), /own code<module>  .*program\.py$/);
  await page.click("#tablePane th:has-text('Self')");
  assert.match(await page.textContent("#tablePane tbody tr:first-child"), /own codeonly_in_base  .*program\.py$/);
  await pick(page, "panes", "Lines");
  assert.match(await page.textContent("#tablePane tbody tr:first-child"), /own code.*program\.py:\d+  only_in_base/);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#csv")]);
  const csv = await readFile(await download.path(), "utf8");
  assert.match(csv, /^function,file,line,own_bytes,total_bytes,own_count,total_count\r\n/);
  assert.match(csv, /stays,.*program\.py,\d+,20000\d\d,20000\d\d,1,1\r\n/);
});

inPage(
  "beside the graph stand the functions, and callers, callees and source of the zoomed block",
  "sources.html",
  async (page) => {
    assert.match(await page.textContent("#sideTable tbody tr:first-child"), /<module>  .*program\.py$/);
    await page.click("#sideBy button:has-text('By line')");
    assert.match(await page.textContent("#sideTable tbody tr:first-child"), /program\.py:\d+/);
    await click(page, "stays");
    const text = await page.textContent("#details");
    for (const part of [/stays/, /own code/, /2\.00 MB in 1 allocation here/, /Called by.*main/s])
      assert.match(text, part);
    assert.match(await page.textContent("#details .at"), /kept\.append\(bytearray\(2_000_000\)\)/);
    await page.click("#details .frame:has-text('main')");
    assert.match(await page.textContent("#status"), /^main: /);
    assert.match(await page.textContent("#details"), /Calls.*stays/s);
  },
);

inPage("source lines are labels on request", "sources.html", async (page) => {
  const label = () =>
    page.evaluate(() => {
      const { graph } = window.memtrack;
      return graph.labelText(graph.drawn.flat().find(({ block }) => graph.name(block) === "stays").block, 80);
    });
  assert.match(await label(), /^stays  2\.00 MB  .*program\.py:\d+/);
  await page.check("#sourceLabels");
  assert.match(await label(), /^kept\.append\(bytearray\(2_000_000\)\)  2\.00 MB  program\.py:\d+/);
});

inPage("the chart's values stand below it", "flamegraph.html", async (page) => {
  await page.hover("#chart", { position: { x: 300, y: 60 } });
  await page.waitForFunction(() =>
    /^Heap [\d.]+ \w+ since [\d.]+ sResident memory [\d.]+ \w+at [\d.]+ s$/.test(
      document.querySelector("#readout").textContent,
    ),
  );
  const [chart, readout] = await Promise.all(["#chart", "#readout"].map((id) => page.locator(id).boundingBox()));
  assert.ok(readout.y >= chart.y + chart.height);
});

inPage(
  "on a phone the controls are folded away, and a touch zooms",
  "flamegraph.html",
  async (page) => {
    assert.equal(await page.isVisible("#search"), false);
    await page.tap("#menu");
    assert.equal(await page.isVisible("#search"), true);
    await page.tap("#menu");
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing is cut off");
    assert.match(await page.textContent("#ownLines li:first-child"), /program\.py:\d+ only_in_base/);
    await page.tap("#ownLines li:first-child button");
    assert.match(await page.textContent("#details"), /only_in_base/);
    await page.tap("#back");
    await page.locator("#graphPane").scrollIntoViewIfNeeded();
    const block = await named(page, "main");
    const row = await page.evaluate(() => window.memtrack.graph.row);
    await page.tap("#graphPane", { position: { x: block.x + block.width / 2, y: block.depth * row + row / 2 } });
    assert.match(await page.textContent("#status"), /^main: /);
  },
  { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
);

inPage("keys move through the graph", "flamegraph.html", async (page) => {
  await page.focus("#graphPane");
  for (const key of ["Home", "ArrowDown", "ArrowDown", "Enter"]) await page.keyboard.press(key);
  assert.equal((await state(page)).zoom.length, 2);
  await page.keyboard.press("i");
  assert.equal((await state(page)).inverted, true);
  const theme = await page.getAttribute("html", "data-theme");
  await page.keyboard.press("t");
  assert.notEqual(await page.getAttribute("html", "data-theme"), theme);
});

inPage(
  "a link restores what was shown",
  "flamegraph.html",
  async (page) => {
    const { view, inverted, q } = await state(page);
    assert.deepEqual([view, inverted, q], [4, true, "load"]);
    assert.equal(await page.getAttribute("html", "data-theme"), "dark");
    assert.equal(await page.inputValue("#search"), "load");
  },
  { hash: "#view=4&inverted=true&q=load&theme=dark" },
);

inPage("a difference colours what changed", "diff.html", async (page) => {
  const change = async (name) => (await named(page, name)).change;
  assert.equal(await change("stays"), "same");
  assert.equal(await change("grows"), "grown4");
  assert.equal(await change("only_in_new"), "new");
  await page.selectOption("#colorBy", "total");
  assert.equal(await change("stays"), "same");
  await page.check("#inverted");
  assert.equal(await change("stays"), "same");
  assert.equal(await change("only_in_new"), "new");
});

inPage(
  "doubled is not new, moved is unchanged, and a renamed function changes nothing for its caller",
  "diff.html",
  async (page) => {
    const change = async (name) => (await named(page, name)).change;
    assert.equal(await change("doubles"), "grown4");
    // As many blocks of the size vanished with the old name.
    assert.equal(await change("new_name"), "same");
    assert.equal(await change("calls_renamed"), "same");
    await page.selectOption("#colorBy", "total");
    assert.equal(await change("calls_renamed"), "same");
    assert.equal(await change("nested"), "same");
    assert.equal(await change("new_name"), "same");
    assert.match(await page.textContent("#legend"), /absolute, nothing scaled/);
  },
);

inPage("a difference's tooltip has both sides, their difference and percent", "diff.html", async (page) => {
  const block = await named(page, "doubles");
  await page.hover("#graphPane", { position: { x: block.x + 3, y: block.depth * 19 + 9 } });
  const rows = await page.$$eval("#tooltip tr", (rows) =>
    rows.map((row) => [...row.cells].map((cell) => cell.textContent).join("|")),
  );
  assert.equal(rows[0], "|Base|New|Difference|Percent");
  assert.match(
    rows.find((row) => row.startsWith("Self|")),
    /^Self\|(.+)\|.+\|\+\1\|\+100\.0 %$/,
  );
});

inPage("a difference begins with whose lines changed most", "diff.html", async (page) => {
  assert.match(await page.textContent("#meaning"), /^Of both captures: /);
  const rows = await page.$$eval("#ownLines li", (rows) => rows.map((row) => row.textContent));
  const largest = ["+4.00 MBprogram.py grows", "+4.00 MBprogram.py only_in_new", "-3.00 MBprogram.py only_in_base"];
  assert.deepEqual(rows.slice(0, 3).sort(), largest.sort());
  // The blocks of the function that was renamed.
  assert.match(
    await page.textContent("#noOwnLines"),
    /^\d functions omitted, whose changes cancel out: .* of old_name, now .* of new_name\.$/,
  );
});

inPage("what a line gained is told of a function that gained", "replaced.html", async (page) => {
  const [row] = await page.$$eval("#ownLines li", (rows) => rows.map((row) => row.textContent));
  assert.match(row, /^\+2\.\d\d MBreplaced\.py encodes mostly via b16encode, base64\.py$/);
});

inPage("a difference of two runs of one program has no colours, and nobody changed", "again.html", async (page) => {
  assert.match(await page.textContent("#noOwnLines"), /^No function changed/);
  assert.equal((await page.$$("#ownLines li")).length, 0);
  for (const colorBy of ["own", "total"]) {
    await page.selectOption("#colorBy", colorBy);
    for (const name of ["stays", "grows", "nested"]) assert.equal((await named(page, name)).change, "same");
  }
  assert.match(await page.textContent("#owners"), /→/);
});

inPage("what was scaled is said", "scaled.html", async (page) => {
  assert.match(await page.textContent("#legend"), /base multiplied by 3\.0000, for 1 and 3 units of work/);
  assert.equal((await named(page, "stays")).change, "shrunk3");
  assert.equal((await named(page, "only_in_new")).change, "new");
});

inPage("what vanished has its own view, with its count of stacks", "diff.html", async (page) => {
  const expected = await report("diff");
  const text = await page.textContent("#vanishedText");
  assert.equal(Number(text.replace(/\D/g, "")), expected.vanished_stacks);
  await page.check("#vanished");
  assert.equal((await named(page, "only_in_base")).change, "gone");
  assert.equal((await named(page, "calls_renamed")).change, "same");
  assert.equal((await named(page, "old_name")).change, "gone");
  assert.equal(await named(page, "stays"), undefined);
});

inPage("two equal runs are grey, and nothing has vanished", "same.html", async (page) => {
  const changes = new Set((await drawn(page)).map((block) => block.change).filter(Boolean));
  assert.deepEqual([...changes], ["same"]);
  assert.equal(await page.isVisible("#vanishedLabel"), false);
});
