"""The library takes no more instructions for an allocation than it did: scripts/instructions has the loops."""

import os
import subprocess

import pytest

from conftest import REPOSITORY


def test_no_loop_takes_more_than_before(executable):
    command = REPOSITORY / "scripts" / "instructions"
    variables = {**os.environ, "MEMTRACK": str(executable)}
    done = subprocess.run([command], env=variables, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nIf it is meant to be so: scripts/instructions --update"
