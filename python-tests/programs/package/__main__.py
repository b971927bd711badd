"""Started by `-m package`: the same as the script."""

import runpy
import sys

print(__name__, __package__, sys.argv, __spec__.name)
runpy.run_module("surroundings", run_name="__main__", alter_sys=True)
