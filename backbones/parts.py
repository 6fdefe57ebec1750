"""Small parts that several architectures share: norms, feed-forward layers, the short convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flops import Term, depthwise_conv, linear
from kernels import short_conv, short_conv_read


def norm(width: int) -> nn.RMSNorm:
    """The block norm of every pre-norm backbone: RMSNorm, eps 1e-6."""
    return nn.RMSNorm(width, eps=1e-6)


def swiglu_width(width: int, ratio: float) -> int:
    """Hidden width of a SwiGLU layer: two thirds of ratio x D, rounded up to a multiple of 256.

    The rounding of flash-linear-attention, which the paper's DeltaNet row (I = 256, 1536 D) confirms at ratio 1.
    """
    return 256 * -(-int(width * ratio * 2 / 3) // 256)


class MLP(nn.Module):
    """D -> ratio D -> D with a GELU between, no biases."""

    def __init__(self, width: int, ratio: float = 1.0):
        super().__init__()
        self.width, self.hidden = width, int(width * ratio)
        self.up = nn.Linear(width, self.hidden, bias=False)
        self.down = nn.Linear(self.hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))

    def terms(self) -> list[Term]:
        return [
            linear("MLP up", self.width, self.hidden, status="given"),
            linear("MLP down", self.hidden, self.width, status="given"),
        ]


class SwiGLU(nn.Module):
    """down(silu(gate x) * up x), no biases; gate and up are one matrix of 2 x hidden rows."""

    def __init__(self, width: int, ratio: float, status: str = "derived"):
        super().__init__()
        self.width, self.hidden, self.status = width, swiglu_width(width, ratio), status
        self.gate_up = nn.Linear(width, 2 * self.hidden, bias=False)
        self.down = nn.Linear(self.hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)

    def terms(self) -> list[Term]:
        return [
            linear("SwiGLU gate and up", self.width, self.hidden, times=2, status=self.status),
            linear("SwiGLU down", self.hidden, self.width, status=self.status),
        ]


class ShortConv(nn.Module):
    """A causal depthwise convolution over the last few tokens; its cache belongs to the layer's state.

    Args:
        channels: independent channels.
        conv_width: W, taps.
        bias: add a bias.
        activation: "silu", or None.
        init_std: standard deviation of the taps; None for PyTorch's uniform (-W^-0.5, W^-0.5).
    """

    def __init__(self, channels: int, conv_width: int = 4, bias: bool = False, activation: str | None = "silu",
                 init_std: float | None = None):  # fmt: skip
        super().__init__()
        if conv_width < 2:
            raise ValueError(f"conv width {conv_width}: a short convolution has at least 2 taps")
        self.channels, self.conv_width, self.activation = channels, conv_width, activation
        bound = conv_width**-0.5
        weight = torch.empty(channels, conv_width)
        self.weight = nn.Parameter(weight.uniform_(-bound, bound) if init_std is None else weight.normal_(0, init_std))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def initial_cache(self, batch: int) -> Tensor:
        """[B, W - 1, channels] of zeros: nothing came before."""
        return self.weight.new_zeros(batch, self.conv_width - 1, self.channels)

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        """A stream [B, L, channels] after the cached inputs."""
        return short_conv(x, self.weight, self.bias, cache, self.activation)[0]

    def read(self, x: Tensor, cache: Tensor) -> Tensor:
        """Queries [B, Q, channels], each the next token after the cached inputs."""
        return short_conv_read(x, self.weight, self.bias, cache, self.activation)

    def term(self, label: str, **settings) -> Term:
        return depthwise_conv(label, self.channels, self.conv_width, **settings)
