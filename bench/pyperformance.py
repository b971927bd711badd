"""pyperformance's benchmarks as they are installed from PyPI: those that need nothing else, and that allocate."""

import pathlib
import subprocess

from .loads import DEFAULT, OBJECTS, Load, Missing

FAMILY = "pyperformance"
# Name of the benchmark, its loops, and what else its script wants.
BENCHMARKS = (
    ("argparse", 200, "many_optionals"),
    ("async_generators", 1, ""),
    ("async_tree", 1, "none"),
    ("chaos", 4, ""),
    ("coroutines", 10, ""),
    ("deepcopy", 300, ""),
    ("deltablue", 70, ""),
    ("django_template", 8, ""),
    ("float", 4, ""),
    ("generators", 7, ""),
    ("go", 3, ""),
    ("json_dumps", 25, ""),
    ("json_loads", 400, ""),
    ("logging", 5_000, ""),
    ("pathlib", 15, ""),
    ("pickle", 30, "--pure-python pickle"),
    ("pyflate", 1, ""),
    ("raytrace", 1, ""),
    ("regex_compile", 2, ""),
    ("richards", 6, ""),
    ("sphinx", 1, ""),
    ("sqlalchemy_declarative", 3, ""),
    ("sqlglot_v2", 1, "optimize"),
    ("sqlite_synth", 4_000, ""),
    ("telco", 40, ""),
    ("typing_runtime_protocols", 250, ""),
    ("xml_etree", 1, ""),
)


def loads():
    for name, loops, arguments in BENCHMARKS:
        yield Load(FAMILY, name, (DEFAULT, (OBJECTS,)),
                   lambda shop, name=name, loops=loops, arguments=arguments: benchmark(shop, name, loops, arguments))


def benchmark(shop, name, loops, arguments):
    """The benchmark's own script in one process, with a fixed number of loops."""
    where = "import pyperformance, pathlib; print(pathlib.Path(pyperformance.__file__).parent)"
    found = subprocess.run([shop.python, "-c", where], capture_output=True, text=True)
    if found.returncode:
        raise Missing(f"{shop.python} cannot import pyperformance")
    script = pathlib.Path(found.stdout.strip()) / "data-files" / "benchmarks" / f"bm_{name}" / "run_benchmark.py"
    worker = ["--worker", "--loops", str(loops), "--warmups", "0", "--values", "1"]
    return shop.python_command([str(script), *worker, *arguments.split()])
