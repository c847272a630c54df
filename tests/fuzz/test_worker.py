"""The fuzzer finds what it is there for: every kind of fault planted in a reader, each with its input, and nothing else."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from qdqtool.errors import Bug, InputFileError
from tests.fuzz import worker
from tests.fuzz.readers import READERS, Reader

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
# The children are forked from a process in which pytest-xdist listens; the fuzzer itself forks from one without threads.

held: list[int] = []
"""What a reader wrongly remembers of earlier inputs."""


def read_planted(path: Path) -> None:
    """Do what the input says."""
    word = path.read_bytes().decode()
    match word:
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(70)
        case "error":
            raise KeyError(word)
        case "bug":
            raise Bug("planted")
        case "memory":
            bytearray(96 << 20)
        case "work":
            while True:
                pass
        case "wait":
            time.sleep(1000)
        case "remember":
            held.append(1)
        case "stumble":
            assert not held, "an earlier input is remembered"
        case "leave":
            (path.parent / "folder").mkdir()
            (path.parent / "folder" / "file").touch()
        case "look":
            assert [entry.name for entry in path.parent.iterdir()] == [path.name]
        case "refuse":
            raise InputFileError("is planted", fix="plant nothing")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch):
    """Reads words in their order by the planted reader; findings by word."""
    monkeypatch.setattr(worker, "LOOKING_S", 0.05)
    monkeypatch.setattr(worker, "SILENT_S", 0.3)
    monkeypatch.setattr(worker, "MOST_BYTES", 64 << 20)
    monkeypatch.setattr(worker, "ASLEEP", 6)

    def findings(*words: str, batch: int = 500) -> dict[str, tuple[str, bool]]:
        monkeypatch.setattr(worker, "BATCH", batch)
        monkeypatch.setitem(READERS, "planted", Reader(dict, lambda content, _: content, read_planted))
        fuzzer = worker.Fuzzer("planted", {"all": b""})
        monkeypatch.setattr(fuzzer, "content", lambda number: (".txt", words[number].encode()))
        found = {words[one.number]: (one.kind, one.alone) for one in fuzzer.findings(range(len(words)))}
        assert fuzzer.inputs == len(words)
        return found

    return findings


def test_good_and_refused_inputs_are_no_findings(read):
    assert read("fine", "refuse", "leave", "look") == {}


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("crash", "crashes"),
        ("exit", "crashes"),
        ("error", "internal_errors"),
        ("bug", "internal_errors"),
        ("memory", "over_memory"),
        ("work", "hangs"),
        ("wait", "hangs"),
    ],
)
def test_a_planted_fault_is_found_and_costs_no_other_input(read, word, kind):
    assert read("fine", word, "fine", "refuse") == {word: (kind, True)}


def test_what_one_input_took_is_not_counted_for_the_next(read):
    assert read("memory", "fine", "fine") == {"memory": ("over_memory", True)}


def test_a_fault_that_earlier_inputs_brought_about_is_told_from_one_of_its_own(read):
    assert read("remember", "stumble") == {"stumble": ("internal_errors", False)}
    assert read("remember", "stumble", batch=1) == {}


def test_a_mistake_of_the_fuzzer_itself_is_told(read, monkeypatch):
    monkeypatch.setattr(worker, "wrong", lambda tried: tried["no such key"])
    fuzzer = worker.Fuzzer("labels", READERS["labels"].seeds())
    (found,) = list(fuzzer.findings(range(1)))
    assert "no such key" in found.why


def test_an_input_is_the_same_whatever_was_read_before_it():
    files = READERS["caches"].seeds()
    several = worker.Fuzzer("caches", files, seed=3)
    contents = [several.content(number) for number in range(20)]
    random.Random(1).shuffle(contents)
    assert sorted(contents) == sorted(worker.Fuzzer("caches", files, seed=3).content(at) for at in range(20))
    assert contents != [worker.Fuzzer("caches", files, seed=4).content(at) for at in range(20)]
