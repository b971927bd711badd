"""What goes on growing from one run to the next, of what is held at the end of each.

Stacks may differ from run to run, as those of recursive or random work do, so coarser groups are looked at, too. Invariant: what is
filled once, in whichever run, grows in no group, and what is filled again after it was emptied does not either.
"""

from typing import Callable, Dict, Iterable, List, NamedTuple, Sequence, Tuple

from memtrack._holders import NO_STACK, Holding, own_frame
from memtrack._records import Stack

#: A call stack, an allocator, and the thread if it is older.
_Site = Tuple[Stack, str, str]
#: Bytes and number, before all runs and after each.
_Held = List[Tuple[int, int]]
_Average = Callable[[List[int]], int]


class Growth(NamedTuple):
    """What each run adds."""

    holdings: List[Holding]
    differs: bool
    """Only the whole grows steadily: each run adds to other places."""

    @property
    def bytes(self) -> int:
        """The sum of all places."""
        return sum(holding.bytes for holding in self.holdings)


def growth(runs: Sequence[Iterable[Holding]], first: int, root: str) -> Growth:
    """What each run from `first` on adds, by the kind of group that grows most: a call stack, a line of own code, a function of it, or
    everything."""
    held = _held(runs)
    frames = {site: site[0][own_frame(site[0], root)] if site[0] else NO_STACK for site in held}
    best = _grown(held, lambda site: site, first, _median)
    whole = _bytes(_grown(held, lambda _: (), first, _steady))
    for parts in (("function", "file", "line"), ("function", "file")):
        of_own_code = _grown(held, lambda site, parts=parts: tuple(getattr(frames[site], part) for part in parts), first, _steady)  # type: ignore[misc]
        # In a cache that is full, what some lines add others have lost: only those that grow are in the sum.
        if 10 * _bytes(of_own_code) <= 11 * whole:
            best = max(best, of_own_code, key=_bytes)
    if whole <= _bytes(best):
        return Growth(best, False)
    return Growth(_shares(held, first, whole), 10 * whole > 11 * _bytes(best))


def _held(runs: Sequence[Iterable[Holding]]) -> Dict[_Site, _Held]:
    held: Dict[_Site, _Held] = {}
    for number, holdings in enumerate(runs, 1):
        for holding in holdings:
            sums = held.setdefault((holding.stack, holding.allocator, holding.older_thread), [(0, 0)] * (len(runs) + 1))
            size, count = sums[number]
            sums[number] = size + holding.bytes, count + holding.count
    return held


def _grown(held: Dict[_Site, _Held], group: Callable[[_Site], Tuple[object, ...]], first: int, average: _Average) -> List[Holding]:
    """What grows, by groups: each with the stack in it that has grown most."""
    groups: Dict[Tuple[object, ...], List[_Site]] = {}
    for site in held:
        groups.setdefault(group(site), []).append(site)
    grown = []
    for sites in groups.values():
        sizes, counts = ([sum(each) for each in zip(*(_changes(held[site], first, member) for site in sites))] for member in (0, 1))
        size = average(sizes)
        if size > 0:
            size = _beyond_refills(_levels([held[site] for site in sites], first), first, size)
        if size > 0:
            stack, allocator, thread = max(sites, key=lambda site: _change(held[site], first))
            grown.append(Holding(size, max(_median(counts), 0), allocator, stack, thread))
    return grown


def _shares(held: Dict[_Site, _Held], first: int, whole: int) -> List[Holding]:
    """What each run adds to the whole, by what has grown since the first one that counts."""
    grown = [(site, _change(sums, first)) for site, sums in held.items() if _change(sums, first) > 0]
    everything = sum(size for _, size in grown)
    shares = []
    given, before = 0, 0
    for site, size in grown:
        # So that they add up.
        given += size
        share = whole * given // everything - before
        before += share
        if share:
            stack, allocator, thread = site
            runs = max(len(held[site]) - 1 - first, 1)
            shares.append(Holding(share, max(held[site][-1][1] - held[site][first][1], 0) // runs, allocator, stack, thread))
    return shares


def _changes(sums: _Held, first: int, member: int) -> List[int]:
    return [now[member] - before[member] for before, now in zip(sums[first:], sums[first + 1 :])]


def _change(sums: _Held, first: int) -> int:
    return sums[-1][0] - sums[first][0]


def _levels(sites: List[_Held], first: int) -> List[int]:
    """What a group held before all runs and after each, without what is large, only given back, and so none of what is added again."""
    levels = [sum(size for size, _ in each) for each in zip(*sites)]
    rise = _largest_rise(levels)
    for sums in sites:
        if max(_changes(sums, first, 0)) <= 0 and max(sums[: first + 1])[0] > rise:
            levels = [level - size for level, (size, _) in zip(levels, sums)]
    return levels


def _beyond_refills(levels: List[int], first: int, size: int) -> int:
    """How much of a growth by `size` with most runs is no refilling of a cache that is emptied, or halved, when it is full.

    What is given back of less than a quarter of a run's growth is no sign of one: it would be emptied so often that most runs would
    not grow; nor is it where much more than half of the highest level is left."""
    usual = _median([now - before for before, now in zip(levels[first:], levels[first + 1 :])])
    emptied = [run for run, (before, now) in enumerate(zip(levels, levels[1:]), 1) if 4 * (before - now) >= size]
    emptied = [run for run in emptied if 2 * levels[run] <= max(levels[:run]) + 2 * _largest_rise(levels)]
    if not emptied:
        return size
    # What leaks has left about as much in each run before.
    if any(2 * levels[run] < run * usual for run in emptied):
        return 0
    # At its last level before it was emptied, the cache had less room than one run takes.
    full = max(levels[: max(emptied[0], len(levels) // 2)]) + _largest_rise(levels)
    return min(size, (levels[-1] - levels[first]) // (len(levels) - 1 - first)) if levels[-1] >= full else 0


def _largest_rise(levels: List[int]) -> int:
    """The most that a run has added after the first one, which is the warm-up."""
    return max((now - before for before, now in zip(levels[1:], levels[2:])), default=0)


def _bytes(holdings: List[Holding]) -> int:
    return sum(holding.bytes for holding in holdings)


def _median(values: List[int]) -> int:
    """The lower one of an even number."""
    return sorted(values)[(len(values) - 1) // 2]


def _steady(values: List[int]) -> int:
    """How much of a group's growth goes on: of caches one is filled after the other, ever more slowly, and what is replaced by something
    larger gets smaller again. Of five values and more the mean is without the least and the largest: one of them may be of something
    else."""
    middle = sorted(values)[1:-1] if len(values) >= 5 else values
    return min(_median(values), sum(middle) // len(middle), _median(values[len(values) // 2 :]))
