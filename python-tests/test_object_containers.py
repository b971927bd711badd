"""`memtrack objects PID`: containers with so many items that they are read in parts, whose items lie anywhere in memory."""

import json
import subprocess

import pytest

from conftest import OBJECT_VERSIONS, flat, interpreter_path

COUNT = 300_000
PROGRAM = f"""
import random, sys, types
class Mark: pass
class InAll: pass
numbers = [number + 0.5 for number in range({COUNT})]
random.Random(3).shuffle(numbers)
module = sys.modules["app_big"] = types.ModuleType("app_big")
mark, last = InAll(), {COUNT} - 1
module.LIST = [[number] for number in numbers]
module.LIST[last] = Mark()
module.TUPLE = (*numbers[:last], Mark())
module.DICT = dict.fromkeys(numbers)
module.DICT["last"] = Mark()
module.SET = {{*numbers, Mark()}}
module.SAME = [mark] * {COUNT} + [Mark()]
module.CHAIN = None
for number in numbers[:30_000]:
    module.CHAIN = [number, module.CHAIN]
# The collector's lists have none of these: they are unknown when the list is read.
words = ["%090d" % number for number in range(265_000)]
random.Random(4).shuffle(words)
module.WORDS = words + [words[17], words[3]] * 100
del numbers, mark, words
print(id(module.WORDS[17]), flush=True)
sys.stdin.readline()
"""


# A copy of a program that runs is read by one thread, the program itself by all.
@pytest.mark.parametrize("options", [[], ["--hold"]], ids=["copied", "held"])
@pytest.mark.parametrize("version", OBJECT_VERSIONS)
def test_items_of_all_parts_are_found_and_called_by_their_numbers(executable, tmp_path, version, options):
    script = tmp_path / "app.py"
    script.write_text(PROGRAM)
    command = [str(executable), "objects", "--json", *options]
    with subprocess.Popen(
        flat([interpreter_path(version), script]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        address = hex(int(process.stdout.readline()))
        told = {}
        for name in ("__main__.Mark", "__main__.InAll", address):
            why = [*command, "--why", name, str(process.pid)]
            told[name.rpartition(".")[2]] = json.loads(subprocess.run(why, capture_output=True, check=True).stdout)
        process.stdin.write("\n")
    assert told["Mark"]["unreadable"] == 0
    examples = {row["path"] for row in told["Mark"]["why"]}
    assert examples == {
        f"app_big.LIST[{COUNT - 1}]",
        f"app_big.TUPLE[{COUNT - 1}]",
        "app_big.DICT['last']",
        "app_big.SET (a member)",
        f"app_big.SAME[{COUNT}]",
    }
    assert [(row["count"], row["path"]) for row in told["InAll"]["why"]] == [(1, "app_big.SAME[0]")]
    # The second part, which is short, has it, too.
    assert [row["path"] for row in told[address]["why"]] == ["app_big.WORDS[17]"]
    counts = {row["type"]: row["count"] for row in told["Mark"]["types"]}
    assert COUNT <= counts["builtins.float"] < COUNT + 1000
    assert COUNT - 1 + 30_000 <= counts["builtins.list"] < COUNT + 31_000
    assert counts["__main__.Mark"] == 5 and counts["__main__.InAll"] == 1
