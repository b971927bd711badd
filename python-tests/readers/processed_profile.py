"""Checks a profile against the processed profile format of the Firefox Profiler, as its documentation describes it.

The Profiler has no package that could be installed, so what its format demands is written down here: columns as long as
their table says, references that stay inside of the table they are into, times in order, strings that exist.
"""

# Column -> the table that it refers to. Values of None, and -1 where the format means none by it, refer to nothing.
REFERENCES = {
    "stackTable": {"prefix": "stackTable", "frame": "frameTable"},
    "frameTable": {"func": "funcTable", "nativeSymbol": "nativeSymbols", "category": "categories"},
    "funcTable": {"name": "stringArray", "fileName": "stringArray", "resource": "resourceTable"},
    "resourceTable": {"name": "stringArray", "host": "stringArray", "lib": "libs"},
    "nativeSymbols": {"name": "stringArray", "libIndex": "libs"},
    "markers": {"name": "stringArray", "category": "categories"},
    "samples": {"stack": "stackTable"},
    "nativeAllocations": {"stack": "stackTable"},
}
META = {
    "categories": list, "interval": (int, float), "startTime": (int, float), "processType": int, "product": str,
    "version": int, "preprocessedProfileVersion": int, "markerSchema": list,
}
# Columns that the format wants in each table.
COLUMNS = {
    "stackTable": {"frame", "prefix"},
    "frameTable": {"address", "category", "subcategory", "func", "nativeSymbol", "line", "column", "inlineDepth"},
    "funcTable": {"name", "isJS", "relevantForJS", "resource", "fileName", "lineNumber", "columnNumber"},
    "resourceTable": {"name", "host", "lib", "type"},
    "nativeSymbols": {"libIndex", "address", "name", "functionSize"},
    "markers": {"data", "name", "startTime", "endTime", "phase", "category"},
    "samples": {"stack", "weight"},
}
PHASES = {0: "instant", 1: "interval", 2: "begin", 3: "end"}


def check(profile):
    """Raises AssertionError with what is wrong."""
    meta = profile["meta"]
    for key, kind in META.items():
        assert isinstance(meta[key], kind), (key, meta[key])
    for category in meta["categories"]:
        assert category["name"] and category["color"] and "Other" in category["subcategories"], category
    schemas = {schema["name"] for schema in meta["markerSchema"]}
    assert len(schemas) == len(meta["markerSchema"]), "schemas of markers have names of their own"
    assert isinstance(profile["libs"], list)
    assert profile["threads"], "a profile has a thread at least"
    assert sum(thread["isMainThread"] for thread in profile["threads"]) >= 1
    assert len({(thread["pid"], thread["tid"]) for thread in profile["threads"]}) == len(profile["threads"])
    for thread in profile["threads"]:
        check_thread(profile, thread, schemas)
    for counter in profile.get("counters", []):
        assert 0 <= counter["mainThreadIndex"] < len(profile["threads"])
        assert counter["category"] and counter["name"] and str(counter["pid"]) in {thread["pid"] for thread in profile["threads"]}
        columns(counter["samples"], "samples", {"count"})
        times(counter["samples"])


def check_thread(profile, thread, schemas):
    assert all(isinstance(text, str) for text in thread["stringArray"])
    sizes = {name: thread[name]["length"] for name in COLUMNS}
    sizes |= {"stringArray": len(thread["stringArray"]), "categories": len(profile["meta"]["categories"]), "libs": len(profile["libs"])}
    for name, references in REFERENCES.items():
        table = thread.get(name)
        if table is None:
            continue
        columns(table, name, COLUMNS.get(name, {"weight", "stack"}))
        for column, target in references.items():
            wrong = [value for value in table[column] if value not in (None, -1) and not 0 <= value < sizes[target]]
            assert not wrong, f"{name}.{column} refers to {wrong[:3]} of {sizes[target]} in {target}"
    # The Profiler goes through the stacks once, and needs callers before those they called.
    assert all(prefix is None or prefix < at for at, prefix in enumerate(thread["stackTable"]["prefix"]))
    for name in ("samples", "nativeAllocations"):
        if name in thread:
            times(thread[name])
            assert thread[name].get("weightType", "samples") in ("samples", "tracing-ms", "bytes")
    check_markers(thread["markers"], schemas)


def check_markers(markers, schemas):
    for at in range(markers["length"]):
        phase, start, end = (markers[key][at] for key in ("phase", "startTime", "endTime"))
        assert phase in PHASES, phase
        assert phase == 3 or start >= 0
        assert phase in (0, 2) or end >= 0
        assert markers["data"][at] is None or markers["data"][at]["type"] in schemas, markers["data"][at]


def columns(table, name, wanted):
    missing = wanted - set(table)
    assert not missing, f"{name} has no {missing}"
    wrong = {key: len(value) for key, value in table.items() if isinstance(value, list) and len(value) != table["length"]}
    assert not wrong, f"{name} has {table['length']} rows, but {wrong}"


def times(table):
    """Moments that never go back, as themselves or as differences."""
    assert table["length"] == 0 or "time" in table or "timeDeltas" in table
    assert all(delta >= 0 for delta in table.get("timeDeltas", []))
    moments = table.get("time", [])
    assert all(before <= after for before, after in zip(moments, moments[1:]))
