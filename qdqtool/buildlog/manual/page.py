"""One page of the manual: what a pass does, with a picture before and after, and what it means for INT8."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A pass of the graph optimizer.

    Attributes:
        name: as the log prints it, its spelling mistakes kept.
        what: what it does.
        before, after: the graph, in arrows.
        int8: what it means for INT8.
        releases: where it was seen ("8.4-8.6"); "" for most releases.
    """

    name: str
    what: str
    before: str
    after: str
    int8: str
    releases: str = ""

    def text(self) -> str:
        """The page as a person reads it."""
        seen = f"\nseen in: TensorRT {self.releases}" if self.releases else ""
        return f"{self.name}\n{self.what}\n\nbefore:   {self.before}\nafter:    {self.after}\n\nfor INT8: {self.int8}{seen}\n"
