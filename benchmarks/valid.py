"""Tries every command that writes a model on generated valid networks: tests/generated/law.py says what has to hold.

    python benchmarks/valid.py --seconds 60
    python benchmarks/valid.py --networks 1 --first 115 --commands "quantize int8"

Each network gets --each commands, other ones for other numbers. A finding is printed with the number of its network and the
shortest start of the network that has it; `tests/generated/networks.py` makes both again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["OMP_NUM_THREADS"] = "1"

from tests.generated import law  # noqa: E402
from tests.generated.networks import network  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--networks", type=int, help="60 where no --seconds are given")
    parser.add_argument("--quick", action="store_true", help="10 networks")
    parser.add_argument("--first", type=int, default=0, help="number of the first network")
    parser.add_argument("--each", type=int, default=2, help="commands for each network")
    parser.add_argument(
        "--commands", help="names, with semicolons between them, in the place of those by number"
    )
    asked = parser.parse_args()
    if asked.quick:
        asked.networks = 10
    if asked.networks is None:
        asked.networks = 60 if asked.seconds == float("inf") else 1 << 60
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    end, counts, faults = time.monotonic() + asked.seconds, Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="qdqtool-valid-") as folder:
        for seed in range(asked.first, asked.first + asked.networks):
            if time.monotonic() > end:
                break
            one = network(seed)
            counts["networks"] += 1
            for command in asked.commands.split(";") if asked.commands else law.commands_of(seed, asked.each):
                counts["commands"] += 1
                said = law.broken(one, command, Path(folder))
                if said is None:
                    continue
                entry = law.known(one, said)
                faults[entry or "new"] += 1
                if entry is None:
                    short = law.shortest(one, command, Path(folder))
                    print(f"{command!r} of {one}: {said}; the shortest with a fault: {short}", flush=True)
    print(json.dumps({**counts, "faults": faults}))
    return 1 if faults["new"] else 0


if __name__ == "__main__":
    sys.exit(main())
