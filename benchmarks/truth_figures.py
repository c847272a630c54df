"""What is counted over one network or many, and a line of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass
class Figures:
    """Counts over one network or many."""

    models: int = 0
    crashes: int = 0
    refused: int = 0
    lint_findings: int = 0
    nodes: int = 0
    nodes_told: int = 0
    precision_right: int = 0
    precision_untested: int = 0
    predicted: int = 0
    predicted_right: int = 0
    asked: int = 0
    asked_right: int = 0
    realised: int = 0
    realised_right: int = 0
    foreseen: int = 0
    foreseen_right: int = 0
    reasons: int = 0
    reasons_true: int = 0
    fixes: int = 0
    fixes_work: int = 0
    costs: int = 0
    costs_right: int = 0
    claims: int = 0
    proven: int = 0
    contradicted: int = 0
    untested: int = 0
    over_limit: int = 0
    advice: int = 0
    advice_executed: int = 0
    advice_works: int = 0
    misses: list[str] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def count(self, part: str, state: str, *, over: bool = False) -> None:
        """Count one sentence: `part` is "reason", "fix" or "cost", and `state` is the result of its experiment.

        `over` tells that an experiment was left out because of the limit: such a sentence is untested as any other.
        """
        self.claims += 1
        self.over_limit += over and state == "untested"
        setattr(self, state, getattr(self, state) + 1)
        if state == "untested":
            return
        whole, true = {
            "reason": ("reasons", "reasons_true"),
            "fix": ("fixes", "fixes_work"),
            "cost": ("costs", "costs_right"),
        }[part]
        setattr(self, whole, getattr(self, whole) + 1)
        setattr(self, true, getattr(self, true) + (state == "proven"))

    def summary(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if name != "misses"}


def line(figures: Figures) -> str:
    pairs = (
        ("lint findings", figures.lint_findings, figures.models), ("told", figures.nodes_told, figures.nodes), ("right", figures.precision_right, figures.nodes_told - figures.precision_untested),
        ("predicted", figures.predicted_right, figures.predicted), ("asked", figures.asked_right, figures.asked),
        ("realised", figures.realised_right, figures.realised), ("foreseen", figures.foreseen_right, figures.foreseen),
        ("reasons", figures.reasons_true, figures.reasons),
        ("fixes", figures.fixes_work, figures.fixes), ("costs", figures.costs_right, figures.costs),
        ("proven", figures.proven, figures.claims), ("contradicted", figures.contradicted, figures.claims),
        ("advice works", figures.advice_works, figures.advice_executed),
    )  # fmt: skip
    counts = ", ".join(f"{word} {part}/{whole}" for word, part, whole in pairs)
    return counts + ", CRASH" * figures.crashes
