"""The report as one page without external files: it opens from disk, and depends only on the report."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TypedDict

from jinja2 import Environment, Template
from markupsafe import Markup, escape

from qdqtool.core.buildlog import LayerHistory
from qdqtool.core.difference import EngineDiff
from qdqtool.core.engine import Certainty
from qdqtool.core.events import LedgerRow
from qdqtool.core.findings import Finding, NodeVerdict
from qdqtool.core.report import TITLES, LayerRow, Report
from qdqtool.core.wording import metric
from qdqtool.io.escaping import xml_line
from qdqtool.pages import explanation
from qdqtool.report import sensitivity_charts, svg, words
from qdqtool.report.assemble import runs_as_asked
from qdqtool.report.drawing import LARGEST, BoxMark, LayerGraph, describe, draw, network
from qdqtool.report.figures import Figure, figures
from qdqtool.report.rows import FindingGroup, alike, groups, model_rows, places
from qdqtool.report.section import SECTIONS, Section, sections
from qdqtool.report.sides import Sides, compare_sides
from qdqtool.report.templates import environment
from qdqtool.trt.histories import event_words, fate_words, myelin_words, tuning_words

# --- the page --------------------------------------------------------------------------------------------------------

_MACROS = '{% import "macros.html" as m with context %}'
_CODE = re.compile(r"`([^`]+)`")
_HEAD, _TAIL = 12, 48
"""Numbers of letters that are shown from the start and the end of a long file name; its tooltip is the whole name."""
_LARGE = 500
"""Number of layers above which parts of the page are laid out only when scrolled to: 5,000 took seconds otherwise."""


def render(
    report: Report,
    against: Report | None = None,
    diff: EngineDiff | None = None,
    names: tuple[str, str] | None = None,
) -> str:
    """Return the HTML text of the page; all text from a model or a dump is escaped.

    With `against`, a second run, the page shows both runs and their differences. `diff`, a comparison of their
    engines, adds the reasons. `names` distinguishes the runs if their models do not.
    """
    first, second = names or ("", "")
    runs = [_RunPage("a", report, first)] + ([_RunPage("b", against, second)] if against is not None else [])
    page = _templates().get_template("page.html")
    return page.render(
        runs=[(run, _parts(run)) for run in runs],
        large=any(len(run.report.layers) > _LARGE for run in runs),
        sides=_sides(report, against),
        diff=diff,
        what="precision report" if report.layers or report.verdicts else words.title(report),
    )


def get_ready() -> None:
    """Compile all templates, so that the first page is not slower than others."""
    templates = _templates()
    templates.get_template("page.html")
    for name, _ in sections():
        SECTIONS.survives(name, lambda section: _compile_template(section.page))


@cache
def _compile_template(page: str) -> Template:
    """Compile the template of a section. The template of a third-party section may be invalid.

    Raises:
        TemplateError: its syntax is.
    """
    return _templates().from_string(_MACROS + page)


@cache
def _templates() -> Environment:
    templates = environment()
    templates.filters["prose"] = _prose
    templates.filters["metric_name"] = metric
    templates.filters["places"] = places
    templates.filters["alike"] = alike
    templates.filters["brief"] = _brief
    templates.globals.update(
        words=words,
        titles=TITLES,
        swatch=svg.swatch,
        in_order=svg.in_order,
        runs_as_asked=runs_as_asked,
        noise_cause=sensitivity_charts.cause,
        cure_gain=sensitivity_charts.gain,
        noise_advice=sensitivity_charts.advice,
    )
    return templates


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A section of the HTML report page, rendered."""

    name: str
    title: str
    html: Markup


def _parts(run: _RunPage) -> tuple[_Part, ...]:
    """Render every section that has content. A third-party section that fails is left out."""
    parts: list[_Part] = []
    for name, section in run.sections:

        def fill(_plugin: object, name: str = name, section: Section = section) -> None:
            html = Markup(_compile_template(section.page).render(run=run, report=run.report))  # noqa: S704 -- autoescaped
            parts.append(_Part(name=name, title=section.title, html=html))

        SECTIONS.survives(name, fill)
    return tuple(parts)


def _prose(text: str) -> Markup:
    """Return a sentence as HTML, with text between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(xml_line(text)))))  # noqa: S704 -- escaped above


def _brief(name: str) -> str:
    """Shorten a file name in the middle. The end stays, because it distinguishes the files of a series."""
    return name if len(name) <= _HEAD + _TAIL else f"{name[:_HEAD]}\N{HORIZONTAL ELLIPSIS}{name[-_TAIL:]}"


def _sides(report: Report, against: Report | None) -> Sides | None:
    return None if against is None else compare_sides(report, against)


@dataclass(frozen=True)
class _RunPage:
    """One run on the HTML page. `key` distinguishes two runs; `label` is an optional name."""

    key: str
    report: Report
    label: str = ""

    @property
    def name(self) -> str:
        """The name of the run, for a page with two runs."""
        return self.label or self.report.summary.model

    @cached_property
    def sections(self) -> tuple[tuple[str, Section], ...]:
        """The sections of the page that have content."""
        visible: list[tuple[str, Section]] = []
        for name, section in sections():

            def look(_plugin: object, name: str = name, section: Section = section) -> None:
                if section.page and section.shown(self.report):
                    visible.append((name, section))

            SECTIONS.survives(name, look)
        return tuple(visible)

    def manual(self, code: str) -> str | None:
        """Return the documentation page of a code."""
        return explanation(code)

    @cached_property
    def network(self) -> LayerGraph:
        return network(self.report.layers)

    @cached_property
    def marks(self) -> dict[int, BoxMark]:
        return marks(self.report)

    @cached_property
    def ticks(self) -> list[tuple[int, str]]:
        """The layers with warnings or errors: their position in the drawing, and their severity."""
        places = {number: place for place, number in enumerate(self.network.numbers)}
        return [
            (places[number], mark.severity.value)
            for number, mark in self.marks.items()
            if mark.severity.rank and number in places
        ]

    @cached_property
    def is_too_large(self) -> bool:
        return len(self.network.layers) > LARGEST

    @cached_property
    def graph(self) -> Markup | None:
        """The engine's drawing; None if there is nothing to draw, or the engine is too large."""
        connected = any(layer.inputs or layer.outputs for layer in self.network.layers)
        drawable = connected and not self.is_too_large
        return svg.inline(draw(self.network, self.marks)) if drawable else None

    @cached_property
    def model(self) -> _RunPage:
        """The nodes of the model as layers, for a drawing like that of an engine."""
        return _RunPage(f"{self.key}-model", replace(self.report, layers=model_rows(self.report)))

    @cached_property
    def groups(self) -> tuple[FindingGroup, ...]:
        return groups(self.report)

    @cached_property
    def time(self) -> float:
        """Milliseconds of all layers; 0 if they were not measured."""
        return sum(layer.ms or 0.0 for layer in self.report.layers)

    @cached_property
    def details(self) -> list[Detail]:
        return details(self.report)

    @cached_property
    def figures(self) -> tuple[tuple[Figure, tuple[Markup, ...]], ...]:
        """Charts, each with its drawings as markup."""
        return tuple(
            (figure, tuple(svg.inline(drawing) for drawing in figure.drawings))
            for figure in figures(self.report)
        )

    @cached_property
    def layer_of(self) -> dict[str, int]:
        """Layer numbers, by the name of a layer or of an ONNX node in it. For repeated names, the first layer counts."""
        numbers: dict[str, int] = {}
        for number, layer in enumerate(self.report.layers):
            numbers.setdefault(layer.name, number)
        for number, layer in enumerate(self.report.layers):
            for node in layer.onnx_nodes:
                numbers.setdefault(node, number)
        return numbers


# --- details of one layer --------------------------------------------------------------------------------------------
# Everything about one engine layer, ready to be shown when somebody clicks on it.


class FindingText(TypedDict):
    """The text of one finding: the problem and the fix."""

    severity: str
    title: str
    reason: str
    fix: str


class Detail(TypedDict):
    """The details of one layer: facts are pairs of a name and a value; each list has a title and lines."""

    name: str
    find: str
    facts: list[tuple[str, str]]
    findings: list[FindingText]
    lists: list[tuple[str, list[str]]]


def details(report: Report) -> list[Detail]:
    """Return the details of each layer, in launch order. `find` is the text that a search looks in, in lower case."""
    fates = {row.node: row for row in report.ledger}
    judged = {verdict.node: verdict for verdict in report.verdicts}
    findings = findings_of(report)
    return [_detail(layer, own, fates, judged) for layer, own in zip(report.layers, findings, strict=True)]


def findings_of(report: Report) -> list[list[Finding]]:
    """Return the findings of each layer: about the layer itself, its ONNX nodes or its tensors."""
    by_subject: dict[str, list[Finding]] = defaultdict(list)
    for entry in report.findings:
        by_subject[entry.subject].append(entry)
    return [
        [entry for subject in _subjects(layer) for entry in by_subject.get(subject, ())]
        for layer in report.layers
    ]


def marks(report: Report) -> dict[int, BoxMark]:
    """Return the number of findings and their worst severity by layer number, without layers that have none."""
    return {
        number: BoxMark(
            count=len(own),
            severity=max((entry.severity for entry in own), key=lambda severity: severity.rank),
        )
        for number, own in enumerate(findings_of(report))
        if own
    }


def _subjects(layer: LayerRow) -> tuple[str, ...]:
    tensors = (*layer.inputs, *layer.constants, *layer.outputs)
    return tuple(dict.fromkeys((layer.name, *layer.onnx_nodes, *(tensor.name for tensor in tensors))))


def _detail(
    layer: LayerRow, findings: list[Finding], fates: dict[str, LedgerRow], judged: dict[str, NodeVerdict]
) -> Detail:
    history = layer.history or LayerHistory()
    searched = [tuning_words(history.tuning)] if history.tuning else []
    lists = [
        ("ONNX nodes", [_node(name, judged.get(name)) for name in layer.onnx_nodes]),
        ("Inputs", [describe(tensor) for tensor in layer.inputs]),
        ("Weights and constants", [describe(tensor) for tensor in layer.constants]),
        ("Outputs", [describe(tensor) for tensor in layer.outputs]),
        (
            "Q and DQ nodes that ended here",
            [fate_words(fates[name]) for name in history.qdq if name in fates],
        ),
        ("What the optimizer did", [event_words(event) for event in history.events]),
        ("Search for the kernel", [*searched, *map(myelin_words, history.myelin)]),
    ]
    return Detail(
        name=xml_line(layer.name),
        find=xml_line(
            "\n".join((layer.kind, layer.tactic, layer.precision.value, *_subjects(layer))).lower()
        ),
        facts=[(name, xml_line(value)) for name, value in _facts(layer) if value],
        findings=[_finding_text(entry) for entry in findings],
        lists=[(title, [xml_line(line) for line in lines]) for title, lines in lists if lines],
    )


def _finding_text(entry: Finding) -> FindingText:
    about = f"{entry.severity.value} {entry.code}: {entry.check.replace('_', ' ')}"
    reason, fix = xml_line(entry.reason), xml_line(entry.fix)
    return FindingText(severity=entry.severity.value, title=xml_line(about), reason=reason, fix=fix)


def _facts(layer: LayerRow) -> list[tuple[str, str]]:
    guess = "" if layer.certainty is Certainty.STATED else f" ({layer.certainty.value})"
    return [
        ("Type", layer.kind),
        ("Precision", f"{layer.precision}{guess}"),
        ("Role", layer.role.value),
        ("Kernel", layer.tactic),
        ("Time", "" if layer.ms is None else f"{layer.ms:.4g} ms (measured)" if layer.ms else "0 ms: elided"),
        ("Activations", "" if layer.bytes is None else words.size(layer.bytes)),
        ("Weights", words.size(layer.weight_bytes) if layer.weight_bytes else ""),
        ("MACs", "" if layer.macs is None else f"{layer.macs:,}"),
        ("As a GEMM", "M {:,}, N {:,}, K {:,}".format(*layer.gemm) if layer.gemm else ""),
        ("Intensity", "" if layer.intensity is None else f"{layer.intensity:.4g} MACs/byte"),
        ("Achieved", "" if layer.tflops is None else f"{layer.tflops:.3g} TFLOP/s (measured)"),
        ("Memory", "" if layer.gbs is None else f"{layer.gbs:.4g} GB/s (measured)"),
        ("Bound by", layer.bound),
    ]


def _node(name: str, verdict: NodeVerdict | None) -> str:
    if verdict is None:
        return name
    reason = f": {verdict.reason}" if verdict.reason else ""
    fix = f" Fix: {verdict.fix}" if verdict.fix else ""
    return f"{name} ({verdict.op}) {verdict.verdict.value}{reason}{fix}"
