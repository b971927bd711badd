"""Wheel and sdist. maturin makes the wheel from pyproject.toml; the sdist is the staged source with the wheel's
metadata.

Invariant: both are made of the files that git knows, and LICENSE-THIRD-PARTY.
"""

import shutil
import subprocess
import zipfile

from checkout import DIST, MACHINE, WORK, archive, empty, run, version, write
from components import notices, write_bill_of_materials
from programs import PLATFORM, environment, library, maturin_wheel, program_of, source, tools


def build():
    """The wheel, with the library in the program."""
    embedded = library()
    directory = source()
    write(directory / "LICENSE-THIRD-PARTY", notices())
    bill = write_bill_of_materials(WORK)
    wheel = maturin_wheel(directory, "--sbom-include", bill, MEMTRACK_EMBED_SHIM=str(embedded))
    program_of(wheel, WORK / "embedded-shim")
    # maturin adds the older name of the same tag.
    rename = [tools() / "bin/wheel", "tags", "--remove", "--platform-tag", f"{PLATFORM}_{MACHINE}", wheel]
    run(*rename, env=environment(), stdout=subprocess.DEVNULL)
    target = DIST / f"memtrack-{version()}-py3-none-{PLATFORM}_{MACHINE}.whl"
    shutil.copyfile(wheel.parent / target.name, target)
    return target


def build_sdist(wheel):
    """The sdist: what pip needs is PKG-INFO, which is the wheel's METADATA."""
    root = empty(WORK / "sdist") / f"memtrack-{version()}"
    shutil.copytree(source(), root, ignore=shutil.ignore_patterns("__pycache__"))
    write(root / "LICENSE-THIRD-PARTY", notices())
    with zipfile.ZipFile(wheel) as content:
        write(root / "PKG-INFO", content.read(f"memtrack-{version()}.dist-info/METADATA"))
    target = DIST / f"{root.name}.tar.gz"
    archive(root, target)
    return target
