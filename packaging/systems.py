"""Installs every artifact in clean systems, does the main job there, removes it, and compares what is left.

Why: a package is right when it works where nobody has built it. The systems are Debian's, unpacked by debootstrap,
with python3 and without a compiler; each is copied for a test and thrown away. Invariant: a test that cannot be made
is a failure, with what is missing, and no pass.
"""

import os
import shutil
import subprocess
from pathlib import Path

from checkout import DIST, MACHINE, ROOT, WORK, Failure, empty, need, output, run, say, version

SYSTEMS = ["bullseye", "bookworm", "trixie", "sid"]
PACKAGES = "python3,python3-venv"
# Where a system gets the artifact and the job, and what it writes; all else is compared.
EXCHANGE = "tmp/memtrack-test"
# Mounted or written by the system itself.
APART = ("proc", "sys", "dev", EXCHANGE)
# dpkg's own notes of what it did.
NOTES = {"var/log/dpkg.log", "var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend", "var/lib/dpkg/triggers/Lock"}


def test_all(artifacts, systems=None):
    """Tests artifacts (by kind) in every system; a Failure names all that went wrong."""
    able()
    wrong = []
    for name in systems or SYSTEMS:
        root = copied(system(name))
        for kind, artifact in artifacts.items():
            try:
                say(f"{name}: {kind}: {in_system(root, kind, artifact)}")
            except Failure as failure:
                say(f"{name}: {kind}: {failure}")
                wrong.append(f"{kind} in {name}")
        shutil.rmtree(root)
    if wrong:
        raise Failure(f"failed: {', '.join(wrong)}")


def able():
    need("debootstrap", "debootstrap")
    need("unshare", "util-linux")
    if os.geteuid():
        raise Failure("clean systems are unpacked and entered by root only; run it as root")
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        raise Failure("clean systems need mount and process namespaces, which are not permitted here")


def system(name):
    """The unpacked system, kept for the next time."""
    place = WORK / "systems" / name
    if not place.exists():
        say(f"unpacks {name} in {place}")
        part = place.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        log = place.with_suffix(".log")
        with open(log, "w") as file:
            try:
                run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", name, part, *mirror(), stdout=file)
            except Failure as failure:
                raise Failure(f"{failure}; see {log}") from None
        part.rename(place)
    return place


def mirror():
    """The mirror that MEMTRACK_DEBIAN_MIRROR names, or this system's own; none where debootstrap's default is taken."""
    named = os.environ.get("MEMTRACK_DEBIAN_MIRROR")
    if named or not shutil.which("apt-get"):
        return [named] if named else []
    sites = output("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages").split()
    return [site for site in sites if site.rstrip("/").endswith("/debian")][:1]


def copied(place):
    copy = place.with_suffix(".test")
    shutil.rmtree(copy, ignore_errors=True)
    run("cp", "-a", "--reflink=auto", place, copy)
    return copy


def in_system(root, kind, artifact):
    """One artifact in one system: what the job printed."""
    exchange = root / EXCHANGE
    shutil.rmtree(exchange, ignore_errors=True)
    exchange.mkdir(parents=True)
    for file in [artifact, ROOT / "examples/demo.py", ROOT / "packaging/main_job.py"]:
        shutil.copy(file, exchange)
    before = files(root)
    commands = globals()[f"commands_for_{kind}"](artifact.name)
    inside(root, commands["install"])
    result = ""
    for memtrack in commands["memtrack"]:
        result = inside(root, f"python3 main_job.py /{EXCHANGE} {memtrack}")
    inside(root, commands["remove"])
    left = sorted(files(root) - before - NOTES)
    if left:
        raise Failure(f"left behind: {', '.join(left)}")
    gone = sorted(before - files(root))
    if gone:
        raise Failure(f"taken away though it was there before: {', '.join(gone)}")
    return result.strip()


def inside(root, script):
    """Runs shell commands in the system, in namespaces whose mounts end with them."""
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--root={root}", "--wd=/", "--mount-proc"]
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": f"/{EXCHANGE}", "LC_ALL": "C.UTF-8"}
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        [*enter, "sh", "-euc", f"cd /{EXCHANGE}\n{script}"],
        env=variables,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise Failure(f"status {done.returncode} from: {script}\n{done.stdout}")
    return done.stdout


def files(root):
    """All paths of a system that are compared."""
    found = set()
    for directory, names, others in os.walk(root):
        inner = os.path.relpath(directory, root)
        names[:] = [name for name in names if os.path.normpath(f"{inner}/{name}") not in APART]
        found.update(os.path.normpath(f"{inner}/{name}") for name in [*names, *others])
    return found


def commands_for_deb(name):
    return {"install": f"dpkg -i {name}", "memtrack": ["memtrack"], "remove": "dpkg --purge memtrack"}


def commands_for_tarball(name):
    unpacked = name.removesuffix(".tar.gz")
    return {
        "install": f"tar xzf {name}; {unpacked}/install.sh /usr/local; {unpacked}/install.sh '/opt/a b'",
        "memtrack": ["/usr/local/bin/memtrack", "'/opt/a b/bin/memtrack'"],
        "remove": f"for prefix in /usr/local '/opt/a b'; do {unpacked}/install.sh --uninstall \"$prefix\"; done",
    }


def commands_for_wheel(name, options="--no-index"):
    """In a virtual environment, whose own files are compared, too."""
    listing = "find venv -not -path '*/__pycache__*' | sort"
    return {
        "install": f"python3 -m venv venv; {listing} >before; venv/bin/pip install --no-cache-dir {options} '{name}'",
        "memtrack": ["venv/bin/memtrack", "venv/bin/python -m memtrack"],
        "remove": f"venv/bin/pip uninstall -y memtrack; {listing} | diff before -",
    }


def test_here(source):
    """The same job in a fresh virtual environment of this system, with what pip installs from `source`: a wheel, an
    sdist, or a checkout. What is compiled shares the checkout's target directory."""
    exchange = empty(WORK / "venv-test")
    for file in [ROOT / "examples/demo.py", ROOT / "packaging/main_job.py"]:
        shutil.copy(file, exchange)
    commands = commands_for_wheel(Path(source).resolve(), options="--quiet --disable-pip-version-check")
    jobs = [f"python3 main_job.py . {memtrack}" for memtrack in commands["memtrack"]]
    script = "\n".join([commands["install"], *jobs, commands["remove"]])
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    run("sh", "-euc", script, cwd=exchange, env={**os.environ, "CARGO_TARGET_DIR": target})
    shutil.rmtree(exchange)


def newest_wheel():
    return artifact("wheel", f"memtrack-{version()}-*_{MACHINE}.whl")


def artifacts():
    """What lies in dist/ and can be installed, by kind."""
    return {
        "deb": artifact("deb", f"memtrack_{version()}-*.deb"),
        "tarball": artifact("tarball", f"memtrack-{version()}-{MACHINE}-linux.tar.gz"),
        "wheel": newest_wheel(),
    }


def artifact(kind, pattern):
    found = sorted(DIST.glob(pattern))
    if not found:
        raise Failure(f"dist/ has no {pattern}; make it with scripts/package {kind}")
    return found[-1]
