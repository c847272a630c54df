"""The speed of engines on a GPU as an axis of a sweep; a stand-in keeps the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.backends.gpu import Gpu
from qdqtool.backends.timing.measure import TimeRequest, Timing
from qdqtool.backends.timing.series import Series, judge, summarize
from qdqtool.cli.app import run as cli
from qdqtool.pipeline.sweep import speed
from tests.sweep.digits import result, words

pytest.importorskip("optuna", reason="sweeps need the extra sweep")
SMALL = 'sweep.space={"calibrate.method": [max, mse]}'


class StopWatch:
    """Says that an engine takes a nanosecond per byte; the machine grows slower from call to call."""

    def __init__(self) -> None:
        self.asked: list[TimeRequest] = []

    def __call__(self, request: TimeRequest) -> Timing:
        self.asked.append(request)
        slowness = 1 + len(self.asked) / 4
        series = [
            Series(
                name=path.name,
                clock="a stop watch",
                rounds=tuple(
                    (path.stat().st_size * 1e-6 * slowness * (1 + turn / 1000),) for turn in range(8)
                ),
            )
            for path in request.candidates
        ]
        return Timing(
            summaries=tuple(map(summarize, series)),
            verdicts=tuple(judge(series[0], each) for each in series[1:]),
        )


def test_without_a_gpu_timing_engines_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "gpus", lambda: ())
    assert cli(words(tmp_path / "out", speed="engine")) == 3
    assert "no NVIDIA GPU" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.rtx
def test_engines_are_timed_in_turns_with_the_base_recipes_and_scaled_to_its_first_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    watch = StopWatch()
    monkeypatch.setattr(speed, "gpus", lambda: (Gpu(name="Stand-in GPU", sm=86, memory_mib=1, cuda=(12, 4)),))
    monkeypatch.setitem(speed.SPEEDS, "engine", lambda device: speed.OnGpu(device, watch))
    assert cli(words(tmp_path / "out", "--pick", "max-ms 100", speed="engine", space=SMALL)) == 0
    data = result(tmp_path / "out")
    assert (data["speed"], data["device"], data["spread"]) == ("measured", "Stand-in GPU", None)
    base = tmp_path / "out" / "base" / "engine.plan"
    reference, *trials = watch.asked
    assert reference.candidates == (base,)
    assert all(request.trust and request.candidates[0] == base for request in trials)
    assert len(data["trials"]) == 4
    assert [point["name"] for point in data["floats"]] == ["FP32", "FP16"]
    assert len(trials) == len(data["trials"]) + len(data["floats"])
    first_slowness = 1.25 * 1.0035  # of the first call, and the median of its eight turns
    for trial in data["trials"]:
        found = trial["outcome"]
        assert found["ms_low"] <= found["ms"] <= found["ms_high"]
        assert found["kernels"] > 0
    picked = next(trial["outcome"] for trial in data["pareto"][::-1])
    size = (tmp_path / "out" / "pick" / "engine.plan").stat().st_size
    assert picked["ms"] == pytest.approx(size * 1e-6 * first_slowness)
    assert "Stand-in GPU" in " ".join(capsys.readouterr().out.split())
