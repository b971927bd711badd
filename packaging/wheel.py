"""Wheel and sdist. maturin makes the wheel from pyproject.toml; the sdist is the staged source with the wheel's
metadata.

Invariant: both are made of the files that git knows, and LICENSE-THIRD-PARTY.
"""

import shutil
import subprocess
import zipfile

from checkout import DIST, MACHINE, WORK, archive, empty, run, version, write
from components import notices, write_bill_of_materials
from programs import GLIBC, PROFILE, TARGET, checked, environment, library, source, tools

PLATFORM = f"manylinux_{GLIBC[0]}_{GLIBC[1]}"


def build():
    """The wheel, with the library in the program."""
    embedded = library()
    directory = source()
    write(directory / "LICENSE-THIRD-PARTY", notices())
    made = empty(WORK / "wheel")
    bill = write_bill_of_materials(WORK)
    command = ["build", "--zig", "--compatibility", PLATFORM, "--auditwheel", "check", "--target", TARGET]
    command += ["--profile", PROFILE, "--sbom-include", bill, "--out", made]
    run(tools() / "bin/maturin", *command, cwd=directory, env=environment(MEMTRACK_EMBED_SHIM=str(embedded)))
    # maturin adds the older name of the same tag.
    (wheel,) = made.glob("*.whl")
    rename = [tools() / "bin/wheel", "tags", "--remove", "--platform-tag", f"{PLATFORM}_{MACHINE}", wheel]
    run(*rename, env=environment(), stdout=subprocess.DEVNULL)
    wheel = made / f"memtrack-{version()}-py3-none-{PLATFORM}_{MACHINE}.whl"
    with zipfile.ZipFile(wheel) as content:
        checked(content.extract(f"memtrack-{version()}.data/scripts/memtrack", WORK / "wheel"))
    shutil.copyfile(wheel, DIST / wheel.name)
    return DIST / wheel.name


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
