"""`python -m memtrack`: the program, which records scripts with this interpreter unless `--python` names another."""

import os
import sys
from typing import List

from memtrack import find_program


def _arguments(given: List[str]) -> List[str]:
    """The program's arguments. Without `--python` it takes `python3` of PATH, which may be another interpreter.

    Of several it takes the last one. Whether there is one is not looked for: it may be an option of the program that is run.
    """
    if given[:1] == ["run"] and sys.executable:
        return ["run", "--python", sys.executable] + given[1:]
    return given


def main() -> None:
    try:
        program = find_program()
        os.execv(program, [program] + _arguments(sys.argv[1:]))
    except OSError as error:
        sys.exit(f"memtrack: {error}")


if __name__ == "__main__":
    main()
