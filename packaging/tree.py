"""The directory tree that deb and tarball install: program, library, manual pages, completions, headers, documents.

Why one: what is true of one package is true of the other. Invariant: only paths differ, and those are arguments.
"""

import io
import shutil
import subprocess
import tempfile
from pathlib import Path

from checkout import ROOT, command_of, compressed, output, write
from components import notices


def install(root, program, library, library_directory, zsh="share/zsh/site-functions"):
    """Fills the directory `root`, which stands for /usr or for a PREFIX."""
    place(program, root / "bin/memtrack", 0o755)
    place(library, root / library_directory / "libmemtrack_shim.so", 0o644)
    shells = {"bash": "share/bash-completion/completions/memtrack", "zsh": f"{zsh}/_memtrack"}
    shells["fish"] = "share/fish/vendor_completions.d/memtrack.fish"
    for shell, path in shells.items():
        write(root / path, output(*command_of(program), "completions", shell))
    manual_pages(program, root / "share/man/man1")
    for header in sorted((ROOT / "include").iterdir()):
        place(header, root / "include" / header.name, 0o644)


def place(source, target, mode):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def manual_pages(program, target):
    with tempfile.TemporaryDirectory() as directory:
        output(*command_of(program), "man", directory, stderr=subprocess.DEVNULL)
        for page in sorted(Path(directory).iterdir()):
            write(target / f"{page.name}.gz", packed(page.read_bytes()))


def documents(target):
    """What a reader may want beside the program, but the licences: each package has its own place for them."""
    place(ROOT / "README.md", target / "README.md", 0o644)
    write(target / "third-party-notices.gz", packed(notices().encode()))


def packed(content):
    buffer = io.BytesIO()
    with compressed(buffer) as stream:
        stream.write(content)
    return buffer.getvalue()
