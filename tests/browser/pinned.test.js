// What a page shows of resident memory and of objects: classes over time, which call paths keep pages, types below call paths.

import assert from "node:assert/strict";
import { drawn, inPage, named, pick, report, withEverything } from "./browser.js";

inPage("the view of pinned pages leads to those whose blocks keep them", "pinned.html", async (page) => {
  const tree = await report("pinned");
  await pick(page, "views", "Pinned");
  await withEverything(page);
  assert.equal((await drawn(page))[0].value, tree.total.bytes);
  const session = await named(page, "session");
  assert.ok(session.value > 0.9 * tree.total.bytes && session.value > 15e6, session.value);
  assert.match(await page.textContent("#meaning"), /stack alone keep\. Blocks of one stack each, \d.* old, \d/);
  assert.match(await page.textContent("#ownLinesTitle"), /Pinned pages by line/);
});

inPage("the chart has the classes of resident memory as bands below its line", "pinned.html", async (page) => {
  const { classes, time, names, waits } = await page.evaluate(() => {
    const { bands, last } = window.memtrack.chart;
    const names = bands.classes.map(({ name }) => name);
    return { classes: bands.classes, time: bands.time, names, waits: last - 1.1e6 };
  });
  assert.ok(time.length > 1 && names.includes("live") && names.includes("slack") && !names.includes("memtrack"));
  for (let at = 0; at < time.length; at++) {
    let sum = 0;
    for (const { bytes, low, high } of classes) {
      assert.deepEqual([low[at], high[at]], [sum, sum + bytes[at]]);
      sum += bytes[at];
    }
    // The lines are of other moments, some milliseconds away: while the program waits, they are the same.
    if (time[at] < waits) continue;
    const rss = await page.evaluate((us) => {
      const { rss } = window.memtrack.chart;
      return rss.bytes[rss.at(us)];
    }, time[at]);
    assert.ok(Math.abs(sum - rss) < 0.05 * rss, `${time[at]}: ${sum} ${rss}`);
  }
  assert.equal(await page.locator("#bands span").count(), names.length + 1);
  const chart = await page.locator("#chart").boundingBox();
  await page.mouse.move(chart.x + chart.width * 0.8, chart.y + 60);
  await page.waitForFunction(() => /live \d.*slack \d.*pages at \d/.test(document.querySelector("#bands").textContent));
});

inPage("a class is shown no longer than resident memory is near what the account has", "pinned.html", async (page) => {
  const { time, until, end, totals, rss } = await page.evaluate(() => {
    const { bands, last, rss } = window.memtrack.chart;
    return { time: bands.time, until: bands.until, end: last, totals: bands.classes.at(-1).high, rss };
  });
  const isNear = (at, bytes) => Math.abs(bytes - totals[at]) <= totals[at] / 10 + 4e6;
  for (let at = 0; at < time.length; at++) {
    const next = time[at + 1] ?? Math.max(time[at], end);
    assert.ok(time[at] <= until[at] && until[at] <= next);
    const within = rss.bytes.filter((_, step) => rss.time[step] >= time[at] && rss.time[step] < until[at]);
    assert.ok(within.every((bytes) => isNear(at, bytes)));
    if (until[at] === next) continue;
    assert.ok(!isNear(at, rss.bytes[rss.time.indexOf(until[at])]));
  }
  // What the recording has of them is not the same each time.
  const departures = await page.evaluate(() => {
    const { bands } = window.memtrack.chart;
    const rss = { time: [0, 10, 20, 30], bytes: [1e8, 1.09e8, 2e8, 1e8] };
    const departure = (from, next, bytes) => bands.departure(rss, from, next, bytes);
    return [departure(5, 40, 1e8), departure(5, 15, 1e8), departure(25, 40, 1e8), departure(5, 40, 2e8)];
  });
  assert.deepEqual(departures, [20, 15, 40, 10]);
});

inPage("the view of objects has types below the stacks that made them", "objects.html", async (page) => {
  await pick(page, "views", "Objects");
  const type = await named(page, "__main__.Session objects");
  assert.equal(type.value, (await report("objects")).rows.find((row) => row.function === type.name).bytes);
  assert.match(await page.textContent("#ownLinesTitle"), /Objects by line/);
  await page.keyboard.press("i");
  assert.equal((await named(page, "__main__.Session objects")).depth, 1, "inverted, types come first");
});

inPage(
  "without pinned pages there is no view of them, and without a picture none of objects",
  "unaccounted.html",
  async (page) => {
    for (const view of ["Pinned", "Objects"])
      assert.equal(await page.locator(`#views button:text-is("${view}")`).count(), 0);
  },
);
