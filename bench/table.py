"""Rows as Markdown, a table for each family, with the geometric mean of each mode."""

import statistics

from .loads import NATIVE

PEERS = "memray", "heaptrack"
FIGURES = "wall", "processor"


def tables(rows, with_before):
    """The text of all tables, under a heading for each family."""
    families = {}
    for row in rows:
        families.setdefault(row.load.family, []).append(row)
    return "\n".join(f"### {family}\n\n{table(of_family, with_before)}" for family, of_family in families.items())


def table(rows, with_before):
    """Cells with a slash are of wall and processor time, or of the tools in the order of their columns."""
    peer = next((peer for peer in PEERS if any(peer in row.runs for row in rows)), None)
    compared = ["memtrack", *(["before"] if with_before else []), *([peer] if peer else [])]
    heads = ["load", "plain", *compared, "program's memory", "memtrack's own", "events", "bytes per event"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    for row in rows:
        ran = [tool for tool in compared if tool in row.runs]
        cells = [name(row), f"{row.median('plain', 'wall'):.3f} s", *(times(row, tool) for tool in compared)]
        cells.append(" / ".join(f"{row.added(tool, 'program') / 1000:+.1f}" for tool in ran) + " MB")
        cells += [f"{row.median('memtrack', 'others') / 1000:.0f} MB", f"{row.events:,}"]
        cells.append(" / ".join(f"{row.bytes[tool] / row.events:.2g}" for tool in ran) if row.events else "")
        lines.append("| " + " | ".join(cells) + " |")
    return as_text(lines + means(rows, compared, len(heads)))


def as_text(lines):
    return "".join(f"{line}\n" for line in lines)


def times(row, tool):
    """The ratios of wall and processor time; of what is too short for a ratio to mean much, what it adds to each start."""
    if tool not in row.runs:
        return ""
    if row.repeat > 1:
        return " / ".join(f"{1000 * row.added(tool, figure) / row.repeat:+.0f}" for figure in FIGURES) + " ms"
    return " / ".join(f"{row.ratio(tool, figure):.2f}x" for figure in FIGURES)


def means(rows, compared, width):
    """A line of geometric means for each mode that four loads or more have, over those that every tool ran."""
    lines = []
    for mode in dict.fromkeys(row.mode for row in rows):
        common = [row for row in rows if row.mode == mode and all(tool in row.runs for tool in compared)]
        if len(common) < 4:
            continue
        label = ", ".join(("**geometric mean**", *shown(mode, common[0])))
        cells = [f"{label} ({len(common)} loads)", ""]
        for tool in compared:
            ratios = [[row.ratio(tool, figure) for row in common] for figure in FIGURES]
            cells.append(" / ".join(f"**{statistics.geometric_mean(column):.2f}x**" for column in ratios))
        lines.append("| " + " | ".join(cells + [""] * (width - len(cells))) + " |")
    return lines


def name(row):
    return ", ".join((row.load.name, *shown(row.mode, row)))


def shown(mode, row):
    """The words of a mode; a program without Python whose native stacks are left out has none at all."""
    return mode if row.is_python or NATIVE in mode else ("no stacks", *mode)
