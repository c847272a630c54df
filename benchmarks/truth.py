"""What a user may believe: precisions, reasons, fixes and kernels, put to the test on networks that nobody tuned for.

    python benchmarks/truth.py [--quick] [--seed N] [--models N] [--only WORD ...] [--cache DIR] [--jobs N]
    python benchmarks/truth.py --family exporters [--only WORD ...]
    python benchmarks/truth.py --files FOLDER [--recipe transformer-fp8 --sm 89]

Every network is exported with random weights (timm, torchvision, transformers and hand-written modules; both
exporters, several opsets, free dimensions, no node names, NHWC and dims of -1 as other frameworks write them). A third
of them is drawn from the libraries' own lists by `--seed`, so that "unseen" can be drawn again. Each one goes through
`qdqtool recipe new`, `run` and `predict` as a stranger would type them. Then

- the layer dump of the engine is read by a parser that shares nothing with the tool (`truth_engine.py`), and every compute
  node's precision is compared with what the audit and the prediction say; so is the format that the Q/DQ nodes ask for and
  the one that is realised, with weights that are dequantized inside the kernel and before it;
- `lint` reads the Q/DQ model that was written: `lint_findings` counts its warnings and errors;
- every printed sentence (reason, fix, cost of the fix) carries typed claims (`qdqtool/core/claims.py`), and each claim is put to
  an experiment (`truth_experiments.py`): what a reason says of the engine is looked up in its dump; for a refusal the rule is
  skipped for these nodes alone; a fix is typed as it is printed, with other samples where it asks for samples, or done as an
  edit of the model; and for "nothing to do" the edits are made that could help. A sentence is proven, contradicted, or
  untested: it carries no claim, its experiment does not build, the dump parser does not know the node, or the experiment is
  beyond the limit of `--experiments` (`over_limit`). Untested is not true. Each sentence that is not proven is printed;
- `advice` counts the different fixes that are printed, without "nothing to do"; `advice_executed` those that an experiment
  could judge; `advice_works` those of which every claim is proven.

`recipe new` writes INT8 recipes; with `--recipe` another format and with `--sm` another GPU is put to the same test.

`--family exporters` measures what today's exporters write: attention, norms and rotary positions as one operator, caches,
experts, state-space models and blocks of diffusion networks, from opset 18 to 25 and by both exporters.

With `--files` the networks are the ONNX files of a folder, as their makers left them: nothing is exported, no torch is
needed, and all of them count as first contact.

Exports and results are cached in DIR, results by the code that made them; a stopped run goes on. Drawn networks come
first and in no order, so that a run that is stopped has measured a fair part of them. The last line is one JSON object; `first_contact` holds the same figures over the drawn networks alone.

Needs torch==2.13.0 (CPU), timm, torchvision and transformers, which it installs into an environment of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from checkout import ROOT
from environment import environment
from onnx import helper
from truth_engine import BEFORE, LOW, Kernel, asked, kernels, precisions, realised
from truth_experiments import Experiments
from truth_figures import Figures, line

PACKAGES = (
    "torch==2.13.0", "onnx", "onnxscript", "transformers", "numpy", "pyyaml", "huggingface_hub", "safetensors",
    "pillow",
)  # fmt: skip
WITHOUT_THEIR_NEEDS = ("torchvision==0.28.0", "timm")
"""Installed by themselves: what they ask for would replace the CPU build of torch."""
COMPUTE = ("Conv", "ConvTranspose", "Gemm", "MatMul")
RUN_S, EXPORT_S = 420, 300
"""Ends of Q nodes that leave no kernel behind."""


@dataclass(frozen=True)
class Spec:
    """One network and how it is written."""

    source: str
    exporter: str = "legacy"
    opset: int = 17
    dynamic: str = "none"
    variant: str = ""
    drawn: bool = False

    @property
    def file(self) -> Path | None:
        """The ONNX file that is measured as it is."""
        kind, _, name = self.source.partition(":")
        return Path(name) if kind == "file" else None

    @property
    def key(self) -> str:
        if self.file is not None:
            return re.sub(r"[^\w.-]+", "_", f"file-{self.file.stem}")
        words = (self.source, self.exporter, f"o{self.opset}", self.dynamic, self.variant or "plain")
        return re.sub(r"[^\w.-]+", "_", "-".join(words))


HAND = (
    Spec("hand:gru", opset=14), Spec("hand:gru-bidirectional"), Spec("hand:lstm", dynamic="batch"),
    Spec("hand:rnn", opset=18), Spec("hand:upsampler"), Spec("hand:upsampler", "dynamo", 18),
    Spec("hand:attention"), Spec("hand:attention", "dynamo", 20, "batch"), Spec("hand:attention-bias"),
    Spec("hand:attention-grouped"), Spec("hand:attention-rotary", "dynamo", 18), Spec("hand:attention-einsum"),
    Spec("hand:attention-einsum", "dynamo", 21), Spec("hand:sampler", opset=16), Spec("hand:branches", opset=16),
    Spec("hand:volume"), Spec("hand:volume", variant="nameless"), Spec("hand:waves", dynamic="batch"),
    Spec("hand:waves", "dynamo", 18), Spec("hand:recommender"), Spec("hand:recommender", dynamic="batch"),
    Spec("hand:spectrogram"), Spec("hand:spectrogram", "dynamo", 18, "batch"), Spec("hand:spectrogram-late"),
)  # fmt: skip
CHOSEN = (
    Spec("timm:resnet18", opset=11), Spec("timm:resnet18", "dynamo", 18, "batch"),
    Spec("timm:mobilenetv3_small_100"), Spec("timm:mobilenetv3_small_100", variant="paddle", dynamic="batch"),
    Spec("timm:efficientnet_b0", opset=13, variant="nameless"), Spec("timm:efficientnet_lite0", variant="nhwc"),
    Spec("timm:mobilevit_xxs"), Spec("timm:edgenext_xx_small"), Spec("timm:levit_128s"), Spec("timm:convnext_atto"),
    Spec("timm:deit_tiny_patch16_224", "dynamo", 18), Spec("timm:vit_tiny_patch16_224", dynamic="batch"),
    Spec("timm:poolformer_s12"), Spec("timm:ghostnet_100", opset=12), Spec("timm:regnety_002"),
    Spec("timm:repvgg_a0", variant="nhwc"), Spec("timm:fastvit_t8"), Spec("timm:tiny_vit_5m_224"),
    Spec("timm:swin_tiny_patch4_window7_224"), Spec("timm:coat_tiny"), Spec("timm:xcit_nano_12_p16_224"),
    Spec("timm:mixer_s32_224"), Spec("timm:densenet121", variant="paddle"), Spec("timm:hardcorenas_a"),
    Spec("timm:tf_efficientnet_lite1"), Spec("timm:rexnet_100"), Spec("timm:starnet_s1"),
    Spec("torchvision:mobilenet_v2", dynamic="all"), Spec("torchvision:squeezenet1_1", variant="nameless"),
    Spec("torchvision:shufflenet_v2_x0_5"), Spec("torchvision:mnasnet0_5", opset=20, exporter="dynamo"),
    Spec("torchvision:lraspp_mobilenet_v3_large"), Spec("torchvision:googlenet", opset=15),
    Spec("torchvision:r3d_18"),
    Spec("transformers:bert", dynamic="all"), Spec("transformers:distilbert", "dynamo", 18),
    Spec("transformers:gpt2", opset=14), Spec("transformers:llama"), Spec("transformers:deberta-v2"),
    Spec("transformers:albert"), Spec("transformers:t5"), Spec("transformers:wav2vec2"),
    Spec("transformers:whisper"), Spec("transformers:segformer"), Spec("transformers:vit", variant="nameless"),
    Spec("transformers:swin"), Spec("transformers:mobilevit"), Spec("transformers:qwen3"),
)  # fmt: skip
EXPORTERS = (
    Spec("modern:decoder", "dynamo", 23), Spec("modern:decoder", "dynamo", 18, "all"), Spec("modern:decoder"),
    Spec("modern:decoder-even", "dynamo", 24), Spec("modern:decoder-bool", "dynamo", 23),
    Spec("modern:decoder-float", "dynamo", 25), Spec("modern:encoder", "dynamo", 23, "batch"),
    Spec("modern:cache", "dynamo", 23), Spec("modern:cache"), Spec("modern:cache-static", "dynamo", 24),
    Spec("modern:experts-all", "dynamo", 23), Spec("modern:experts-all", opset=18),
    Spec("modern:experts-gather", "dynamo", 21), Spec("modern:experts-loop", "dynamo", 23),
    Spec("modern:mamba", "dynamo", 18), Spec("modern:mamba2", "dynamo", 23), Spec("modern:mamba2"),
    Spec("modern:rwkv", "dynamo", 20), Spec("modern:slstm", "dynamo", 18), Spec("modern:mlstm", "dynamo", 23),
    Spec("modern:s4-conv", "dynamo", 22), Spec("modern:s4-product", "dynamo", 23),
    Spec("modern:min-gru", "dynamo", 25), Spec("modern:delta", "dynamo", 20), Spec("modern:gru", "dynamo", 23),
    Spec("modern:lstm"), Spec("modern:denoiser", "dynamo", 23), Spec("modern:denoiser"),
    Spec("modern:dit", "dynamo", 23), Spec("modern:dit", opset=18), Spec("modern:latent", "dynamo", 24),
    Spec("sdpa:qwen3", "dynamo", 23), Spec("sdpa:llama", "dynamo", 24), Spec("sdpa:gemma3_text", "dynamo", 23),
    Spec("sdpa:qwen3_moe", "dynamo", 23), Spec("sdpa:mixtral"), Spec("sdpa:bert", "dynamo", 23),
    Spec("sdpa:dinov2", "dynamo", 25), Spec("sdpa:siglip_vision_model", "dynamo", 23),
    Spec("sdpa:whisper", "dynamo", 23), Spec("transformers:mamba", "dynamo", 18),
    Spec("transformers:mamba2", "dynamo", 18), Spec("transformers:rwkv"), Spec("transformers:xlstm", "dynamo", 18),
    Spec("timm:efficientnetv2_rw_t", "dynamo", 22), Spec("timm:mobilenetv4_conv_small", "dynamo", 23),
    Spec("timm:convnextv2_atto", "dynamo", 25), Spec("timm:vit_tiny_patch16_224", "dynamo", 23),
)  # fmt: skip
FAMILIES = {"exporters": EXPORTERS}
QUICK = (0, 4, 6, 8, 11, 17, 19, 21, 25, 30, 35, 51, 58)
SHARES = {"timm": 0.5, "torchvision": 0.15, "transformers": 0.35}


def main() -> int:
    parser = argparse.ArgumentParser(description="Put precisions, reasons, fixes and kernels to the test.")
    parser.add_argument("--quick", action="store_true", help="thirteen networks, no draw")
    parser.add_argument("--seed", type=int, default=1, help="which networks are drawn")
    parser.add_argument("--models", type=int, default=105, help="how many networks")
    parser.add_argument("--family", choices=sorted(FAMILIES), help="these networks instead")
    parser.add_argument("--files", type=Path, help="the ONNX files of this folder instead")
    parser.add_argument("--recipe", default="", help="instead of the one that `recipe new` writes")
    parser.add_argument(
        "--sm", default="", help="the GPU to build for, such as 89; as a rule the tool's own choice"
    )
    parser.add_argument("--only", nargs="*", default=(), help="parts of names")
    parser.add_argument("--cache", type=Path, default=ROOT / "runs" / "truth")
    parser.add_argument("--venv", type=Path, default=ROOT / "runs" / "truth" / "venv")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--experiments", type=int, default=24, help="experiments of a network, at most")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    python = Path(sys.executable) if options.files else torch_python(options.venv)
    way = Way(options.recipe, ("--sm", options.sm) if options.sm else ())
    bench = Bench(python=python, cache=options.cache, experiments=options.experiments, way=way)
    specs = [
        spec for spec in bench.specs(options) if not options.only or any(w in spec.key for w in options.only)
    ]
    total, drawn, skipped = Figures(), Figures(), []
    with ThreadPoolExecutor(options.jobs) as pool:
        for spec, figures in zip(specs, pool.map(bench.measure, specs), strict=True):
            if figures is None:
                skipped.append(spec.key)
                continue
            total.add(figures)
            if spec.drawn:
                drawn.add(figures)
            print(f"{spec.key}: {line(figures)}", file=sys.stderr, flush=True)
    print("".join(f"missed {miss}\n" for miss in total.misses), end="")
    print("".join(f"not exported: {name}\n" for name in skipped), end="")
    print(json.dumps({**total.summary(), "not_exported": len(skipped), "first_contact": drawn.summary()}))
    return 0


def torch_python(folder: Path) -> Path:
    made = (folder / "bin" / "python").exists()
    python = environment(folder, PACKAGES)
    if not made:
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *WITHOUT_THEIR_NEEDS], check=True)
    return python


@dataclass(frozen=True)
class Way:
    """What the commands are told, the same for every network."""

    recipe: str = ""
    target: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return "-".join(part.strip("-") for part in (self.recipe, *self.target) if part)


@dataclass(frozen=True)
class Bench:
    """Where things are, and how one network is measured."""

    python: Path
    cache: Path
    experiments: int
    way: Way

    def specs(self, options: argparse.Namespace) -> list[Spec]:
        if options.files:
            files = sorted(options.files.glob("*.onnx"))
            return [Spec(f"file:{path.absolute()}", exporter="", drawn=True) for path in files]
        if options.family:
            return list(FAMILIES[options.family])
        fixed = [*HAND, *CHOSEN]
        if options.quick:
            return [fixed[index] for index in QUICK]
        drawn = list(self.draw(options.seed, max(0, options.models - len(fixed))))
        random.Random(options.seed).shuffle(drawn)
        return [*drawn, *fixed]

    def draw(self, seed: int, count: int) -> Iterator[Spec]:
        """Networks of the libraries' lists and how each is written, all by one seed."""
        chance = random.Random(seed)
        for library, share in SHARES.items():
            names = self.names(library)
            for name in chance.sample(names, min(len(names), round(share * count))):
                exporter = chance.choice(("legacy", "legacy", "dynamo"))
                opset = chance.choice((18, 20, 21) if exporter == "dynamo" else (13, 14, 16, 17, 19))
                dynamic = chance.choice(("none", "none", "batch", "all"))
                variant = chance.choice(("", "", "", "nameless", "paddle"))
                yield Spec(f"{library}:{name}", exporter, opset, dynamic, variant, drawn=True)

    def names(self, library: str) -> list[str]:
        path = self.cache / f"names-{library}.txt"
        if not path.exists():
            done = self.torch(["--list", library], timeout=1800)
            if done.returncode or not done.stdout.strip():
                sys.exit(f"the networks of {library} cannot be listed: {done.stderr.strip()[-300:]}")
            path.write_text(done.stdout)
        return path.read_text().split()

    def torch(self, arguments: Sequence[str], timeout: int) -> subprocess.CompletedProcess[str]:
        script = ROOT / "benchmarks" / "truth_export.py"
        return run([str(self.python), str(script), *arguments], timeout)

    def measure(self, spec: Spec) -> Figures | None:
        """Figures of one network, from the cache where this very code made them; None where torch cannot export it."""
        folder = self.cache / spec.key
        folder.mkdir(exist_ok=True)
        made = "-".join(filter(None, (code_digest(), str(self.experiments), self.way.key)))
        model, result = folder / "model.onnx", folder / f"figures-{made}.json"
        if result.exists():
            return Figures(**json.loads(result.read_text()))
        if not model.exists() and not self.export(spec, model):
            return None
        figures = Trial(
            spec=spec, folder=folder, model=model, experiments=self.experiments, way=self.way
        ).figures()
        result.write_text(json.dumps(asdict(figures)))
        return figures

    def export(self, spec: Spec, model: Path) -> bool:
        failed = model.with_name("not-exported.txt")
        if failed.exists():
            return False
        draft = model.with_name("draft.onnx")
        if spec.file is not None:
            shutil.copyfile(spec.file, draft)
            return self.take(draft, model, failed)
        settings = ["--exporter", spec.exporter, "--opset", str(spec.opset), "--dynamic", spec.dynamic]
        done = self.torch([spec.source, str(draft), *settings], EXPORT_S)
        if done.returncode or not draft.exists():
            failed.write_text(done.stderr[-2000:])
            return False
        proto = onnx.load(draft)
        VARIANTS[spec.variant](proto)
        onnx.save(proto, draft, save_as_external_data=False)
        Path(f"{draft}.data").unlink(missing_ok=True)
        return self.take(draft, model, failed)

    def take(self, draft: Path, model: Path, failed: Path) -> bool:
        """Whether the network is one that onnxruntime can run, so that the tool is put to the test and not the file."""
        draft.replace(model)
        if floats(model) is None:
            model.unlink()
            failed.write_text("the float model itself does not run on onnxruntime")
            return False
        return True


def floats(model: Path) -> bool | None:
    """Whether onnxruntime loads the exported model at all; None where it does not."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # a stranger's model may cause a warning for every weight
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 -- onnxruntime raises many kinds; the reason is printed
        print(f"{model.parent.name}: {str(error)[:200]}", file=sys.stderr)
        return None
    return True


def run(command: Sequence[str], timeout: int, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command that may use `timeout` seconds of processor time in each process, so that a busy machine fails no network.

    124 where it used them, or where it took six times as long; its children end with it.
    """
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env={**os.environ, **threads},
        start_new_session=True,
    )  # fmt: skip
    resource.prlimit(child.pid, resource.RLIMIT_CPU, (timeout, timeout + 5))  # its children inherit the limit
    try:
        out, err = child.communicate(timeout=6 * timeout)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        return subprocess.CompletedProcess(command, 124, out, err)
    used_up = child.returncode in {-signal.SIGXCPU, 128 + signal.SIGXCPU}
    return subprocess.CompletedProcess(command, 124 if used_up else child.returncode, out, err)


_DIGEST: list[str] = []


def code_digest() -> str:
    """Of the sources that make the figures."""
    if not _DIGEST:
        digest = hashlib.sha256()
        sources = [*(ROOT / "qdqtool").rglob("*.py"), *(ROOT / "calibrators").rglob("*.py")]
        sources += Path(__file__).parent.glob("truth*.py")
        for path in sorted((*sources, *(ROOT / "recipes").glob("*.yaml"))):
            digest.update(path.read_bytes())
        _DIGEST.append(digest.hexdigest()[:12])
    return _DIGEST[0]


# ---- how other frameworks write models ----


def nameless(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        node.name = ""


def paddle(proto: onnx.ModelProto) -> None:
    """Free dimensions are -1, and the names are those of another framework."""
    values = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.ClearField("dim_param")
                dim.dim_value = -1
    for index, node in enumerate(proto.graph.node):
        node.name = f"p2o.{node.op_type}.{index}"


def nhwc(proto: onnx.ModelProto) -> None:
    """Every convolution between two Transposes, as converters from NHWC leave them."""
    nodes = []
    for index, node in enumerate(proto.graph.node):
        if node.op_type != "Conv":
            nodes.append(node)
            continue
        inner, outer = f"nhwc_in_{index}", f"nhwc_out_{index}"
        first, last = f"{inner}_back", f"{outer}_forth"
        nodes += [
            helper.make_node("Transpose", [node.input[0]], [inner], name=f"{inner}_t", perm=[0, 2, 3, 1]),
            helper.make_node("Transpose", [inner], [first], name=f"{first}_t", perm=[0, 3, 1, 2]),
        ]
        result = node.output[0]
        node.input[0], node.output[0] = first, last
        nodes += [
            node,
            helper.make_node("Transpose", [last], [outer], name=f"{outer}_t", perm=[0, 2, 3, 1]),
            helper.make_node("Transpose", [outer], [result], name=f"{result}_t", perm=[0, 3, 1, 2]),
        ]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


VARIANTS = {"": lambda _: None, "nameless": nameless, "paddle": paddle, "nhwc": nhwc}


# ---- one network ----


@dataclass
class Trial:
    """One network on its way through the commands."""

    spec: Spec
    folder: Path
    model: Path
    experiments: int
    way: Way

    def figures(self) -> Figures:
        result = Figures(models=1)
        out = self.folder / "run"
        shutil.rmtree(out, ignore_errors=True)
        recipe: str | Path = self.way.recipe
        if not recipe:
            recipe = self.folder / "recipe.yaml"
            recipe.unlink(missing_ok=True)
            made = self.tool("recipe", "new", self.model, "-o", recipe)
            if self.failed(result, made, "recipe new"):
                return result
        done = self.run(recipe, out)
        if self.failed(result, done, "run"):
            return result
        report = json.loads((out / "report.json").read_text())["data"]
        dump = kernels((out / "layers.txt").read_text())
        self.judge_nodes(result, report, precisions(dump))
        made = self.judge_prediction(result, out, dump)
        self.judge_formats(result, report, made, out, dump)
        self.judge_lint(result, out)
        Experiments(
            key=self.spec.key,
            model=self.model,
            out=out,
            recipe=recipe,
            target=self.way.target,
            tool=self.tool,
            most=self.experiments,
        ).judge(result, report)
        for heavy in ("engine.plan", "histograms.npz", "model.prepared.onnx"):
            (out / heavy).unlink(missing_ok=True)
        return result

    def tool(self, *arguments: object, limit: int = RUN_S) -> subprocess.CompletedProcess[str]:
        return run([sys.executable, "-m", "qdqtool", *map(str, arguments)], limit, cwd=self.folder)

    def run(self, recipe: str | Path, out: Path, *sets: str) -> subprocess.CompletedProcess[str]:
        samples = ("--samples", "random:2")
        return self.tool(
            "run", self.model, "--recipe", recipe, *samples, "--out", out, *self.way.target, *sets
        )

    def failed(self, result: Figures, done: subprocess.CompletedProcess[str], what: str) -> bool:
        """Whether the command gave no result; a refusal in words is counted beside crashes, not among them."""
        if done.returncode in {0, 1}:
            return False
        words = (done.stderr.strip().splitlines() or [""])[-1]
        reason = next((text for text in done.stderr.splitlines() if text.startswith("error")), words)
        crash = done.returncode in {70, 124} or done.returncode < 0
        result.crashes += crash
        result.refused += not crash
        result.misses.append(f"{self.spec.key}: {what} ended with {done.returncode}: {reason[:300]}")
        return True

    def miss(self, result: Figures, text: str) -> None:
        result.misses.append(f"{self.spec.key}: {text}")

    def judge_nodes(self, result: Figures, report: Mapping[str, Any], real: Mapping[str, str]) -> None:
        for verdict in report["verdicts"]:
            result.nodes += 1
            said, truth = word(verdict["precision"]), real.get(verdict["node"], "")
            if not said:
                self.miss(result, f"{verdict['op']} {verdict['node']} is not told: {verdict['reason'][:120]}")
                continue
            result.nodes_told += 1
            result.precision_right += said == truth
            result.precision_untested += not truth
            if truth and truth != said:
                self.miss(result, f"{verdict['node']} is said to be {said}, the dump shows {truth}")

    def judge_prediction(self, result: Figures, out: Path, dump: Sequence[Kernel]) -> Mapping[str, Any]:
        done = self.tool("predict", out / "model.qdq.onnx", "--no-build", "--json", *self.way.target)
        if self.failed(result, done, "predict"):
            return {}
        made = json.loads(done.stdout)["data"]
        real = precisions(dump)
        for node in made["nodes"]:
            truth = real.get(node["node"], "") if node["compute"] else ""
            if truth:
                result.predicted += 1
                right = word(node["precision"]) == truth
                result.predicted_right += right
                if not right:
                    self.miss(
                        result, f"{node['node']} is predicted {node['precision']}, the dump shows {truth}"
                    )
        return dict(made)

    def judge_lint(self, result: Figures, out: Path) -> None:
        """`lint` has no warning about what the tool itself wrote."""
        done = self.tool("lint", out / "model.qdq.onnx", "--json", *self.way.target)
        if self.failed(result, done, "lint"):
            return
        for one in json.loads(done.stdout)["data"]["findings"]:
            if one["severity"] in {"warning", "error"}:
                result.lint_findings += 1
                self.miss(result, f"lint says of its own output: {one['code']} {one['reason'][:200]}")

    def judge_formats(
        self,
        result: Figures,
        report: Mapping[str, Any],
        made: Mapping[str, Any],
        out: Path,
        dump: Sequence[Kernel],
    ) -> None:
        """What was asked against the file, what is realised against the dump: as audited, and as predicted."""
        verdicts = {verdict["node"]: verdict for verdict in report["verdicts"]}
        wanted, real = asked(onnx.load(out / "model.qdq.onnx"), COMPUTE), realised(dump)
        foreseen = {node["node"]: node["realised"] for node in made.get("nodes", ())}
        for node in verdicts.keys() & wanted.keys():
            result.asked += 1
            said = verdicts[node]["asked"]
            result.asked_right += said == wanted[node]
            if said != wanted[node]:
                self.miss(result, f"{node} is said to be asked for {said}, the file says {wanted[node]}")
        for node in verdicts.keys() & real.keys():
            result.realised += 1
            said, truth = verdicts[node]["realised"], real[node]
            result.realised_right += said == truth
            if said != truth:
                self.miss(result, f"{node} is said to be realised as {said}, the dump shows {truth}")
            if node not in foreseen:
                continue
            fallen = BEFORE in truth and not wanted.get(node, "").endswith("-weights")
            right = foreseen[node] == ("float" if fallen else truth)
            result.foreseen += 1
            result.foreseen_right += right
            if not right:
                self.miss(result, f"{node} is foreseen as {foreseen[node]}, the dump shows {truth}")


def word(precision: str) -> str:
    """What a verdict says in this file's words; "" for unknown."""
    if precision in {"fp32", "fp16", "bf16", "tf32", "float"}:
        return "float"
    return precision if precision in LOW.values() else ""


if __name__ == "__main__":
    sys.exit(main())
