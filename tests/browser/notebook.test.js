// The magics in a real JupyterLab: the page of a cell in the notebook, its theme, and errors. Needs in the environment:
// CHROMIUM, the browser; JUPYTER_LAB, the program; MEMTRACK, memtrack's path; MEMTRACK_PACKAGE, the directory of
// the Python package.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { PATIENCE, browser } from "./browser.js";

const CELLS = [
  "%load_ext memtrack",
  "%%memtrack --height 400\ndef load(n):\n    return [bytearray(1_000_000) for _ in range(n)]\nkept = load(5)\nlen(kept)",
  "%%memtrack --height 400\nbefore = bytearray(2_000_000)\ndef divide():\n    return len(before) / 0\ndivide()",
  "%memtrack_leaks -r 5 kept.append(bytes(100_000))",
  "len(before), len(kept)",
];

let directory, server, address;

/** A notebook of these cells, as its file has it. */
const notebook = (cells) => ({
  cells: cells.map((source, at) => ({
    id: `cell-${at}`,
    cell_type: "code",
    execution_count: null,
    // Those behind a cell that fails are run, too.
    metadata: { tags: ["raises-exception"] },
    outputs: [],
    source,
  })),
  metadata: { kernelspec: { name: "python3", display_name: "Python 3", language: "python" } },
  nbformat: 4,
  nbformat_minor: 5,
});

/** Starts JupyterLab on a free port of the loopback interface; gives its address with its token. */
async function start() {
  const options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", `--ServerApp.root_dir=${directory}`];
  const own = Object.fromEntries(
    ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "JUPYTERLAB_SETTINGS_DIR"].map(
      (name) => [name, join(directory, ".own", name)],
    ),
  );
  server = spawn(process.env.JUPYTER_LAB, options, {
    env: { ...process.env, ...own, PYTHONPATH: process.env.MEMTRACK_PACKAGE, JUPYTER_PREFER_ENV_PATH: "1" },
    stdio: ["ignore", "ignore", "pipe"],
  });
  const hangs = setTimeout(() => server.kill("SIGKILL"), PATIENCE);
  server.once("exit", () => clearTimeout(hangs));
  const said = [];
  for await (const line of createInterface({ input: server.stderr })) {
    said.push(line);
    const found = line.match(/http:\/\/127\.0\.0\.1:\d+\/lab\?token=\w+/);
    if (found) {
      clearTimeout(hangs);
      return new URL(found[0]);
    }
  }
  throw new Error(`JupyterLab has ended:\n${said.join("\n")}`);
}

before(async () => {
  directory = await mkdtemp(join(tmpdir(), "memtrack-notebook-"));
  await writeFile(join(directory, "work.ipynb"), JSON.stringify(notebook(CELLS)));
  address = await start();
});
after(async () => {
  if (server?.exitCode === null) {
    const ended = new Promise((done) => server.once("exit", done));
    server.kill("SIGTERM");
    await ended;
  }
  await rm(directory, { recursive: true, force: true, maxRetries: 5 });
});

/** Chooses an entry of JupyterLab's menus. */
async function choose(page, ...names) {
  for (const [at, name] of names.entries()) {
    const label = at === 0 ? ".lm-MenuBar-itemLabel" : ".lm-Menu-itemLabel";
    const entry = page.locator(`${label}:text-is("${name}")`).last();
    await (at === 0 || at === names.length - 1 ? entry.click() : entry.hover());
  }
}

/** What is to be seen of a page: its blocks, its size, and its text where there are none. */
const seen = () => ({
  blocks: window.memtrack?.graph.drawn.length ?? 0,
  size: [innerWidth, innerHeight],
  text: document.body?.innerText.slice(0, 200),
});

/**
 * The page in the output of a cell. It is scrolled to and looked for again each time, since JupyterLab takes cells out of
 * the document that it has scrolled away, and puts new frames in.
 */
async function pageOf(cell) {
  const element = cell.locator("iframe[title=memtrack]");
  const end = Date.now() + PATIENCE;
  let last = "no frame";
  for (; Date.now() < end; await new Promise((done) => setTimeout(done, 200))) {
    try {
      await element.scrollIntoViewIfNeeded({ timeout: 5_000 });
      const frame = await (await element.elementHandle({ timeout: 5_000 })).contentFrame();
      const found = await Promise.race([frame.evaluate(seen), new Promise((done) => setTimeout(done, 5_000))]);
      if (found?.blocks > 0) return frame;
      last = JSON.stringify(found ?? "the frame does not answer");
    } catch (error) {
      last = error.message;
    }
  }
  throw new Error(`the page of a cell is not drawn: ${last}`);
}

const namesIn = (frame) =>
  frame.evaluate(() => window.memtrack.graph.drawn.flat().map(({ block }) => window.memtrack.graph.name(block)));
/** Asks at intervals, not when frames are painted: the page may be out of view. */
const themeIn = (frame, theme) =>
  frame.waitForFunction((theme) => window.memtrack.theme === theme, theme, { polling: 100 });

test("cells in JupyterLab", async () => {
  // So high that all cells are in view: those outside are not drawn.
  const context = await browser.newContext({ viewport: { width: 1400, height: 2400 } });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  await page.goto(`${address.origin}/lab/tree/work.ipynb${address.search}`);
  await page.locator(".jp-Notebook .jp-CodeCell").first().waitFor();
  await page.locator(".jp-NotebookPanel-toolbar").getByText("Python 3").waitFor();
  // JupyterLab forgets the cells that it was told to run before the kernel answered.
  await page.locator("#jp-main-statusbar").getByText("| Idle").waitFor();
  await choose(page, "Run", "Run All Cells");
  const cells = page.locator(".jp-Notebook .jp-CodeCell");
  const output = (at) => cells.nth(at).locator(".jp-OutputArea-output");

  await cells.nth(4).getByText("(2000000, 10)", { exact: true }).waitFor();
  const frame = await pageOf(cells.nth(1));
  assert.ok((await namesIn(frame)).includes("load"), "the cell's function is drawn");
  assert.match((await output(1).allTextContents()).join("\n"), /\b5\b/, "the cell's value is shown");
  const sandbox = await frame.evaluate(() => {
    try {
      return Boolean(window.parent.document);
    } catch (error) {
      return error.name;
    }
  });
  assert.equal(sandbox, "SecurityError", "the page cannot see the notebook");

  const failed = (await output(2).allTextContents()).join("\n");
  assert.match(failed, /ZeroDivisionError/);
  assert.doesNotMatch(failed, /_ipython\.py/);
  assert.ok((await namesIn(await pageOf(cells.nth(2)))).length > 0, "the page of a cell that fails is shown");
  const leaks = (await output(3).allTextContents()).join("\n");
  assert.match(leaks, /grows by 100 kB with each of 5 runs/);

  assert.equal(await page.getAttribute("body", "data-jp-theme-light"), "true");
  await themeIn(frame, "light");
  await choose(page, "Settings", "Theme", "JupyterLab Dark");
  await page.waitForFunction(() => document.body.dataset.jpThemeLight === "false");
  await themeIn(await pageOf(cells.nth(1)), "dark");
  await context.close();
});
