"""Two workers may draw one configuration; neither clears the folder that the other reads."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from qdqtool.pipeline.sweep.context import _alone_in


def test_the_second_worker_waits_until_the_first_has_left_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / "0123456789ab"
    inside, most, order = [], [], []

    def work(number: int) -> None:
        with _alone_in(folder):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.05)
            inside.remove(number)
            order.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert sorted(order) == [0, 1, 2, 3]
    assert max(most) == 1
