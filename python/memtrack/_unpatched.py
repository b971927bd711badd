"""Undoes what a test has replaced in modules (mocks, fake file systems, frozen clocks) while memtrack works for the test.

That is before its function is called and after it has returned; other threads of the test see the modules so meanwhile, too.
Invariant: what a test has replaced is in its place while its function runs.
"""

import builtins
import os
import sys
from operator import itemgetter
from types import ModuleType
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from memtrack._errors import quietly

#: What memtrack uses of the standard library, and what that uses of files, processes and time.
_USED = (
    "builtins fnmatch genericpath glob io json json.decoder linecache os posixpath select selectors shutil stat subprocess tempfile time "
    "tokenize"
).split()
_MISSING = object()
_BUILTINS = vars(builtins)


class _Namespace(NamedTuple):
    """A namespace, and what stands in it."""

    names: Dict[str, Any]
    known: Dict[str, Any]
    get: Callable[[Dict[str, Any]], Any]
    """Gives what of a namespace is known."""
    gave: Any


_known: List[_Namespace] = []
#: How many blocks are within one.
_depth = 0


def keep_modules() -> None:
    """From now on what stands in the modules is what memtrack uses."""
    modules = {name: module for name in _USED for module in [sys.modules.get(name)] if module is not None}
    own = [module for name, module in sys.modules.items() if name.split(".")[0] == "memtrack"]
    namespaces: List[Tuple[Dict[str, Any], Dict[str, Any]]] = [
        (vars(module), _replaceable(vars(module))) for module in [*modules.values(), *own]
    ]
    namespaces.append((sys.modules, dict(modules)))
    getters = [(names, known, itemgetter(*known)) for names, known in namespaces if known]
    _known[:] = [_Namespace(names, known, get, get(known)) for names, known, get in getters]


def has_builtins() -> bool:
    """Whether what is built in stands as it did then."""
    try:
        for namespace in _known:
            if namespace.names is _BUILTINS:
                return bool(namespace.get(namespace.names) == namespace.gave)
    except Exception:
        # One is missing, or cannot be compared.
        return False
    return True


def _replaceable(names: Dict[str, Any]) -> Dict[str, Any]:
    """What mocks stand for. The rest of a module is state, which changes by itself."""
    kinds = (ModuleType, type(os.environ))

    def is_error(value: object) -> bool:
        return isinstance(value, type) and issubclass(value, BaseException)

    return {
        name: value
        for name, value in names.items()
        if (callable(value) or isinstance(value, kinds)) and not is_error(value) and (name == "__import__" or not name.startswith("__"))
    }


class undisturbed(quietly):
    """With the modules as they were, and without CaptureWarning."""

    def __enter__(self) -> None:
        global _depth
        self._replaced: List[Tuple[Dict[str, Any], Dict[str, Any]]] = []
        _depth += 1
        for names, known, get, gave in _known if _depth == 1 else ():
            # Mostly nothing is replaced: that is found out at the speed of C. What equals the original does for it.
            try:
                is_as_known = get(names) == gave
            except Exception:
                # One is missing, or cannot be compared.
                is_as_known = False
            if not is_as_known:
                changed = {name: names.get(name, _MISSING) for name in known if names.get(name) is not known[name]}
                self._replaced.append((names, changed))
                names.update((name, known[name]) for name in changed)
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        global _depth
        super().__exit__(*error)
        _depth -= 1
        for names, changed in self._replaced:
            for name, value in changed.items():
                if value is _MISSING:
                    names.pop(name, None)
                else:
                    names[name] = value
