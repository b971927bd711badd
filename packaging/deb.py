"""The Debian package: the tree below /usr, the library in the multiarch directory, and what Debian's policy asks for.

Invariant: it depends on the glibc that its files need, which is read from them, so one package serves every release.
"""

import hashlib
import textwrap
from datetime import datetime, timezone

from checkout import DIST, MACHINE, ROOT, WORK, empty, epoch, need, run, version, write
from programs import environment, glibc_needed
from tree import documents, install, packed

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
# Of the packaging; a number after the version says that the sources are not Debian's own.
REVISION = 1
MAINTAINER = "the memtrack authors <memtrack@example.org>"
TEMPLATES = ROOT / "packaging" / "debian"


def build(program, library):
    need("dpkg-deb", "dpkg")
    full = f"{version()}-{REVISION}"
    root = empty(WORK / "deb")
    usr = root / "usr"
    install(usr, program, library, f"lib/{MACHINE}-linux-gnu/memtrack", zsh="share/zsh/vendor-completions")
    documents(usr / "share/doc/memtrack")
    write(usr / "share/doc/memtrack/changelog.Debian.gz", packed(changelog(full).encode()))
    write(usr / "share/doc/memtrack/changelog.gz", packed((ROOT / "CHANGELOG.md").read_bytes()))
    write(usr / "share/doc/memtrack/copyright", (TEMPLATES / "copyright").read_text())
    write(usr / "share/lintian/overrides/memtrack", (TEMPLATES / "lintian-overrides").read_text())
    write(root / "DEBIAN/md5sums", md5sums(root))
    write(root / "DEBIAN/control", control(full, root, [program, library]))
    for path in [root, *root.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    target = DIST / f"memtrack_{full}_{ARCHITECTURE[MACHINE]}.deb"
    # xz, since the dpkg of bullseye knows nothing newer.
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, target, env=environment(), stdout=-3)
    return target


def control(full, root, files):
    glibc = ".".join(map(str, max(glibc_needed(file) for file in files)[:2]))
    size = sum(-(-path.stat().st_size // 1024) if path.is_file() else 1 for path in root.glob("usr/**/*"))
    return (
        (TEMPLATES / "control")
        .read_text()
        .format(version=full, architecture=ARCHITECTURE[MACHINE], maintainer=MAINTAINER, size=size, glibc=glibc)
    )


def changelog(full):
    """One entry: the history of the program itself is in CHANGELOG.md."""
    date = datetime.fromtimestamp(epoch(), timezone.utc).strftime("%a, %d %b %Y %H:%M:%S +0000")
    return textwrap.dedent(f"""\
        memtrack ({full}) unstable; urgency=medium

          * memtrack {version()}; what is new is in changelog.gz.

         -- {MAINTAINER}  {date}
        """)


def md5sums(root):
    files = sorted(path for path in root.glob("usr/**/*") if path.is_file())
    return "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files)
