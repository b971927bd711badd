"""What the program consists of besides its own code: the notices of their licences, and the SBOM (CycloneDX).

Why: whoever passes the program on has to pass the licences of all that is compiled into it. Invariant: the components
are those of the dependency graph that cargo compiles; one without a licence text ends the build.
"""

import json
import re
import uuid
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path

from checkout import ROOT, Failure, epoch, metadata, output, version, write
from programs import TARGET, tools

LICENCE = re.compile(r"(?i)(licen[sc]e|copying|notice|unlicense|copyright)")
# zstd's sources lie within its crate; its COPYING is the other licence that one may choose, the GPL.
NESTED = {"zstd-sys": ["zstd/LICENSE"], "regex-syntax": ["src/unicode_tables/LICENSE-UNICODE"]}
# What comes with the compilers.
STANDARD_LIBRARY = "The Rust standard library, https://github.com/rust-lang/rust"
UNWINDER = "LLVM's libunwind and compiler-rt as shipped with zig, https://ziglang.org"


@lru_cache(maxsize=None)
def crates():
    """The packages that are compiled into the program or its library, as cargo's metadata has them, by name."""
    tree = ["cargo", "tree", "--locked", "--package", "memtrack-cli", "--package", "memtrack-shim"]
    tree += ["--edges", "normal,no-proc-macro", "--target", TARGET]
    lines = output(*tree, "--prefix", "none", "--format", "{p}", cwd=ROOT).splitlines()
    compiled = {tuple(line.split()[:2]) for line in lines if line}
    found = [package for package in metadata()["packages"] if (package["name"], "v" + package["version"]) in compiled]
    if len(found) != len(compiled):
        raise Failure("cargo tree and cargo metadata differ about the packages that are compiled")
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def foreign():
    return [package for package in crates() if package["source"]]


def licence_texts(package):
    """The licence files of a crate; the standard text where it names Apache-2.0 and has none."""
    folder = Path(package["manifest_path"]).parent
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and LICENCE.match(path.name)]
    files += [folder / name for name in NESTED.get(package["name"], [])]
    if not files and "Apache-2.0" in (package["license"] or ""):
        files = [ROOT / "LICENSE-APACHE"]
    if not files:
        raise Failure(f"{package['name']} {package['version']}: no licence text in {folder}")
    return [path.read_text(errors="replace").strip() for path in files]


def compiler_texts():
    """The licences of what the compilers put into every program."""
    licences = Path(output("rustc", "--print", "sysroot", cwd=ROOT).strip()) / "share/doc/rust/licenses"
    rust = [licences / "MIT.txt", licences / "Apache-2.0.txt"]
    zig = next(tools().glob("lib/python*/site-packages/ziglang/lib/libunwind/LICENSE.TXT"))
    return [(STANDARD_LIBRARY, path) for path in rust] + [(UNWINDER, zig)]


def notices():
    """One text: every licence once, under the names of those that it covers."""
    covered = {}
    named = [
        (f"{package['name']} {package['version']} ({package['license']})", text)
        for package in foreign()
        for text in licence_texts(package)
    ]
    named += [(name, path.read_text().strip()) for name, path in compiler_texts()]
    for name, text in named:
        names, _ = covered.setdefault(re.sub(r"\s+", " ", text), ([], text))
        if name not in names:
            names.append(name)
    parts = [f"memtrack {version()} contains code of others, under these licences.\n"]
    for names, text in covered.values():
        parts.append("=" * 100 + "\n" + "\n".join(names) + "\n" + "-" * 100 + f"\n\n{text}\n")
    return "\n".join(parts)


def bill_of_materials():
    """The SBOM as CycloneDX 1.5."""
    checksums = locked_checksums()
    by_id = {package["id"]: reference(package) for package in crates()}
    edges = {
        node["id"]: [by_id[name] for name in node["dependencies"] if name in by_id]
        for node in metadata()["resolve"]["nodes"]
    }
    main = next(package for package in crates() if package["name"] == "memtrack-cli")
    library = next(package for package in crates() if package["name"] == "memtrack-shim")
    edges[main["id"]] = edges[main["id"]] + [by_id[library["id"]]]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'memtrack {version()} {epoch()}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": component(main, "application", checksums),
        },
        "components": [component(package, "library", checksums) for package in crates() if package is not main]
        + [standard_library()],
        "dependencies": [
            {"ref": name, "dependsOn": sorted(edges.get(key, []))}
            for key, name in sorted(by_id.items(), key=lambda pair: pair[1])
        ],
    }


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, kind, checksums):
    name = "memtrack" if kind == "application" else package["name"]
    about = {
        "type": kind,
        "bom-ref": reference(package),
        "name": name,
        "version": package["version"],
        "purl": reference(package),
    }
    if package["license"]:
        about["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        about["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return about


def standard_library():
    number = output("rustc", "--version", cwd=ROOT).split()[1]
    licences = [{"expression": "MIT OR Apache-2.0"}]
    return {
        "type": "library",
        "bom-ref": f"rust-std@{number}",
        "name": "rust-std",
        "version": number,
        "licenses": licences,
    }


def locked_checksums():
    entry = r'name = "(.*)"\nversion = "(.*)"\nsource = ".*"\nchecksum = "(.*)"'
    return {(name, number): checksum for name, number, checksum in re.findall(entry, (ROOT / "Cargo.lock").read_text())}


def write_bill_of_materials(directory):
    target = directory / f"memtrack-{version()}.cdx.json"
    write(target, json.dumps(bill_of_materials(), indent=2) + "\n")
    return target
