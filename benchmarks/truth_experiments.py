"""Puts every printed sentence of one run to the experiment that its claims name, and counts what became of it.

Fixes are typed as they are printed: settings through `run --set`, commands with the run's own files for their capital letters,
other samples where samples were missing. What nothing can be typed for is done as an edit of the model (`truth_edits.py`).
"""

from __future__ import annotations

import glob
import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import onnx
from truth_claims import CONTRADICTED, COST, FIX, OF_ENGINE, PROVEN, REASON, Built, judged, together
from truth_edits import bare, folded, quantized, quantizers
from truth_engine import LOW, Kernel, asked, kernels
from truth_figures import Figures

from qdqtool.core.advice import is_worth_trying
from qdqtool.core.wording import Action, Command, Setting, actions

_OF_NODE = frozenset(
    {
        "is_kept",
        "quantizes_more",
        "loses_accuracy",
        "more_kernels",
        "more_bytes",
        "no_kernel",
        "nothing_helps",
        "stays_apart",
    }
)
"""Claims about an engine in which the node is quantized."""
_SAMPLES, _FEW, _EVALUATED = "--samples DATA", 16, 8
_FIX_BUILDS = 4

Tool = Callable[..., CompletedProcess[str]]


@dataclass
class Experiments:
    """The engines that contradict or bear out the sentences of one run, each built once."""

    key: str
    model: Path
    out: Path
    recipe: str | Path
    target: tuple[str, ...]
    tool: Tool
    most: int
    _engines: dict[tuple[str, ...], Built | None] = field(default_factory=dict)
    _over: bool = False

    def judge(self, result: Figures, report: Mapping[str, Any]) -> None:
        """Count every sentence; one without a claim is untested."""
        before = built(self.out)
        rules, rows = refusals(self.out), list(sentences(report))
        said = defaultdict(set)
        for row in rows:
            said[row.reason, rules.get(row.subject[1], ())].add(row.subject[1])
        advice: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            alike = said[row.reason, rules.get(row.subject[1], ())]
            for part, text in row.parts.items():
                self._over = False
                states = [
                    judged(claim, row.subject, before, self.after(claim, row, before, rules, alike))
                    for claim in row.claims
                    if claim["part"] == part
                ]
                state = together(states)
                result.count(part, state, over=self._over)
                if state != PROVEN:
                    what = (
                        f"{part} {state}{' (--experiments)' * self._over} for {' '.join(row.subject).strip()}"
                    )
                    result.misses.append(f"{self.key}: {what}: {text[:300]}")
                if part == FIX and row.is_advice:
                    advice[row.fix].append(state)
        result.advice += len(advice)
        result.advice_executed += sum(set(states) <= {PROVEN, CONTRADICTED} for states in advice.values())
        result.advice_works += sum(set(states) == {PROVEN} for states in advice.values())

    def after(
        self,
        claim: Mapping[str, Any],
        row: Row,
        before: Built,
        rules: Mapping[str, tuple[str, ...]],
        alike: set[str],
    ) -> Built | None:
        """The engine that decides about a claim; None if nothing builds."""
        says, node = claim["says"], row.subject[1]
        if says in OF_ENGINE:
            return before
        if says not in _OF_NODE:
            return self.followed(row)
        if says in {"nothing_helps", "stays_apart"}:
            return self.by_hand(row, before)
        refused = rules.get(node, ())
        if refused:
            others = {name for name, found in rules.items() if set(found) & set(refused)} - alike
            skipped = self.once((), *skipping(refused, sorted(others)))
            if skipped is not None and (skipped.asks(node) or says == "is_kept"):
                return skipped
        if says == "is_kept":
            return self.followed(row)
        return before if before.asks(node) else self.by_hand(row, before)

    def followed(self, row: Row) -> Built | None:
        """The engine after a fix was typed, or done by hand; None if that gives no engine."""
        typed = actions(row.fix)
        settings = [one.text for one in typed if isinstance(one, Setting)]
        if settings:
            return self.once((), *settings)
        if typed:
            return self.once(("command", str(typed[0])), commands=typed)
        if _SAMPLES in row.fix:
            return self.once(("samples",))
        return self.by_hand(row, None) if "put Q/DQ" in row.fix else None

    def once(self, key: tuple[str, ...], *settings: str, commands: tuple[Action, ...] = ()) -> Built | None:
        """One experiment, once; None also when there were as many as may be."""
        whole = (*key, *settings)
        if whole not in self._engines:
            if len(self._engines) >= self.most:
                self._over = True
                return None
            out = self._folder(whole)
            self._engines[whole] = self._made(out, key, settings, commands)
            shutil.rmtree(out, ignore_errors=True)
        return self._engines[whole]

    def _folder(self, key: tuple[str, ...]) -> Path:
        out = self.out.parent / "experiments" / hashlib.sha256("\n".join(key).encode()).hexdigest()[:10]
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(exist_ok=True)
        return out

    def _made(
        self, out: Path, key: tuple[str, ...], settings: Sequence[str], commands: tuple[Action, ...]
    ) -> Built | None:
        if key and key[0] == "command":
            command = commands[0]
            return self._typed(command, out) if isinstance(command, Command) else None
        samples = self.samples() if key == ("samples",) else None
        done = self.run(out, *(part for text in settings for part in ("--set", text)), samples=samples)
        return built(out, random=samples is None) if done.returncode in {0, 1} else None

    def run(self, out: Path, *words: str, samples: Path | None = None) -> CompletedProcess[str]:
        given = ("--samples", samples or "random:2")
        return self.tool(
            "run", self.model, "--recipe", self.recipe, *given, "--out", out, *self.target, *words
        )

    def _typed(self, command: Command, out: Path) -> Built | None:
        """What a command leads to: an engine of the model that it writes, trials, or an answer."""
        words = [self._file(word) for word in command.arguments]
        if command.name == "repair" and "DATA" in command.arguments:  # random samples tell no range
            words = [
                str(self.samples()) if word == "DATA" else self._file(word) for word in command.arguments
            ]
        qdq = str(self.out / "model.qdq.onnx")
        if command.name in {"repair", "convert"}:
            written = out.with_suffix(".onnx")
            done = self.tool(command.name, qdq, *words, "--out", written)
            if done.returncode != 0:
                return None
            done = self.tool("run", written, "--samples", "random:2", "--out", out, *self.target)
            return built(out) if done.returncode in {0, 1} else None
        if command.name == "fix":
            done = self.tool(
                "fix", self.out, "--samples", "random:2", "--out", out, "--budget", str(_FIX_BUILDS), "--json"
            )
            tried = json.loads(done.stdout)["data"]["trials"] if done.returncode in {0, 1} else ()
            return Built((), tried=sum(trial["outcome"] != "not tried" for trial in tried)) if tried else None
        done = self.tool(command.name, *words)
        return Built((), answered=done.returncode in {0, 1})

    def _file(self, word: str) -> str:
        files = {
            "MODEL": self.model, "LAYERS": self.out / "layers.txt", "LOG": self.out / "build.log",
            "DATA": "random:2", "RUN": self.out,
        }  # fmt: skip
        return str(files.get(word, word))

    def by_hand(self, row: Row, before: Built | None) -> Built | None:
        """The engine with the node quantized by hand, or without the Q/DQ of a kernel and of those beside it."""
        path = self.out / "model.qdq.onnx"
        edited = quantized(onnx.load(path), row.subject[1])
        if edited is None and before is not None:
            edited = bare(onnx.load(path), beside(before.kernels, row.subject[1]))
        key = ("by hand", row.subject[1])
        if edited is None:
            key = ("folded",)
        if key in self._engines or len(self._engines) >= self.most:
            self._over = self._over or key not in self._engines
            return self._engines.get(key)
        out = self._folder(key)
        written = out.with_suffix(".onnx")
        if edited is None:
            edited = folded(path, written)
        if edited is None:
            return None
        onnx.save(edited, written)
        done = self.tool("build", written, "--out", out, *self.target)
        made = None
        if done.returncode == 0:
            made = Built(
                kernels((out / "layers.txt").read_text()),
                asked(edited, _every_op(edited)),
                quantizers=quantizers(edited),
            )
        shutil.rmtree(out, ignore_errors=True)
        self._engines[key] = made
        return made

    def samples(self) -> Path:
        """A folder of smooth waves for every input, one sample a file, as a user has them: no random numbers of this tool."""
        folder = self.out.parent / "samples"
        folder.mkdir(exist_ok=True)
        shapes = json.loads((self.out / "build.json").read_text())["data"]["profiles"]
        known = {entry["name"]: entry["opt"] for entry in shapes}
        values = {}
        for value in onnx.load(self.model, load_external_data=False).graph.input:
            kind = value.type.tensor_type
            shape = known.get(value.name) or [max(1, dim.dim_value) for dim in kind.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            places = np.arange(int(np.prod(shape))).reshape(shape) * 0.37
            values[value.name] = places, dtype, 1 if np.issubdtype(dtype, np.floating) else 3
        for step in range(_FEW):
            waves = {
                name: (
                    np.sin(places / (1 + step)) if most == 1 else np.abs(np.sin(places + step)) * most
                ).astype(dtype)
                for name, (places, dtype, most) in values.items()
            }
            np.savez(folder / f"{step:03}.npz", **waves)
        return folder


def beside(dump: Sequence[Kernel], name: str) -> set[str]:
    """The nodes of a kernel, of those that write what it reads, and of those that read what it writes."""
    held = [kernel for kernel in dump if kernel.name == name]
    reads = {tensor.name for kernel in held for tensor in kernel.inputs}
    writes = {tensor.name for kernel in held for tensor in kernel.outputs}
    near = [
        kernel
        for kernel in dump
        if reads & {tensor.name for tensor in kernel.outputs}
        or writes & {tensor.name for tensor in kernel.inputs}
    ]
    return {node for kernel in (*held, *near) for node in kernel.nodes}


@dataclass(frozen=True)
class Row:
    """One row of an audit: what it is about, its sentences, and their claims."""

    subject: tuple[str, str]
    reason: str
    fix: str
    claims: tuple[Mapping[str, Any], ...]

    @property
    def is_advice(self) -> bool:
        return is_worth_trying(self.fix)

    @property
    def parts(self) -> dict[str, str]:
        """The sentences that are printed, by part."""
        cost = any(claim["part"] == COST for claim in self.claims)
        return {
            part: text
            for part, text in ((REASON, self.reason), (FIX, self.fix), (COST, self.fix if cost else ""))
            if text
        }


def sentences(report: Mapping[str, Any]) -> Iterator[Row]:
    """Rows with a reason: of nodes that are not as asked, and of findings that do not repeat such a row."""
    told = set()
    for verdict in report["verdicts"]:
        as_asked = verdict["asked"] not in {"float", ""} and verdict["asked"] == verdict["realised"]
        if verdict["precision"] in LOW.values() or as_asked or not verdict["reason"]:
            continue
        told.add((verdict["node"], verdict["fix"]))
        yield Row(("", verdict["node"]), verdict["reason"], verdict["fix"], claims_of(verdict))
    for found in report["findings"]:
        if (found["subject"], found["fix"]) not in told:
            yield Row((found["code"], found["subject"]), found["reason"], found["fix"], claims_of(found))


def claims_of(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    return tuple(entry.get("claims", ()))


def skipping(rules: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The settings that quantize the nodes which these rules refuse, without `others`."""
    settings = [f"place.skip_rules=[{', '.join(rules)}]"]
    if others:
        settings.append(f"place.exclude={json.dumps([glob.escape(name) for name in others])}")
    return tuple(settings)


def built(out: Path, *, random: bool = True) -> Built:
    """What a run folder holds of its engine."""
    report = json.loads((out / "report.json").read_text())["data"]
    path = out / "model.qdq.onnx"
    model = onnx.load(path) if path.exists() else onnx.ModelProto()
    return Built(
        kernels=kernels((out / "layers.txt").read_text()),
        asked=asked(model, _every_op(model)),
        computes=tuple(verdict["node"] for verdict in report["verdicts"]),
        findings=tuple((found["code"], found["subject"]) for found in report["findings"]),
        quantizers=quantizers(model),
        noise=_noise(report),
        random=random,
    )


def _every_op(model: onnx.ModelProto) -> frozenset[str]:
    return frozenset(node.op_type for node in model.graph.node if not node.op_type.endswith("Linear"))


def _noise(report: Mapping[str, Any]) -> float | None:
    values = [
        measure["value"]
        for output in (report.get("comparison") or {}).get("outputs", ())
        for measure in output["measures"]
        if measure["metric"] == "sqnr_db" and measure["value"] is not None
    ]
    return min(values, default=None)


def refusals(out: Path) -> dict[str, tuple[str, ...]]:
    """Node -> the rules that refuse one of its inputs; nothing where nothing was placed."""
    placed = out / "placement.json"
    if not placed.exists():  # the model came with Q/DQ
        return {}
    decisions = json.loads(placed.read_text())["data"]["decisions"]
    found: dict[str, set[str]] = defaultdict(set)
    for decision in decisions:
        for opinion in decision["opinions"]:
            if opinion["stance"] == "veto" and opinion["rule"] not in {"bond", "user"}:
                found[decision["slot"]["node"]].add(opinion["rule"])
    return {node: tuple(sorted(rules)) for node, rules in found.items()}


__all__ = ["Experiments", "built"]
