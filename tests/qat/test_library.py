"""`qdqtool.qat`: quantizers in a network, calibration, somebody's own training loop, and a Q/DQ model out of it."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import qdqtool  # noqa: E402
from qdqtool import qat  # noqa: E402
from qdqtool.backends.torch_qat.fake_quant import ENGINES  # noqa: E402
from qdqtool.backends.torch_qat.fake_quant_backend import Start  # noqa: E402
from qdqtool.backends.torch_qat.flat import tensors  # noqa: E402
from qdqtool.core.findings import Severity, Verdict  # noqa: E402
from qdqtool.errors import InputFileError, UsageError  # noqa: E402
from qdqtool.graph.onnx_io import deferred  # noqa: E402
from qdqtool.graph.onnx_io.load import load  # noqa: E402
from qdqtool.graph.qdq.find import find  # noqa: E402
from tests.qat import networks  # noqa: E402
from tests.qat.test_engines import quantizer_of  # noqa: E402

IMAGES = torch.from_numpy(networks.images("train")[0])
SETTINGS = {"calibrate.method": "max"}


class Named(NamedTuple):
    boxes: torch.Tensor
    scores: torch.Tensor


@dataclass
class Record:
    boxes: torch.Tensor
    scores: torch.Tensor


class TwoHeads(nn.Module):
    """What a detector has: two heads on one trunk, returned as `form` makes it."""

    def __init__(self, form) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.boxes, self.scores = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 2, 1)
        self.form = form

    def forward(self, image):
        value = self.trunk(image)
        return self.form(self.boxes(value), self.scores(value))


FORMS = {
    "tuple": lambda boxes, scores: (boxes, scores),
    "list": lambda boxes, scores: [boxes, scores],
    "dict": lambda boxes, scores: {"boxes": boxes, "scores": scores},
    "nested": lambda boxes, scores: {"all": [boxes, (scores,)]},
    "named tuple": Named,
    "dataclass": Record,
}


class ByShape(nn.Module):
    """torch.fx cannot follow `len` of a tensor's shape or a loop over it; torch.export can."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, image):
        value = torch.relu(self.norm(self.conv(image)))
        for _ in range(int(image.shape[2] > 4)):
            value = functional.avg_pool2d(value, 2)
        return self.head(value.mean((2, 3)))


class Gate(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)

    def forward(self, value):
        return self.conv(value) if value.sum() > -1e9 else value


class Recurring(nn.Module):
    """All of it depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 1)
        self.blocks = nn.ModuleList(Gate(16) for _ in range(2))

    def forward(self, image):
        value = torch.relu(self.stem(image))
        for block in self.blocks:
            if value.abs().max() < 1e9:
                value = torch.relu(block(value))
        return self.head(value)


class WithGate(nn.Module):
    """One part's path depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.gate, self.head = nn.Conv2d(3, 8, 3), Gate(), nn.Conv2d(8, 4, 1)

    def forward(self, image):
        return self.head(torch.relu(self.gate(torch.relu(self.stem(image)))))


def seeded(make, *arguments) -> nn.Module:
    torch.manual_seed(3)
    return make(*arguments).eval()


def ready(network: nn.Module, **more):
    model = qat.prepare(network, IMAGES[:2], settings={**SETTINGS, **more.pop("settings", {})}, **more)
    qat.calibrate(model, [(IMAGES[start : start + 16], None) for start in (0, 16, 32)])
    return model


def train(model: nn.Module, steps: int = 3) -> None:
    """The plainest loop there is."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        loss = sum(value.square().mean() for value in tensors(model(IMAGES[step * 16 : step * 16 + 16])))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def run_onnx(path: Path, images: torch.Tensor) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images.numpy()})


def assert_same(model: nn.Module, path: Path) -> None:
    """The file computes what the trained module does: far closer than the float network with the same weights.

    A value at the middle between two steps may round either way, so single values differ by a step.
    """
    inner = getattr(model, "module", model)
    with torch.no_grad():
        expected = tensors(model.eval()(IMAGES[:8]))
        plain = tensors(inner.flat.eval()(IMAGES[:8]))
    found = run_onnx(path, IMAGES[:8])
    assert len(found) == len(expected)
    for mine, theirs, unrounded in zip(found, expected, plain, strict=True):
        noise = np.abs(unrounded.numpy() - theirs.numpy()).mean()
        assert noise > 0
        assert np.abs(mine - theirs.numpy()).mean() < 0.05 * noise


@pytest.mark.parametrize("form", FORMS)
def test_all_that_a_network_returns_is_trained_and_exported(tmp_path: Path, form: str) -> None:
    network = seeded(TwoHeads, FORMS[form])
    structure = type(network(IMAGES[:1]))
    model = ready(network)
    before = [value.detach().clone() for value in (network.boxes.weight, network.scores.weight)]
    train(model)
    assert type(model(IMAGES[:1])) is structure
    for old, new in zip(before, (network.boxes.weight, network.scores.weight), strict=True):
        assert not torch.equal(old, new)
    assert_same(model, qat.export(model, tmp_path / "model.onnx"))


def test_the_exported_model_passes_lint_and_every_slot_was_trained(tmp_path: Path) -> None:
    model = ready(networks.residual())
    assert qat.untrained(model) == ()
    train(model)
    report = qdqtool.lint(qat.export(model, tmp_path / "model.onnx"))
    assert [entry for entry in report.findings if entry.severity is Severity.ERROR] == []


@pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("tensorrt_rtx") is None, reason="needs qdqtool[rtx]"
)
def test_the_exported_model_builds_with_every_layer_in_int8(tmp_path: Path) -> None:
    model = ready(networks.residual())
    train(model)
    path = qat.export(model, tmp_path / "model.onnx")
    audit = qdqtool.audit(path, qdqtool.build(path))
    assert {entry.verdict for entry in audit.verdicts} == {Verdict.INT8}


def test_fp8_is_trained_as_fp8(tmp_path: Path) -> None:
    model = ready(networks.residual(), recipe="conv-fp8", settings={"build.sm": 89})
    assert {site.format.name for site in model.sites.placed} == {"fp8"}
    train(model)
    assert_same(model, qat.export(model, tmp_path / "model.onnx"))


@pytest.mark.slow
@pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("tensorrt_rtx") is None, reason="needs qdqtool[rtx]"
)
def test_a_model_trained_in_fp8_passes_lint_and_computes_in_fp8_on_sm89(tmp_path: Path) -> None:
    model = ready(networks.residual(), recipe="conv-fp8", settings={"build.sm": 89})
    train(model)
    path = qat.export(model, tmp_path / "model.onnx")
    assert not [entry for entry in qdqtool.lint(path).findings if entry.severity is Severity.ERROR]
    audit = qdqtool.audit(path, qdqtool.build(path, sm=89))
    assert {entry.precision for entry in audit.verdicts} == {"fp8"}
    assert all(entry.is_quantized for entry in audit.verdicts)


def test_a_network_that_depends_on_shapes_goes_through_torch_export(tmp_path: Path) -> None:
    model = ready(seeded(ByShape))
    assert qat.untrained(model) == ()
    assert any(site.norm for site in model.sites.placed)
    train(model)
    assert_same(model, qat.export(model, tmp_path / "model.onnx"))


def test_layers_of_a_part_that_depends_on_data_are_trained_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ready(seeded(WithGate))
    assert "gate" in caplog.text
    assert qat.wrapped(model) == ("gate.conv",)
    assert qat.untrained(model) == ()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train(model)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert any("gate.conv" in name and name.endswith("weight") for name in moved)
    assert_same(model, qat.export(model, tmp_path / "model.onnx"))


def test_weights_that_wait_in_a_file_do_not_outlive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "FROM", 0)
    monkeypatch.setattr(deferred, "HEAVY", 0)
    network = seeded(WithGate)
    network.gate.conv = nn.Conv2d(8, 8, 5, padding=2)  # its weight is compared once the exported file is gone
    assert qat.wrapped(ready(network)) == ("gate.conv",)


def test_a_network_that_nothing_traces_is_trained_layer_by_layer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = seeded(Recurring)
    expected = network(IMAGES[:3]).detach()
    model = ready(network)
    assert "Recurring" in caplog.text
    assert qat.wrapped(model) == (
        "network.blocks.0.conv",
        "network.blocks.1.conv",
        "network.head",
        "network.stem",
    )
    assert all("network" in entry.reason for entry in qat.untrained(model))
    assert torch.allclose(network(IMAGES[:3]), expected, atol=1e-1), "the float network stays as it was"
    train(model)
    assert_same(model, qat.export(model, tmp_path / "model.onnx"))
    again = qat.prepare(seeded(Recurring), IMAGES[:2], settings=SETTINGS)
    again.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(IMAGES[:4]), again.eval()(IMAGES[:4]))


def test_a_model_without_ranges_refuses_to_run_and_to_be_exported(tmp_path: Path) -> None:
    model = qat.prepare(networks.residual(), IMAGES[:1])
    with pytest.raises(UsageError, match="no ranges yet"):
        model(IMAGES[:1])
    with pytest.raises(UsageError, match="never calibrated"):
        qat.export(model, tmp_path / "model.onnx")
    with pytest.raises(InputFileError, match="no samples"):
        qat.calibrate(model, [])
    with pytest.raises(InputFileError, match="batch 0"):
        qat.calibrate(model, [{"other": IMAGES}])


@pytest.mark.parametrize("engine", ENGINES.names())
def test_every_engine_begins_with_the_ranges_of_the_calibration(engine: str, tmp_path: Path) -> None:
    """Learned and fixed quantizers of an engine may hold their range in different places."""
    quantizer_of(engine, Start(amax=(1.0,), learn=False))  # skips where its package is not installed
    for scales in ("learned", "fixed") if ENGINES.load(engine).learns != "none" else ("fixed",):
        model = ready(networks.residual(), settings={"qat.engine": engine, "qat.scales": scales})
        before = {entry.tensor: entry.amax for entry in model.table.ranges}
        found = {entry.tensor: entry.amax for entry in model.trained().ranges}
        assert all(found[name] == pytest.approx(amax, rel=1e-5) for name, amax in before.items())
        train(model)
        assert qat.export(model, tmp_path / f"{scales}.onnx").is_file()


def test_rounded_weights_of_the_calibration_never_replace_trained_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights that calibration rounds are those of before the training."""
    model = ready(networks.residual(), settings={"weights.rounding": "gptq"})
    assert "training ignores them" in caplog.text
    assert model.table.weights is None
    train(model)
    assert_same(model, qat.export(model, tmp_path / "model.onnx"))


def test_slots_without_a_quantizer_get_ranges_of_the_trained_network(tmp_path: Path) -> None:
    model = ready(seeded(networks.shared))
    lost = {entry.slot for entry in qat.untrained(model)}
    assert lost
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    before, after = (
        scales(qat.export(model, tmp_path / name, loader))
        for name, loader in (("stale.onnx", ()), ("fresh.onnx", [(IMAGES[:16], None)]))
    )
    assert before.keys() == after.keys()
    assert any(after[slot] > 1.5 * before[slot] for slot in lost)
    assert all(after[slot] == before[slot] for slot in before.keys() - lost)


def scales(path: Path) -> dict[str, float]:
    """The largest scale of every quantized slot of a file."""
    return {str(slot): max(pair.scale) for pair in find(load(path)) for slot in pair.slots}


def test_a_checkpoint_goes_on_in_another_process(tmp_path: Path) -> None:
    model = ready(networks.residual())
    train(model)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    again = qat.prepare(networks.residual(), IMAGES[:1], settings=SETTINGS)
    again.load_state_dict(torch.load(stream, weights_only=True))
    assert torch.equal(model.eval()(IMAGES[:4]), again.eval()(IMAGES[:4]))
    first, second = (
        qat.export(each, tmp_path / name) for each, name in ((model, "a.onnx"), (again, "b.onnx"))
    )
    assert first.read_bytes() == second.read_bytes()


def test_averaged_weights_are_exported_like_the_model_itself(tmp_path: Path) -> None:
    model = ready(networks.residual())
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    before = copy.deepcopy(averaged.module.flat.state_dict())
    train(model)
    averaged.update_parameters(model)
    averaged.update_parameters(model)
    after = averaged.module.flat.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert_same(averaged, qat.export(averaged, tmp_path / "model.onnx"))


def test_bfloat16_autocast_and_accumulated_gradients_train(tmp_path: Path) -> None:
    model = ready(networks.residual())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for start in (0, 16):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (model(IMAGES[start : start + 16]).square().mean() / 2).backward()
    assert all(parameter.grad is not None for parameter in model.scale_parameters())
    optimizer.step()
    assert_same(model, qat.export(model, tmp_path / "model.onnx"))


class Widening(nn.Module):
    """A transposed convolution, which the graph holds as a Conv whose channels are its places."""

    def __init__(self, norm: bool = False, **more) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.up = nn.ConvTranspose2d(16, **{"out_channels": 8, "kernel_size": 2, "stride": 2, **more})
        self.norm = nn.BatchNorm2d(self.up.out_channels) if norm else nn.Identity()
        self.head = nn.Conv2d(self.up.out_channels, 3, 3, padding=1)

    def forward(self, image):
        return self.head(torch.relu(self.norm(self.up(torch.relu(self.stem(image))))))


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"norm": True},
        {"kernel_size": 4, "padding": 1, "norm": True},
        {"kernel_size": 3, "padding": 1, "output_padding": 1},
        {"kernel_size": (4, 2), "stride": (4, 2)},
        {"kernel_size": 1},
        {"groups": 4, "norm": True},
        {"out_channels": 16, "kernel_size": 3, "stride": 1, "padding": 1},
        {"out_channels": 16, "kernel_size": 3, "stride": 1, "padding": 1, "groups": 2, "norm": True},
    ],
    ids=str,
)
def test_a_transposed_convolution_is_trained_as_the_graph_has_it(
    form: dict[str, Any], tmp_path: Path
) -> None:
    network = seeded(partial(Widening, **form))
    channel = (
        torch.arange(1, network.up.out_channels + 1) / 4.0
    )  # scales that cannot be taken for one another
    with torch.no_grad():
        network.up.weight *= channel.reshape(network.up.groups, -1).repeat_interleave(
            16 // network.up.groups, 0
        )[:, :, None, None]
    model = ready(network)
    assert qat.untrained(model) == ()
    before = network.up.weight.detach().clone()
    train(model)
    assert not torch.equal(before, network.up.weight)
    assert_same(model, qat.export(model, tmp_path / "model.onnx"))


def test_a_corrected_bias_of_a_transposed_convolution_is_that_of_all_its_places(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Widening()
    before = network.up.bias.detach().clone()
    model = qat.prepare(network, IMAGES[:1], "conv-int8", settings=SETTINGS)
    qat.calibrate(model, IMAGES.split(8))
    (shift,) = (entry.shift for entry in model.table.shifts if len(entry.shift) == 32)
    wanted = before + torch.tensor(shift).reshape(8, 4).mean(1)
    assert torch.allclose(network.up.bias, wanted, atol=1e-6)
    assert not torch.equal(before, network.up.bias)
    assert qdqtool.lint(qat.export(model, tmp_path / "model.onnx", IMAGES.split(8))).findings == ()


def test_what_is_no_network_and_what_was_not_prepared_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be read from str"):
        qat.prepare("model.onnx", IMAGES[:1])
    with pytest.raises(UsageError, match="was not prepared"):
        qat.calibrate(networks.residual(), [])
    with pytest.raises(UsageError, match="example inputs cannot be read"):
        qat.prepare(networks.residual(), 3)


class WithDefaults(nn.Module):
    """Arguments that nobody passes, a method call named like a method of modules, and one layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 1)

    def forward(self, image, mask=None, *, gain=None, double=False):
        value = self.conv(self.conv(image)).to(torch.float32)
        if mask is not None:
            value = value * mask
        if gain is not None:
            value = value * gain
        return self.head(value * 2 if double else value)


class Scores(nn.Module):
    """Attention by torch's own function, which is one step unless it is taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.head = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, tokens, mask=None):
        value = functional.scaled_dot_product_attention(
            self.query(tokens), self.key(tokens), self.value(tokens), attn_mask=mask
        )
        return self.head(value)


def test_inputs_that_are_not_passed_keep_their_defaults(tmp_path: Path) -> None:
    network = seeded(WithDefaults)
    gain = torch.full((2, 1, 1, 1), 0.5)
    for example in (IMAGES[:2], {"image": IMAGES[:2]}, {"gain": gain, "image": IMAGES[:2]}):
        model = qat.prepare(network, example, settings=SETTINGS)
        feeds = example if isinstance(example, dict) else {"image": example}
        assert set(model.inputs) == set(feeds)
        qat.calibrate(model, [feeds])
        with torch.no_grad():
            wanted = network(**feeds)
            assert (model.eval()(**feeds) - wanted).abs().mean() < 0.1 * wanted.abs().mean()
    with pytest.raises(UsageError, match="has no 'images'"):
        qat.prepare(network, {"images": IMAGES[:2]})


@pytest.mark.parametrize("norms", ["fold", "freeze"])
def test_a_norm_without_statistics_is_refused_by_the_exporter(norms: str) -> None:
    network = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16, track_running_stats=False))
    with pytest.raises(UsageError, match="exporter refuses the network"):
        qat.prepare(network, IMAGES[:2], settings={**SETTINGS, "qat.batchnorm": norms})


class Prefixed(nn.Module):
    """An input whose name begins with the name of an input that keeps its default."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 16)

    def forward(self, tokens, mask_tokens, mask=None):
        value = self.head(tokens) + mask_tokens
        return value if mask is None else value * mask


def test_an_input_named_like_one_with_a_default_stays(tmp_path: Path) -> None:
    example = (torch.ones(1, 6, 16), torch.ones(1, 6, 16))
    assert qat.prepare(seeded(Prefixed), example, settings=SETTINGS).inputs == ("tokens", "mask_tokens")


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_both_products_of_an_attention_are_trained(tmp_path: Path, masked: bool) -> None:
    network = seeded(Scores)
    tokens = torch.randn(2, 6, 16)
    mask = torch.tril(torch.ones(6, 6, dtype=torch.bool))[None].repeat(2, 1, 1)
    feeds = {"tokens": tokens, "mask": mask} if masked else {"tokens": tokens}
    model = qat.prepare(network, feeds, "transformer-int8", settings=SETTINGS)
    assert qat.untrained(model) == ()
    qat.calibrate(model, [feeds])
    with torch.no_grad():
        wanted = network(**feeds)
        assert torch.allclose(model.flat(*(feeds[name] for name in model.inputs)), wanted, atol=1e-5)
    qat.export(model, tmp_path / "model.onnx")


def test_a_network_of_transformers_is_trained_whole(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    network = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
        )
    ).eval()
    ids = torch.randint(0, 50, (4, 8))
    feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    model = qat.prepare(network, feeds, "transformer-int8", settings=SETTINGS)
    assert qat.untrained(model) == ()
    qat.calibrate(model, [feeds])
    loss = qat.distillation(model(**feeds), network(**feeds))
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.scale_parameters())
    report = qdqtool.lint(qat.export(model, tmp_path / "model.onnx"))
    assert [entry for entry in report.findings if entry.severity is Severity.ERROR] == []


def test_a_checkpoint_holds_every_tensor_once() -> None:
    for network in (networks.residual(), seeded(WithDefaults)):
        model = ready(network)
        places = [value.data_ptr() for value in model.state_dict().values()]
        assert len(set(places)) == len(places)


def test_a_checkpoint_with_corrected_biases_loads_into_a_model_that_was_only_prepared() -> None:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.Conv2d(8, 4, 1, bias=False)).eval()
    settings = {"calibrate.method": "percentile", "calibrate.bias": "correct"}
    model = ready(copy.deepcopy(network), settings=settings)
    assert any(name.endswith("bias") for name in model.state_dict())
    again = qat.prepare(copy.deepcopy(network), IMAGES[:1], settings={**SETTINGS, **settings})
    again.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(IMAGES[:4]), again.eval()(IMAGES[:4]))


def test_a_checkpoint_with_the_bias_of_a_norm_without_weights_loads() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.ReLU()).eval()
    model = ready(copy.deepcopy(network))
    again = qat.prepare(network, IMAGES[:1], settings=SETTINGS)
    again.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(IMAGES[:4]), again.eval()(IMAGES[:4]))


def test_a_bias_of_a_module_without_one_is_an_unexpected_key() -> None:
    model = ready(networks.residual())
    with pytest.raises(RuntimeError, match=r"Unexpected key.*network\.bias"):
        model.load_state_dict({**model.state_dict(), "network.bias": torch.zeros(8)})


def test_what_a_schedule_froze_stays_as_it_is(tmp_path: Path) -> None:
    model = ready(networks.residual())
    schedule = qat.FreezeSchedule(norms=1, scales=2)
    norms = [module for module in model.network.modules() if isinstance(module, nn.BatchNorm2d)]
    start = torch.cat([norm.running_mean.clone() for norm in norms])
    means, scales = [], []
    for epoch in range(4):
        schedule.apply(model, epoch)
        train(model)
        means.append(torch.cat([norm.running_mean.clone() for norm in norms]))
        scales.append({entry.tensor: entry.amax for entry in model.trained().ranges})
    assert not torch.equal(start, means[0])
    assert torch.equal(means[0], means[1])
    assert scales[0] != scales[1]
    assert scales[1] == scales[2] == scales[3]
    # A training that is resumed holds the scales of the checkpoint.
    again = ready(networks.residual())
    schedule.apply(again, 3)
    again.load_state_dict(model.state_dict())
    train(again)
    assert {entry.tensor: entry.amax for entry in again.trained().ranges} == scales[3]


@pytest.mark.parametrize("form", FORMS)
def test_any_structure_is_distilled(form: str) -> None:
    network = seeded(TwoHeads, FORMS[form])
    model = ready(copy.deepcopy(network))
    with torch.no_grad():
        targets = network(IMAGES[:4])
    assert float(qat.distillation(targets, targets)) == 0
    loss = qat.distillation(model(IMAGES[:4]), targets)
    loss.backward()
    assert float(loss.detach()) > 0
    assert model.scale_parameters()[0].grad is not None


def test_outputs_of_two_kinds_are_not_distilled() -> None:
    with pytest.raises(UsageError, match="cannot be compared"):
        qat.distillation({"boxes": torch.ones(2, 4)}, (torch.ones(2, 4), torch.ones(2, 3)))
    with pytest.raises(UsageError, match="cannot be compared"):
        qat.distillation(torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64))
