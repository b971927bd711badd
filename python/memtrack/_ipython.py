"""The magics of IPython and Jupyter: %%memtrack shows the page of a cell, %memtrack_leaks what an expression leaves.

Invariant: a cell does what it does without the magic: its names are the notebook's, its value is shown, and its errors
are its own.
"""

import argparse
import ast
import html
import json
import linecache
import os
import shlex
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NoReturn, Optional, Tuple, TypeVar

from memtrack._errors import CaptureWarning, Error, quietly
from memtrack._reading import read_output
from memtrack._spans import captures_of

if TYPE_CHECKING:
    from memtrack._test_limits import RecordedCall
    from memtrack._tracker import Tracker

_Magic = TypeVar("_Magic", bound=Callable[..., Any])
#: Options of pages that tables do not have.
_PAGES_ONLY = ("--inverted", "--embed-sources", "--open")
_CELL = """%%memtrack [options]: records the cell, and shows its page.

  -o FILE                     keep the capture
  -f, --force                 replace FILE
  --native                    record the stacks of native code, too
  --trace-python-allocators   record every Python object, not only the arenas that objects lie in
  --sample[=SIZE]             record a sample of the allocations, one in each SIZE on average
  --height PIXELS             the height of the page (default: 600)

All other options are those of `memtrack flamegraph`, such as --leaks, --temporary, --inverted, --own, --function TEXT.
"""
_LEAKS = """%memtrack_leaks [-r RUNS] expression: evaluates it several times, and shows what goes on growing.

  -r, --runs RUNS             how often (default: 5; the first is not counted)
  -n ROWS                     places that are shown (default: 10)
"""


class _Arguments(argparse.ArgumentParser):
    """Options of a magic: what is wrong is the magic's error, and does not end the kernel."""

    def error(self, message: str) -> NoReturn:
        # What argparse has caught says the same.
        raise Error(f"{message}\n\n{self.description}") from None


def load_ipython_extension(shell: Any) -> None:
    """Makes the magics known: `%load_ext memtrack`."""
    magics = _Magics(shell)
    shell.register_magic_function(magics.memtrack, "line_cell", "memtrack")
    shell.register_magic_function(magics.memtrack_leaks, "line", "memtrack_leaks")


def unload_ipython_extension(shell: Any) -> None:
    """Takes them away."""
    magics = shell.magics_manager.magics
    for kind, name in (("cell", "memtrack"), ("line", "memtrack"), ("line", "memtrack_leaks")):
        magics[kind].pop(name, None)


def _with_own_braces(magic: _Magic) -> _Magic:
    """Braces and dollars are the expression's own: as IPython's no_var_expand, which some versions lack."""
    setattr(magic, "_ipython_magic_no_var_expand", True)
    return magic


class _Magics:
    def __init__(self, shell: Any) -> None:
        from memtrack._test_limits import other_threads

        self.shell = shell
        # Those that save the history, answer the notebook, and the like.
        self.threads_of_kernel = other_threads()

    def memtrack(self, line: str, cell: Optional[str] = None) -> Any:
        """%%memtrack; as %memtrack, or without statements, it says how it is used."""
        __tracebackhide__ = True
        from memtrack._tracker import Tracker

        wanted, page_options = _cell_options(line)
        if cell is None:
            raise Error(_CELL)
        # What is wrong with the page's options is said before the cell runs.
        read_output(["flamegraph", *page_options, "--help"])
        statements, value = _compiled(self.shell, cell)
        with tempfile.TemporaryDirectory(prefix="memtrack-") as directory:
            path = os.path.abspath(wanted.output or os.path.join(directory, "cell.bin"))
            if os.path.lexists(path) and not wanted.force:
                raise Error(f"{path}: file exists; replace it with -f, or name another")
            tracker = Tracker(
                path,
                native_traces=wanted.native,
                trace_python_allocators=wanted.trace_python_allocators,
                sample=wanted.sample,
                allocation_timestamps=True,
                follow_fork=True,
                overwrite=wanted.force,
            )
            tracker.__enter__()
            try:
                result = run_cell(self.shell, statements, value)
            finally:
                _end(tracker)
                # That of a cell which fails, too.
                _show_page(directory, tracker, page_options, wanted.height, self._cells())
        return result

    @_with_own_braces
    def memtrack_leaks(self, line: str) -> None:
        """%memtrack_leaks"""
        __tracebackhide__ = True
        from memtrack._test_limits import LeakLimit, RecordedCall, call_test

        options = _Arguments(prog="%memtrack_leaks", description=_LEAKS, usage="", add_help=False)
        options.add_argument("-r", "--runs", type=int, default=5)
        options.add_argument("-n", type=int, default=10, dest="rows")
        options.add_argument("expression", nargs=argparse.REMAINDER)
        wanted = options.parse_args(line.split(" "))
        expression = " ".join(wanted.expression).strip()
        if not expression or wanted.runs < 1:
            raise Error(f"expected an expression, and at least one run\n\n{_LEAKS}")
        code = self.shell.compile(ast.parse(expression, mode="eval"), "<expression>", "eval")
        limit = LeakLimit(0, repeat=wanted.runs)
        with tempfile.TemporaryDirectory(prefix="memtrack-") as directory:
            options_of_recording = {"trace_python_allocators": True}
            path = os.path.join(directory, "leaks.bin")
            recorded = RecordedCall(path, [limit], os.getcwd(), [], options_of_recording, self.threads_of_kernel)
            with recorded.started():
                for _ in recorded.numbers():
                    call_test(eval, (code, self.shell.user_ns), {})
            print("\n".join(_leaks_text(recorded, limit, expression, wanted.rows, self._cell)))

    def _cell(self, file: str) -> Optional[str]:
        """The name of the cell that is compiled as this file, as in tracebacks; where IPython tells it."""
        known = getattr(self.shell.compile, "format_code_name", lambda _: None)(file)
        return known and " ".join(known)


    def _cells(self) -> Dict[str, str]:
        """The names of all cells, by their files."""
        named = ((file, self._cell(file)) for file in list(linecache.cache))
        return {file: name for file, name in named if name}


def _leaks_text(
    recorded: "RecordedCall", limit: Any, expression: str, rows: int, cell: Callable[[str], Optional[str]]
) -> List[str]:
    from memtrack._holders import holders_text, older_threads
    from memtrack._sizes import size_text

    with quietly():
        growing, _ = limit.growing(recorded)
    grown, runs = growing.bytes, len(recorded.runs)
    if not grown:
        return [f"{expression}: nothing grows in {runs} runs" if runs > 1 else f"{expression}: leaves nothing in one run"]
    how = f"grows by {size_text(grown)} with each of {runs} runs" if runs > 1 else f"leaves {size_text(grown)} in one run"
    if growing.differs:
        how += ", by stacks that differ each time"
    text = [f"{expression}: {how}", *holders_text(growing.holdings, recorded.root, rows, cell)]
    older = older_threads(growing.holdings)
    return [*text, f"by threads that are older than the expression: {older}"] if older else text


def _cell_options(line: str) -> Tuple[argparse.Namespace, List[str]]:
    """The options of the recording, and those of the page."""
    options = _Arguments(prog="%%memtrack", description=_CELL, usage="", add_help=False, allow_abbrev=False)
    options.add_argument("-o", "--output")
    options.add_argument("-f", "--force", action="store_true")
    options.add_argument("--native", action="store_true")
    options.add_argument("--trace-python-allocators", action="store_true")
    options.add_argument("--sample", nargs="?", const=True)
    options.add_argument("--height", type=int, default=600)
    options.add_argument("-h", "--help", action="store_true")
    try:
        wanted, others = options.parse_known_args(shlex.split(_without_comment(line)))
    except ValueError as error:
        raise Error(f"{error}: {line}") from None
    if wanted.help:
        raise Error(_CELL)
    if others and not others[0].startswith("-"):
        options.error(f"{others[0]}: expected options only; what is recorded is the rest of the cell")
    return wanted, others


def _without_comment(line: str) -> str:
    """Up to a word that begins with `#`: one within a word is part of it, as in `--from mark:step#2`."""
    quote, before = "", " "
    for at, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#" and before.isspace():
            return line[:at]
        before = character
    return line


def _compiled(shell: Any, cell: str) -> Tuple[Any, Optional[Any]]:
    """The statements of a cell, and its last expression, whose value is shown."""
    __tracebackhide__ = True
    source = shell.transform_cell(cell)
    name = shell.compile.cache(source, shell.execution_count)
    tree = shell.compile.ast_parse(source, filename=name)
    tree = shell.transform_ast(tree)
    value = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = tree.body.pop()
        value = compile(ast.Expression(last.value), name, "eval", flags=shell.compile.flags)
    return compile(tree, name, "exec", flags=shell.compile.flags), value


def run_cell(shell: Any, statements: Any, value: Optional[Any]) -> Any:
    """Runs a cell; gives its value."""
    __tracebackhide__ = True
    exec(statements, shell.user_ns)
    return None if value is None else eval(value, shell.user_ns)


def _end(tracker: "Tracker") -> None:
    """Ends the recording. What the cell has done to the filters of warnings is to last, so they are left alone."""
    try:
        tracker.__exit__(None, None, None)
    except (Error, CaptureWarning) as error:
        print(f"memtrack: {error}", file=sys.stderr)


def _show_page(directory: str, tracker: "Tracker", options: List[str], height: int, cells: Dict[str, str]) -> None:
    """Shows the page, or says why there is none: the cell has its value or its error all the same."""
    try:
        with quietly():
            page, table = _page(directory, captures_of(tracker), options, cells)
    except (Error, OSError) as error:
        print(f"memtrack: error: {error}", file=sys.stderr)
        return
    from IPython.display import display  # type: ignore[import-not-found,unused-ignore] # pyright: ignore[reportMissingImports]

    display(  # type: ignore[no-untyped-call,unused-ignore]
        {"text/html": _frame(page, height), "text/plain": table}, raw=True
    )


def _page(directory: str, captures: List[str], options: List[str], cells: Dict[str, str]) -> Tuple[str, str]:
    """The page of captures, and a table for terminals, which show no page. The captures may be gone by the time that it is read."""
    path, names = os.path.join(directory, "page.html"), os.path.join(directory, "cells.json")
    with open(names, "w", encoding="utf-8") as file:
        json.dump(cells, file)
    read_output(["flamegraph", *options, "-o", path, "--", *captures], MEMTRACK_CELLS=names)
    table = read_output(["table", *_of_tables(options), "--color", "never", "--", *captures], MEMTRACK_CELLS=names)
    with open(path, encoding="utf-8") as file:
        return file.read(), table.decode().rstrip()


def _of_tables(options: List[str]) -> List[str]:
    """The options of a page that a table has, too."""
    options_of_pages = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in _PAGES_ONLY:
        options_of_pages.add_argument(name, action="store_true")
    return options_of_pages.parse_known_args(options)[1]


#: Tells the page which theme the notebook has: that of JupyterLab, of VS Code, or of the system.
_SCHEME = """
const frame = document.currentScript.previousElementSibling, body = document.body;
const isDark = () => {
  const lab = body.dataset.jpThemeLight, code = body.dataset.vscodeThemeKind;
  if (lab) return lab === "false";
  if (code) return /dark|high-contrast$/.test(code);
  return matchMedia("(prefers-color-scheme: dark)").matches;
};
const follow = () => frame.contentWindow?.postMessage({ memtrackTheme: isDark() ? "dark" : "light" }, "*");
// The page listens when it has unpacked its data, some time after it is loaded.
frame.addEventListener("load", () => [0, 100, 300, 1000, 3000].forEach((ms) => setTimeout(follow, ms)));
new MutationObserver(follow).observe(body, { attributes: true });
"""


def _frame(content: str, height: int) -> str:
    """The page in a frame of its own, which can neither see nor change the notebook."""
    return (
        f'<div><iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{height}px;border:0" '
        f'title="memtrack" srcdoc="{html.escape(content)}"></iframe><script>{{{_SCHEME}}}</script></div>'
    )
