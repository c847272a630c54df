"""The verdict of a run: three questions, the evidence of each answer, and one word derived from them by a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from qdqtool.core.commands import Command

State = Literal["yes", "no", "unknown"]
GOOD, DOUBTFUL, BAD = VERDICTS = ("good", "doubtful", "bad")
"""All verdicts, best first."""

ASKED, ACCURATE, WORTH = QUESTIONS = ("asked", "accurate", "worth")
TITLES: Final = {ASKED: "As asked", ACCURATE: "Accurate", WORTH: "Worth it"}
_LEVELS: Final[dict[str, dict[State, str]]] = {
    ASKED: {"yes": GOOD, "unknown": DOUBTFUL, "no": DOUBTFUL},
    ACCURATE: {"yes": GOOD, "unknown": DOUBTFUL, "no": BAD},
    WORTH: {"yes": GOOD, "unknown": DOUBTFUL, "no": DOUBTFUL},
}
"""The best verdict that each answer allows. A wrong result must not be used. A result that is not in the
requested format, or not faster than FP16, can be used.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The answer to one question about a run.

    Attributes:
        state: "yes", "no" or "unknown".
        evidence: the figures or the finding for it, in one sentence.
        settle: the command that would answer an unknown; None if nothing is known to. For `run` these are the options
            to add to the run.
    """

    state: State
    evidence: str
    settle: Command | None = None

    def level(self, question: str) -> str:
        """Return the word that colours a tile, from the table, or "unknown"."""
        return "unknown" if self.state == "unknown" else _LEVELS[question][self.state]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunVerdict:
    """The verdict on the result of a run: whether it can be used.

    Attributes:
        answer: "good", "doubtful" or "bad": the worst value of the three answers.
        asked: whether the engine computes in the requested formats.
        accurate: whether the outputs or the task metric are good enough.
        worth: whether the engine is faster than the same network in FP16.
        settle: the one command that answers the first unknown question; None if none is unknown.
    """

    answer: str
    asked: Reply
    accurate: Reply
    worth: Reply
    settle: Command | None = None

    @property
    def answers(self) -> tuple[tuple[str, Reply], ...]:
        """The three questions with their answers, in order."""
        return ((ASKED, self.asked), (ACCURATE, self.accurate), (WORTH, self.worth))


def verdict_of(as_asked: Reply, accurate: Reply, worth: Reply, settle: Command | None = None) -> RunVerdict:
    """Return the verdict that the table gives for three answers."""
    levels = (
        _LEVELS[question][answer.state]
        for question, answer in zip(QUESTIONS, (as_asked, accurate, worth), strict=True)
    )
    return RunVerdict(
        answer=max(levels, key=VERDICTS.index), asked=as_asked, accurate=accurate, worth=worth, settle=settle
    )


_NOT_CHECKED = Reply(state="unknown", evidence="not checked")
UNDECIDED: Final = verdict_of(_NOT_CHECKED, _NOT_CHECKED, _NOT_CHECKED)
"""The verdict of a run that was not judged yet."""


def is_judged(answer: str, limit: str) -> bool:
    """Return True if the verdict `answer` is `limit` or worse."""
    return VERDICTS.index(answer) >= VERDICTS.index(limit)


GIVEN, GUESSED = "given", "guessed, because no source gives it"
"""Sources of an assumption: the user, or nobody. Others are "read from ..." and "guessed, and tried on ..."."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """A value that a result depends on, and its source.

    Attributes:
        what: "scale", "size", "colour order", "shape of x" ...
        value: in words.
        source: "given", "read from ..." or "guessed ...".
    """

    what: str
    value: str
    source: str

    @property
    def is_guessed(self) -> bool:
        """True if nothing confirms that the value is right."""
        return self.source.startswith("guessed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """Times of an engine and of the same network in FP16.

    Attributes:
        source: "measured" or "estimated"; "unknown" if there are no times, and `note` says why.
        device: the GPU that the times are for.
        ms: milliseconds of one inference of the engine; None if unknown.
        fp16_ms: milliseconds of the network in FP16.
        low: smallest speed-up over FP16 that the figures allow: 95 % interval if measured, else of four of five published
            times and the estimate, or the recorded errors of estimates.
        high: largest speed-up.
        kernels: kernels of both engines, the quantized one first; None if unknown.
        more: kernels that the quantized engine has more of, by what they do (`engine.costs.kinds`).
        note: why the times are unknown, or say little.
        advice: what published times of other networks say about INT8 here, in one line; empty if nothing.
    """

    source: str
    device: str = ""
    ms: float | None = None
    fp16_ms: float | None = None
    low: float | None = None
    high: float | None = None
    kernels: tuple[int, int] | None = None
    more: dict[str, int] = field(default_factory=dict)
    note: str = ""
    advice: str = ""
