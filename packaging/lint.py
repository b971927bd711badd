"""Checks what no compiler reads: the workflow files and the installer.

Invariant: the workflow files are checked by at least one linter that reads expressions and permissions; shellcheck and
actionlint join where the system has them.
"""

import shutil

from checkout import ROOT, run, say
from programs import virtual_environment

# Up to those that were looked at: what a newer one finds is no fault of the change that is checked.
LINTERS = ["zizmor>=1.20,<=1.32.0", "check-jsonschema>=0.30,<=0.39.0"]


def check():
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    linters = virtual_environment("linters", LINTERS) / "bin"
    run(linters / "check-jsonschema", "--quiet", "--builtin-schema", "vendor.github-workflows", *workflows)
    run(linters / "zizmor", "--quiet", "--offline", *workflows)
    for linter, files in [("actionlint", workflows), ("shellcheck", [ROOT / "packaging/install.sh"])]:
        if shutil.which(linter):
            run(linter, *files)
        else:
            say(f"{linter} is not installed; what it checks is skipped")
