"""Networks as today's exporters meet them, written by hand with random weights; `truth_export.py` exports them.

Fused attention, caches, rotary positions and RMS norms of decoders; experts with stacked weights; state-space models and
recurrent cells as loops, scans and long filters; blocks of diffusion networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, SIZE, TOKENS = 128, 4, 32, 16


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotate halves of the heads by their positions."""
    half = x.shape[-1] // 2
    steps = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * 0.1 ** (
        torch.arange(half).float() / half * 4
    )
    left, right = x[..., :half], x[..., half:]
    cos, sin = torch.cos(steps), torch.sin(steps)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Decoder(nn.Module):
    """Two blocks of a language model: RMS norm, grouped attention in one operator, a gated perceptron.

    `mask` is "causal", "bool", "float" or ""; `experts` takes the place of the perceptron.
    """

    def __init__(
        self,
        *,
        groups: int = 2,
        mask: str = "causal",
        rotary: bool = True,
        experts: Callable[[], nn.Module] | None = None,
        vocabulary: int = 300,
    ) -> None:
        super().__init__()
        self.groups, self.mask, self.rotary = groups, mask, rotary
        self.table = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.ModuleList(self.block(experts) for _ in range(2))
        self.last, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)

    def block(self, experts: Callable[[], nn.Module] | None) -> nn.ModuleDict:
        narrow = self.groups * SIZE
        return nn.ModuleDict(
            {
                "norm1": nn.RMSNorm(WIDTH),
                "norm2": nn.RMSNorm(WIDTH),
                "q": nn.Linear(WIDTH, WIDTH, bias=False),
                "k": nn.Linear(WIDTH, narrow, bias=False),
                "v": nn.Linear(WIDTH, narrow, bias=False),
                "out": nn.Linear(WIDTH, WIDTH, bias=False),
                "mlp": experts() if experts else Gated(),
            }
        )

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length = q.shape[-2]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        chosen = {
            "bool": causal,
            "float": torch.zeros(length, length).masked_fill(~causal, -1e4),
        }.get(self.mask)
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=chosen, is_causal=self.mask == "causal", enable_gqa=self.groups != HEADS
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.table(x)
        for block in self.blocks:
            z = block["norm1"](y)
            q, k, v = (
                heads(block[name](z), count)
                for name, count in (("q", HEADS), ("k", self.groups), ("v", self.groups))
            )
            if self.rotary:
                q, k = rotate(q), rotate(k)
            y = y + block["out"](self.attend(q, k, v).transpose(1, 2).flatten(2))
            y = y + block["mlp"](block["norm2"](y))
        return self.head(self.last(y))


class Cached(Decoder):
    """One new token, with the keys and values of the tokens before it; `static` writes into a cache of fixed length."""

    def __init__(self, *, static: bool = False) -> None:
        super().__init__()
        self.static = static

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        y, made = self.table(x), []
        for index, block in enumerate(self.blocks):
            z = block["norm1"](y)
            q, k, v = (
                heads(block[name](z), count)
                for name, count in (("q", HEADS), ("k", self.groups), ("v", self.groups))
            )
            if self.static:
                place = torch.tensor([7])
                k, v = (old[:, index].index_copy(2, place, new) for old, new in ((keys, k), (values, v)))
            else:
                k, v = (torch.cat([old[:, index], new], 2) for old, new in ((keys, k), (values, v)))
            made.append((k, v))
            y = y + block["out"](self.attend(q, k, v).transpose(1, 2).flatten(2))
            y = y + block["mlp"](block["norm2"](y))
        presents = tuple(torch.stack([pair[at] for pair in made], 1) for at in (0, 1))
        return self.head(self.last(y)), *presents

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


class Gated(nn.Module):
    """A perceptron with a SiLU gate."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Eight experts in two stacked weights.

    `way` is "all" (every expert computes, a mask chooses), "gather" (the weights of chosen experts are gathered) or
    "loop" (one product for each expert on its slice of the stack).
    """

    def __init__(self, way: str, count: int = 8) -> None:
        super().__init__()
        self.way, self.count = way, count
        self.router = nn.Linear(WIDTH, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, WIDTH, 2 * WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(count, 2 * WIDTH, WIDTH) / (2 * WIDTH) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(2)
        if self.way == "gather":
            y = functional.silu(flat[:, None, None] @ self.up[chosen]) @ self.down[chosen]
            return (y[:, :, 0] * weights[..., None]).sum(1).view_as(x)
        share = torch.zeros(flat.shape[0], self.count).scatter(1, chosen, weights)
        if self.way == "all":
            y = functional.silu(flat[None] @ self.up) @ self.down
            return (y * share.T[..., None]).sum(0).view_as(x)
        parts = [
            functional.silu(flat @ self.up[index]) @ self.down[index] * share[:, index, None]
            for index in range(self.count)
        ]
        return torch.stack(parts).sum(0).view_as(x)


class Blocks(nn.Module):
    """Two residual blocks of a mixer of tokens, between an embedding and a head."""

    def __init__(self, mixer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(300, WIDTH), nn.Linear(WIDTH, 300)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mixers = nn.ModuleList(mixer() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.table(x)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            y = y + mixer(norm(y))
        return self.head(y)


class Mamba(nn.Module):
    """A selective scan: a depthwise causal convolution, step sizes from the input, a state of 8 per channel."""

    def __init__(self, states: int = 8) -> None:
        super().__init__()
        self.inside = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 4, padding=3, groups=WIDTH)
        self.parameters_of = nn.Linear(WIDTH, 8 + 2 * states, bias=False)
        self.step = nn.Linear(8, WIDTH)
        self.decay = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(WIDTH, 1))
        self.skip, self.outside = nn.Parameter(torch.ones(WIDTH)), nn.Linear(WIDTH, WIDTH, bias=False)
        self.states = states

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, gate = self.inside(x).chunk(2, -1)
        y = functional.silu(self.mix(y.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        step, before, after = self.parameters_of(y).split((8, self.states, self.states), -1)
        step = functional.softplus(self.step(step))
        kept = torch.exp(step[..., None] * -torch.exp(self.decay))
        put = (step * y)[..., None] * before[:, :, None]
        state, rows = torch.zeros_like(put[:, 0]), []
        for at in range(x.shape[1]):
            state = kept[:, at] * state + put[:, at]
            rows.append((state * after[:, at, None]).sum(-1))
        return self.outside((torch.stack(rows, 1) + self.skip * y) * functional.silu(gate))


class Mamba2(nn.Module):
    """Compute the scan as products of chunks: inside a chunk as attention with decays, between chunks as states."""

    def __init__(self, states: int = 32, chunk: int = 8) -> None:
        super().__init__()
        self.inside = nn.Linear(WIDTH, 2 * WIDTH + 2 * states + HEADS, bias=False)
        self.decay = nn.Parameter(torch.rand(HEADS))
        self.norm, self.outside = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.states, self.chunk = states, chunk

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, y, before, after, step = self.inside(x).split(
            (WIDTH, WIDTH, self.states, self.states, HEADS), -1
        )
        step = functional.softplus(step)
        y = (y.unflatten(-1, (HEADS, -1)) * step[..., None]).unflatten(1, (-1, self.chunk)).transpose(2, 3)
        log = (step * -torch.exp(self.decay)).unflatten(1, (-1, self.chunk)).transpose(2, 3).cumsum(-1)
        before, after = (part.unflatten(1, (-1, self.chunk))[:, :, None] for part in (before, after))
        lower = torch.ones(self.chunk, self.chunk).tril()
        scores = (
            after @ before.transpose(-1, -2) * torch.exp((log[..., None] - log[..., None, :]) * lower) * lower
        )
        within = scores @ y
        last = torch.exp(log[..., -1:] - log)[..., None]
        made, state, rows = before.transpose(-1, -2) @ (y * last), None, []
        for at in range(made.shape[1]):
            rows.append(torch.zeros_like(made[:, 0]) if state is None else state)
            state = made[:, at] + (0 if state is None else state * torch.exp(log[:, at, :, -1, None, None]))
        between = after @ torch.stack(rows, 1) * torch.exp(log)[..., None]
        y = (within + between).transpose(2, 3).flatten(1, 2).flatten(2)
        return self.outside(self.norm(y * functional.silu(gate)))


class Rwkv(nn.Module):
    """Time mixing with a matrix state and token shift, then channel mixing with a squared ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.rand(4, WIDTH))
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.decay, self.bonus = (
            nn.Parameter(torch.randn(HEADS, SIZE)),
            nn.Parameter(torch.randn(HEADS, SIZE)),
        )
        self.outside, self.norm = nn.Linear(WIDTH, WIDTH, bias=False), nn.GroupNorm(HEADS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        late = functional.pad(x, (0, 0, 1, -1))
        r, k, v, g = (
            part(x * share + late * (1 - share)) for part, share in zip(self.parts, self.share, strict=True)
        )
        r, k, v = (part.unflatten(-1, (HEADS, SIZE)) for part in (r, k, v))
        kept, state, rows = (
            torch.exp(-torch.exp(self.decay))[..., None],
            torch.zeros(1, HEADS, SIZE, SIZE),
            [],
        )
        for at in range(x.shape[1]):
            pair = k[:, at, :, :, None] * v[:, at, :, None]
            rows.append(r[:, at, :, None] @ (state + self.bonus[..., None] * pair))
            state = state * kept + pair
        y = torch.stack(rows, 1).flatten(2)
        y = self.norm(y.flatten(0, 1)).view_as(x)
        y = x + self.outside(y * functional.silu(g))
        return self.down(functional.relu(self.up(y)) ** 2)


class Slstm(nn.Module):
    """The scalar memory of xLSTM: exponential gates with a stabilizer, a recurrent product in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.again = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.outside = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts, rows = self.inside(x), []
        h = c = n = m = torch.zeros_like(x[:, 0])
        for at in range(x.shape[1]):
            z, i, f, o = (parts[:, at] + self.again(h)).chunk(4, -1)
            f = functional.logsigmoid(f)
            new = torch.maximum(f + m, i)
            i, f, m = torch.exp(i - new), torch.exp(f + m - new), new
            c, n = f * c + i * torch.tanh(z), f * n + i
            h = torch.sigmoid(o) * c / n.clamp(min=1e-6)
            rows.append(h)
        return self.outside(torch.stack(rows, 1))


class Mlstm(nn.Module):
    """The matrix memory of xLSTM in its parallel form: attention without a softmax, with decays of forget gates."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.gates, self.outside = nn.Linear(WIDTH, 2 * HEADS), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(part(x), HEADS) for part in (self.q, self.k, self.v))
        inside, forget = self.gates(x).transpose(1, 2).chunk(2, 1)
        log = functional.logsigmoid(forget).cumsum(-1)
        decays = log[..., None] - log[..., None, :] + inside[..., None, :]
        lower = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        decays = decays.masked_fill(~lower, -1e4)
        largest = decays.amax(-1, keepdim=True)
        scores = q @ k.transpose(-1, -2) / SIZE**0.5 * torch.exp(decays - largest)
        norm = torch.maximum(scores.sum(-1, keepdim=True).abs(), torch.exp(-largest))
        y = (scores / (norm + 1e-6)) @ v
        return self.outside(y.transpose(1, 2).flatten(2) * torch.sigmoid(self.o(x)))


class Filter(nn.Module):
    """S4D: a diagonal state space computed as one filter of the whole length, applied as a product or a convolution."""

    def __init__(self, way: str, states: int = 16) -> None:
        super().__init__()
        self.way = way
        self.decay, self.out = (
            nn.Parameter(torch.rand(WIDTH, states)),
            nn.Parameter(torch.randn(WIDTH, states)),
        )
        self.mix = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        steps = torch.arange(length).float()
        rows = (self.out[..., None] * torch.exp(-self.decay[..., None] * steps)).sum(1) / 16
        if self.way == "conv":
            y = functional.conv1d(
                functional.pad(x.transpose(1, 2), (length - 1, 0)), rows.flip(-1)[:, None], groups=WIDTH
            ).transpose(1, 2)
        else:
            places = torch.arange(length)
            gaps = places[:, None] - places
            table = rows[:, gaps.clamp(min=0)] * (gaps >= 0)
            y = (table @ x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)
        return functional.glu(self.mix(functional.gelu(y)), -1)


class MinGru(nn.Module):
    """A GRU whose gates read the input alone, so that its scan is a cumulative sum of logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.new, self.outside = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x)
        log = functional.logsigmoid(-gate).cumsum(1)
        new = functional.logsigmoid(gate) + functional.logsigmoid(self.new(x))
        return self.outside(torch.exp(log + (new - log).exp().cumsum(1).log()))


class Delta(nn.Module):
    """Linear attention with the delta rule: the state loses what it held for a key before it takes the new value."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.rate, self.outside = nn.Linear(WIDTH, HEADS), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(functional.silu(part(x)), HEADS) for part in (self.q, self.k, self.v))
        k, rate = functional.normalize(k, dim=-1), torch.sigmoid(self.rate(x)).transpose(1, 2)
        state, rows = torch.zeros(1, HEADS, SIZE, SIZE), []
        for at in range(x.shape[1]):
            key = k[:, :, at, None]
            held = key @ state
            state = state + key.transpose(-1, -2) @ ((v[:, :, at, None] - held) * rate[:, :, at, None, None])
            rows.append(q[:, :, at, None] @ state)
        return self.outside(torch.cat(rows, 2).transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    """A cell of torch as a mixer: the exporter writes it as one ONNX operator or as a loop."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.core, self.outside = kind(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outside(self.core(x)[0])


class Residual(nn.Module):
    """The residual block of a diffusion U-Net: group norms, SiLU, the time embedding in the middle."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inside), nn.GroupNorm(8, outside)
        self.conv1, self.conv2 = (
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.Conv2d(outside, outside, 3, padding=1),
        )
        self.time = nn.Linear(WIDTH, outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(functional.silu(self.norm1(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


class Crossed(nn.Module):
    """Self-attention, attention to the text, and a GEGLU perceptron on the pixels of a feature map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qs = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.keys = nn.ModuleList(nn.Linear(size, 2 * width, bias=False) for size in (width, WIDTH))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)
        for at in range(2):
            z = self.norms[at](y)
            k, v = self.keys[at](text if at else z).chunk(2, -1)
            q, k, v = (heads(part, 2) for part in (self.qs[at](z), k, v))
            mixed = functional.scaled_dot_product_attention(q, k, v)
            y = y + self.outs[at](mixed.transpose(1, 2).flatten(2))
        value, gate = self.up(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(value * functional.gelu(gate))
        return x + y.transpose(1, 2).unflatten(2, x.shape[2:])


def embedded(step: torch.Tensor) -> torch.Tensor:
    """Sines and cosines of a time step."""
    angles = step[:, None] * torch.exp(-torch.arange(WIDTH // 2) / (WIDTH // 2) * 9.2)
    return torch.cat([torch.cos(angles), torch.sin(angles)], -1)


class Denoiser(nn.Module):
    """A diffusion U-Net of two levels with attention to a text on the lower one."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.first, self.last = nn.Conv2d(4, 32, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)
        self.down, self.low, self.up = Residual(32, 32), Residual(32, 64), Residual(96, 32)
        self.shrink, self.widen = nn.Conv2d(32, 32, 3, 2, 1), nn.Conv2d(64, 64, 3, padding=1)
        self.attention, self.norm = Crossed(64), nn.GroupNorm(8, 32)

    def forward(self, x: torch.Tensor, step: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        time = self.time(embedded(step))
        high = self.down(self.first(x), time)
        low = self.attention(self.low(self.shrink(high), time), text)
        low = self.widen(functional.interpolate(low, scale_factor=2.0))
        y = self.up(torch.cat([low, high], 1), time)
        return self.last(functional.silu(self.norm(y)))


class Dit(nn.Module):
    """A diffusion transformer: patches, norms whose scale and shift come from the time, gated residuals."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.patches, self.place = nn.Conv2d(4, WIDTH, 2, 2), nn.Parameter(torch.randn(1, 64, WIDTH) / 8)
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.shifts = nn.ModuleList(nn.Linear(WIDTH, 6 * WIDTH) for _ in range(count))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(count))
        self.outs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(count)
        )
        self.final, self.head = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 16)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        time = functional.silu(self.time(embedded(step)))
        y = self.patches(x).flatten(2).transpose(1, 2) + self.place
        for shift, qkv, out, mlp in zip(self.shifts, self.qkv, self.outs, self.mlps, strict=True):
            parts = [part[:, None] for part in shift(time).chunk(6, -1)]
            z = self.norm(y) * (1 + parts[1]) + parts[0]
            q, k, v = (heads(part, HEADS) for part in qkv(z).chunk(3, -1))
            mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            y = y + parts[2] * out(mixed)
            y = y + parts[5] * mlp(self.norm(y) * (1 + parts[4]) + parts[3])
        shift, scale = (part[:, None] for part in self.final(time).chunk(2, -1))
        y = self.head(self.norm(y) * (1 + scale) + shift)
        y = y.unflatten(1, (8, 8)).unflatten(-1, (2, 2, 4))
        return torch.einsum("nhwpqc->nchpwq", y).flatten(2, 3).flatten(3, 4)


class Latent(nn.Module):
    """The decoder of an autoencoder: residual blocks, attention of one head over pixels, nearest upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 64, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, size) for size in (64, 64, 64, 32))
        self.qkv, self.out = nn.Conv2d(64, 192, 1), nn.Conv2d(64, 64, 1)
        self.one, self.two = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 32, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        q, k, v = (
            part.flatten(2).transpose(1, 2)[:, None] for part in self.qkv(self.norms[0](y)).chunk(3, 1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).view_as(y)
        y = y + self.out(mixed)
        y = y + self.one(functional.silu(self.norms[1](y)))
        y = self.two(functional.interpolate(functional.silu(self.norms[2](y)), scale_factor=2.0))
        return torch.tanh(self.last(functional.silu(self.norms[3](y))))


def tokens(length: int = TOKENS) -> dict[str, torch.Tensor]:
    return {"x": torch.randint(0, 300, (1, length))}


def past(length: int = 24) -> dict[str, torch.Tensor]:
    caches = {name: torch.randn(1, 2, 2, length, SIZE) for name in ("keys", "values")}
    return {"x": torch.randint(0, 300, (1, 1)), **caches}


def latent(*, text: bool = False, step: bool = True) -> dict[str, torch.Tensor]:
    found = {"x": torch.randn(1, 4, 16, 16)}
    found |= {"step": torch.tensor([500.0])} if step else {}
    return found | ({"text": torch.randn(1, 8, WIDTH)} if text else {})


def mixed(mixer: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]:
    return lambda: (Blocks(mixer), tokens())


MODERN: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "decoder": lambda: (Decoder(), tokens()),
    "decoder-even": lambda: (Decoder(groups=HEADS, rotary=False), tokens()),
    "decoder-bool": lambda: (Decoder(mask="bool"), tokens()),
    "decoder-float": lambda: (Decoder(mask="float"), tokens()),
    "encoder": lambda: (Decoder(groups=HEADS, mask="", rotary=False), tokens(64)),
    "cache": lambda: (Cached(), past()),
    "cache-static": lambda: (Cached(static=True), past()),
    "experts-all": lambda: (Decoder(experts=lambda: Experts("all")), tokens()),
    "experts-gather": lambda: (Decoder(experts=lambda: Experts("gather")), tokens(4)),
    "experts-loop": lambda: (Decoder(experts=lambda: Experts("loop")), tokens()),
    "mamba": mixed(Mamba),
    "mamba2": mixed(Mamba2),
    "rwkv": mixed(Rwkv),
    "slstm": mixed(Slstm),
    "mlstm": mixed(Mlstm),
    "s4-conv": mixed(lambda: Filter("conv")),
    "s4-product": mixed(lambda: Filter("product")),
    "min-gru": mixed(MinGru),
    "delta": mixed(Delta),
    "gru": mixed(lambda: Recurrent(nn.GRU)),
    "lstm": mixed(lambda: Recurrent(nn.LSTM)),
    "denoiser": lambda: (Denoiser(), latent(text=True)),
    "dit": lambda: (Dit(), latent()),
    "latent": lambda: (Latent(), latent(step=False)),
}
