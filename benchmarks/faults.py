"""Lets every write, rename, sync, lock, start of a process and SQL statement of a command fail, one at a time.

    python benchmarks/faults.py --jobs 2              every kill, and every fault that suits it at every place of the code
    python benchmarks/faults.py --all                 every fault at every point: hours
    python benchmarks/faults.py --quick               of each process and kind one point and one fault, in turn: minutes
    python benchmarks/faults.py --quick --turn 1      the same with other points
    python benchmarks/faults.py --commands run,sweep --faults kill --jobs 2
    python benchmarks/faults.py --kept done.jsonl     goes on where an earlier run that kept its results was stopped

A first run of each command counts its points; then each is hit, in a folder of its own, by ENOSPC, EROFS, EMFILE, EIO,
EINTR, ... and by SIGKILL before and after it. Without `--all`, the same few calls that do a thing are hit once by each error,
and once more by one of them wherever other calls led there; kills of the command's own process come from one run: what each
would leave is copied aside. Afterwards nothing half-written may be visible, and the same command
again must leave the same bytes as an undisturbed one; see tests/faults. Commands that cannot run here are named with
the reason. The last line is JSON: `points` that were hit, `lost` and `differs` as counts of faults; `wrong` counts
faults that ended in an internal error, a traceback, a hang or a success that was none.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.faults import points  # noqa: E402

points.install()

from tests.faults import trials  # noqa: E402

Hit = tuple[str, str, str]
"""Command, point, fault; all kills of the command's own process where there is no point."""
MANY = 40
"""Calls of one kind on one file from which not every one is hit, unless `--all` asks for it."""
STEP = 7
"""Which of the points of a kind a quick run takes: the first, the eighth, ... from one command to the next."""
_references: dict[str, trials.Reference] = {}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one point of each process and kind")
    parser.add_argument(
        "--turn", type=int, default=0, help="where a quick run begins: others hit other points"
    )
    parser.add_argument("--commands", default=",".join(trials.COMMANDS))
    parser.add_argument("--faults", default="", help="only these, as kill,ENOSPC")
    parser.add_argument("--only", default="", help="only points that contain this text")
    parser.add_argument("--all", action="store_true", help="every fault at every point by a run of its own")
    parser.add_argument("--list", action="store_true", help="print the points and end")
    parser.add_argument("--every", type=int, default=1, help="of the faults only each Nth")
    parser.add_argument(
        "--skip", type=int, default=0, help="leave out the first N faults: an earlier run made them"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--kept", type=Path, help="write each result there; faults whose result is there are done"
    )
    asked = parser.parse_args()
    hits: list[Hit] = []
    for name in asked.commands.split(","):
        missing = trials.missing(name)
        if missing:
            print(f"{name}: skipped, {missing}", flush=True)
            continue
        reference = _references[name] = trials.undisturbed(trials.COMMANDS[name])
        own = [hit for hit in chosen(name, reference, asked) if asked.only in hit[1]][:: asked.every]
        print(
            f"{name}: {len(reference.points)} points, {len(own)} faults; timed: {sorted(reference.timed)}",
            flush=True,
        )
        if asked.list:
            print(*reference.points, sep="\n")
        hits += own
    if asked.list:
        return 0
    hits = quick(hits, asked.turn) if asked.quick else hits[asked.skip :]
    total: Counter[str] = Counter()
    hit_points = set()
    faults = 0
    for name, found in kept(hits, asked.jobs, asked.kept):
        faults += 1
        hit_points.add((name, found.point))
        for kind in ("lost", "differs", "wrong", "hidden"):
            words = getattr(found, kind)
            total[kind] += bool(words)
            if words:
                print(
                    f"{name}: {found.fault} at {found.point} (exit code {found.code}): {kind}: {words}",
                    flush=True,
                )
        if faults % 100 == 0:
            print(f"{faults} faults: {dict(total)}", flush=True)
    keys = ("lost", "differs", "wrong", "hidden")
    last = {"points": len(hit_points), "faults": faults, **{key: total[key] for key in keys}}
    print(json.dumps(last))
    return 1 if any(total[key] for key in keys[:3]) else 0


def chosen(name: str, reference: trials.Reference, asked: argparse.Namespace) -> Iterator[Hit]:
    """The faults to make: all that tell something, or in a quick run a few."""
    total = Counter(point.rsplit(" ", 1)[0] for point in reference.points)
    wanted = set(filter(None, asked.faults.split(",")))
    sparing = not (asked.all or asked.quick or asked.only)
    if sparing:
        yield from ((name, *hit) for hit in _sparing(reference) if not wanted or hit[1] in wanted)
        if not wanted or "kill" in wanted:
            yield name, "", "kill"  # the last: its many states are one result, which `--kept` has at its end
        return
    for point in reference.points:
        if asked.all or _telling(point, total):
            suited = points.SUITED[point.split(" ", 2)[1]]
            yield from ((name, point, fault) for fault in suited if not wanted or fault in wanted)


def _sparing(reference: trials.Reference) -> Iterator[tuple[str, str]]:
    """Every fault at every place that writes, and one of them, in turn, wherever other calls led there."""
    hit: set[tuple[str, ...]] = set()
    turn = 0
    for point in reference.points:
        role, kind, _ = point.split(" ", 2)
        whole, innermost = reference.sites[point]
        place = (role.split("#")[0], kind)
        able = [fault for fault in points.SUITED[kind] if not _is_copied(reference, point, kind, fault)]
        faults = [fault for fault in able if (*place, innermost, fault) not in hit]
        if not faults and able and (*place, whole) not in hit:
            faults = [able[turn % len(able)]]
            turn += 1
        hit |= {(*place, whole), *((*place, innermost, fault) for fault in faults)}
        yield from ((point, fault) for fault in faults)


def _is_copied(reference: trials.Reference, point: str, kind: str, fault: str) -> bool:
    """Whether a kill is among those that come from one run."""
    return (fault == "kill" or (fault == "kill after" and kind != "spawn")) and point in reference.alone


def quick(hits: list[Hit], turn: int) -> list[Hit]:
    """Of each command, process and kind of point one fault: the faults of a kind in turn, and so the points.

    Another `turn` begins elsewhere, so that several quick runs hit other points.
    """
    groups: dict[tuple[str, str, str], list[Hit]] = {}
    for hit in hits:
        role, kind, _ = hit[1].split(" ", 2)
        groups.setdefault((hit[0], role.split("#")[0], kind), []).append(hit)
    turns: Counter[str] = Counter({kind: turn for _, _, kind in groups})
    found = []
    for (_, _, kind), group in groups.items():
        suited = list(dict.fromkeys(fault for _, _, fault in group))
        fault = suited[turns[kind] % len(suited)]
        able = [hit for hit in group if hit[2] == fault]
        found.append(able[(turns[kind] * STEP) % len(able)])
        turns[kind] += 1
    return found


def _telling(point: str, total: Counter[str]) -> bool:
    """Of many writes to one file, such as the lines of a log: the first, the last, and those between at powers of two."""
    what, number = point.rsplit(" ", 1)
    place, last = int(number), total[what] - 1
    return last < MANY or place < 3 or place > last - 3 or place & (place - 1) == 0


def kept(hits: list[Hit], jobs: int, path: Path | None) -> Iterator[tuple[str, trials.Trial]]:
    """The trials that a file keeps, and the others, which it keeps from now on."""
    if path is None:
        yield from results(hits, jobs)
        return
    known: dict[Hit, list[trials.Trial]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        name, point, fault, several = json.loads(line)
        known[name, point, fault] = [trials.Trial(**one) for one in several]
    with path.open("a") as out:
        for hit in hits:
            yield from ((hit[0], found) for found in known.get(hit, ()))
        for hit, several in one_by_one([hit for hit in hits if hit not in known], jobs):
            out.write(json.dumps([*hit, [dataclasses.asdict(found) for found in several]]) + "\n")
            out.flush()
            yield from ((hit[0], found) for found in several)


def results(hits: list[Hit], jobs: int) -> Iterator[tuple[str, trials.Trial]]:
    """The trials, each with its command."""
    for hit, several in one_by_one(hits, jobs):
        yield from ((hit[0], found) for found in several)


def one_by_one(hits: list[Hit], jobs: int) -> Iterator[tuple[Hit, list[trials.Trial]]]:
    """What each hit gives, in processes that share what is imported."""
    if jobs == 1:
        yield from map(one, hits)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(one, hits)


def one(hit: Hit) -> tuple[Hit, list[trials.Trial]]:
    return hit, list(each(hit))


def each(hit: Hit) -> Iterator[trials.Trial]:
    name, point, fault = hit
    command, reference = trials.COMMANDS[name], _references[name]
    if point:
        yield trials.trial(command, reference, point, fault)
    else:
        yield from trials.kills(command, reference)


if __name__ == "__main__":
    sys.exit(main())
