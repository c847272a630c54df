"""One contract for every engine: rounding as QuantizeLinear does, gradients that pass, ranges that can be read back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from qdqtool.backends.torch_qat.fake_quant import ENGINES  # noqa: E402
from qdqtool.backends.torch_qat.fake_quant_backend import Start  # noqa: E402
from qdqtool.errors import MissingPackage  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
CHANNELS = Start(amax=(1.0, 2.0, 4.0), axis=0, rank=2, learn=False)


def quantizer_of(name: str, start: Start):
    try:
        return ENGINES.load(name).quantizer(start)
    except MissingPackage as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ENGINES.names())
class TestEngine:
    def test_values_inside_the_range_become_multiples_of_the_scale(self, name: str) -> None:
        quantizer = quantizer_of(name, Start(amax=(2.0,), learn=False))
        values = torch.linspace(-1.99, 1.99, 101)
        steps = quantizer(values) * 127 / 2.0
        assert torch.allclose(steps, (values * 127 / 2.0).round(), atol=1e-3)

    def test_values_beyond_the_range_saturate(self, name: str) -> None:
        quantizer = quantizer_of(name, Start(amax=(2.0,), learn=False))
        low, high = quantizer(torch.tensor([-9.0, 9.0])).tolist()
        assert high == pytest.approx(2.0, abs=1e-5)
        assert -2.0 * 128 / 127 - 1e-5 <= low <= -2.0 + 1e-5

    def test_each_channel_has_its_own_scale(self, name: str) -> None:
        quantizer = quantizer_of(name, CHANNELS)
        values = torch.tensor([[0.3, 0.9], [0.3, 0.9], [0.3, 0.9]])
        scales = torch.tensor([[1.0], [2.0], [4.0]]) / 127
        assert torch.allclose(quantizer(values), (values / scales).round() * scales, atol=1e-5)

    def test_gradients_pass_inside_the_range(self, name: str) -> None:
        quantizer = quantizer_of(name, Start(amax=(2.0,), learn=False))
        values = torch.tensor([0.3, -1.2], requires_grad=True)
        quantizer(values).sum().backward()
        assert values.grad is not None
        assert values.grad.tolist() == [1.0, 1.0]

    def test_ranges_are_read_back_as_they_were_given(self, name: str) -> None:
        engine = ENGINES.load(name)
        assert engine.amax(quantizer_of(name, CHANNELS)).reshape(-1).tolist() == pytest.approx(
            [1.0, 2.0, 4.0]
        )
        single = quantizer_of(name, Start(amax=(3.0,), learn=engine.learns != "none"))
        assert float(engine.amax(single)) == pytest.approx(3.0)

    def test_a_learned_range_moves_where_the_engine_says_so(self, name: str) -> None:
        engine = ENGINES.load(name)
        if engine.learns == "none":
            pytest.skip("it learns no scales")
        quantizer = quantizer_of(name, Start(amax=(1.0,)))
        optimizer = torch.optim.SGD(quantizer.parameters(), lr=0.1)
        values = torch.linspace(-4, 4, 64)
        for _ in range(20):
            optimizer.zero_grad()
            (quantizer(values) - values).square().mean().backward()
            optimizer.step()
        assert float(engine.amax(quantizer)) > 1.05


def test_own_scales_never_become_negative() -> None:
    own = ENGINES.load("own")
    quantizer = own.quantizer(Start(amax=(1.0,)))
    with torch.no_grad():
        quantizer.scale.fill_(-1.0)
    assert float(own.amax(quantizer)) > 0
    assert torch.isfinite(quantizer(torch.ones(3))).all()
