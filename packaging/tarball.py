"""The tarball: the tree, and `install.sh`, which copies it to a PREFIX and can take it away again."""

from checkout import DIST, MACHINE, ROOT, WORK, archive, empty, version
from tree import documents, install, place


def build(program, library):
    name = f"memtrack-{version()}-{MACHINE}-linux"
    root = empty(WORK / "tarball") / name
    install(root, program, library, "lib/memtrack")
    documents(root / "share/doc/memtrack")
    for licence in ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md"]:
        place(ROOT / licence, root / "share/doc/memtrack" / licence, 0o644)
    place(ROOT / "packaging/install.sh", root / "install.sh", 0o755)
    target = DIST / f"{name}.tar.gz"
    archive(root, target)
    return target
