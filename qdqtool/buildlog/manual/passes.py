"""The manual of passes: find a page by the name of a pass, or of a step that has no pass."""

from __future__ import annotations

from qdqtool.buildlog.manual import generic, quantizing
from qdqtool.buildlog.manual.page import Page

STEPS = (
    Page(
        name="Removing",
        what="A node has no reader any more, or was taken into another one: it is dropped.",
        before="x -> node",
        after="x",
        int8="Below a quantizing pass it confirms that a Q or DQ was taken.",
    ),
    Page(
        name="Merging layers",
        what="Layers of one kind that read the same tensor become one (`A || B`).",
        before="x -> Conv A; x -> Conv B",
        after="x -> Conv A || Conv B",
        int8="Good, if all of them agree in type: quantize all readers of a tensor or none.",
    ),
    Page(
        name="Eliminating concatenation",
        what="The inputs of a Concat are written next to each other straight away, so that nothing is left to do.",
        before="a, b -> Concat -> c",
        after="a and b are parts of c",
        int8="Works when all inputs have one type, scale and format; `Generating copy ...` names those that have to be "
        "copied.",
    ),
    Page(
        name="Eliminating slice",
        what="Readers of a slice read the part of the whole tensor in place.",
        before="x -> Slice -> y",
        after="y is a part of x",
        int8="Channel-vectorized INT8 formats (4 or 32 channels) need slices at multiples of the vector.",
    ),
    Page(
        name="Generating copy",
        what="A tensor has to be copied into its place in a Concat, because it is written elsewhere or cannot be strided.",
        before="a -> Concat",
        after="a -> copy -> part of the Concat",
        int8="A kernel at run time. Often the branch comes from a Resize, an input, or another Concat.",
    ),
    Page(
        name="Retargeting",
        what="A layer writes directly into its part of another tensor.",
        before="layer -> a; a -> Concat",
        after="layer -> part of the Concat",
        int8="Good: no copy.",
    ),
)

PAGES: dict[str, Page] = {page.name.lower(): page for page in (*quantizing.PAGES, *generic.PAGES, *STEPS)}


def page_of(name: str) -> Page | None:
    """The page of a pass, whatever the case of its name; None where there is none."""
    return PAGES.get(name.strip().lower())
