// Pages in a real browser: what the tests open them with, and what they look at. Needs in the environment: MEMTRACK_PAGES,
// the directory of the pages, and CHROMIUM, the browser. The tests are started by scripts/test-browser.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { join } from "node:path";
import { readFile } from "node:fs/promises";
import { chromium } from "playwright-core";

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
/** Milliseconds in which anything has happened on a busy machine; what takes longer hangs. */
export const PATIENCE = 300_000;
export let browser;

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: FLAGS, timeout: PATIENCE });
});
after(() => browser?.close());

/** Opens a page, runs the test in it, and fails on any message, error or request. */
export function inPage(name, file, run, options = {}) {
  test(name, async () => {
    const context = await browser.newContext({
      viewport: { width: 1280, height: 800 },
      acceptDownloads: true,
      ...options,
    });
    context.setDefaultTimeout(PATIENCE);
    const page = await context.newPage(),
      complaints = [];
    const address = pathToFileURL(join(process.env.MEMTRACK_PAGES, file)).href;
    page.on("console", (message) => complaints.push(message.text()));
    page.on("pageerror", (error) => complaints.push(error.stack));
    page.on("request", (request) => {
      const own = request.url().startsWith(address) || /^(data|blob):/.test(request.url());
      if (!own) complaints.push(`request of ${request.url()}`);
    });
    await page.goto(address + (options.hash || ""));
    await page.waitForFunction(() => window.memtrack?.graph.drawn.length > 0);
    await run(page);
    await context.close();
    assert.deepEqual(complaints, []);
  });
}

/** The blocks that are drawn, with their names and values. */
export const drawn = (page) =>
  page.evaluate(async () => {
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const { graph } = window.memtrack;
    return graph.drawn.flat().map(({ block, x, width }) => ({
      name: graph.name(block),
      value: block.value,
      depth: block.depth,
      x,
      width,
      change: graph.model.diff && block.frame >= 0 ? graph.change(block) : null,
    }));
  });
export const named = async (page, name) => (await drawn(page)).find((block) => block.name === name);
export const pick = (page, group, text) => page.click(`#${group} button:text-is("${text}")`);
/** Shows what imports and arenas hold where the view leaves it out. */
export const withEverything = (page) => page.evaluate(() => window.memtrack.set({ imports: true, arenas: true }));
export const state = (page) => page.evaluate(() => window.memtrack.state);

/** Clicks on a block. */
export async function click(page, name) {
  const block = await named(page, name);
  await page.click("#graphPane", { position: { x: block.x + Math.min(10, block.width / 2), y: block.depth * 19 + 9 } });
}

/** What a report in JSON says, by its name among the pages. */
export const report = async (name) =>
  JSON.parse(await readFile(join(process.env.MEMTRACK_PAGES, `${name}.json`), "utf8"));
