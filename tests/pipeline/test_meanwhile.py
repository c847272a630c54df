"""What is done for later steps while one of them waits for another process."""

from __future__ import annotations

from threading import Event, current_thread, main_thread

import pytest

from qdqtool.core import artefacts
from qdqtool.core.kinds import LOG, REPORT
from qdqtool.pipeline.runner import LINE, _beside
from qdqtool.report import html
from qdqtool.report.section import sections


def test_the_job_runs_beside_the_block_and_is_done_at_its_end() -> None:
    met, threads = Event(), []

    def job() -> None:
        assert met.wait(10)  # only the block lets it end: they run at the same time
        threads.append(current_thread())

    with _beside(job):
        met.set()
    assert len(threads) == 1
    assert threads[0] is not main_thread()


def test_what_the_job_raises_is_raised_and_what_the_block_raises_comes_first() -> None:
    def job() -> None:
        raise ValueError("of the job")

    with pytest.raises(ValueError, match="of the job"), _beside(job):
        pass
    with pytest.raises(KeyError, match="of the block"), _beside(job):
        raise KeyError("of the block")


def test_after_the_build_nothing_is_left_to_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "_ADAPTERS", {})
    html._compile_template.cache_clear()
    build = next(step for step in LINE if step.name == "build")
    assert build.meanwhile is not None
    build.meanwhile()
    assert {LOG.type, REPORT.type} <= artefacts._ADAPTERS.keys()
    pages = {section.page for _, section in sections()}
    assert html._compile_template.cache_info().currsize == len(pages)
