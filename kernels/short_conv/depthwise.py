"""The short convolution as one depthwise `conv2d` in channels-last memory, with a backward pass of its own.

The stream is `[B, L, D]`, so its channels are already last in memory. A `conv2d` over a `[B, D, 1, L]` view of it
needs no transposed copy, where `conv1d` makes one. PyTorch's own backward for this shape is the slow part; the
gradient of the input is again a depthwise convolution (of the flipped weight), and the gradient of each tap is one
product and sum.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.first_order import differentiable_once
from kernels.slabs import slabs


def short_conv(x_BLD: Tensor, weight_DW: Tensor, bias_D: Tensor | None, cache: Tensor) -> tuple[Tensor, Tensor]:
    """Arguments and results as the public `short_conv`, without the activation."""
    padded = torch.cat([cache, x_BLD], 1)
    y_BLD = _Depthwise.apply(padded, weight_DW, bias_D)
    # A copy, because a slice would keep the whole stream in memory for as long as the state lives.
    return y_BLD, padded[:, x_BLD.shape[1] :].clone()


def _convolve(x_BLD: Tensor, weight_DW: Tensor, bias_D: Tensor | None, padding: int) -> Tensor:
    image = x_BLD.transpose(1, 2).unsqueeze(2)  # [B, D, 1, L], channels last in memory
    y = F.conv2d(image, weight_DW[:, None, None], bias_D, padding=(0, padding), groups=weight_DW.shape[0])
    return y.squeeze(2).transpose(1, 2)


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, padded, weight_DW, bias_D):
        ctx.save_for_backward(padded, weight_DW)
        with torch.autocast(padded.device.type, enabled=False):  # else the gradient's dtype would not be the weight's
            return _convolve(padded, weight_DW, bias_D, padding=0)

    @staticmethod
    @differentiable_once
    def backward(ctx, grad_BLD):
        padded, weight_DW = ctx.saved_tensors
        grad_BLD = grad_BLD.contiguous()
        width = weight_DW.shape[1]
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = _convolve(grad_BLD, weight_DW.flip(1), None, padding=width - 1)
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_gradient(grad_BLD, padded, width).to(weight_DW.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_BLD.sum((0, 1))
        return grad_x, grad_weight, grad_bias


def _weight_gradient(grad_BLD: Tensor, padded: Tensor, width: int) -> Tensor:
    """`[D, W]`: how much each tap's inputs agree with the output's gradient, summed over the batch and the stream."""
    _, length, channels = grad_BLD.shape
    dtype = torch.promote_types(grad_BLD.dtype, torch.float32)
    total = torch.zeros(width, channels, dtype=dtype, device=grad_BLD.device)
    for part in slabs(len(grad_BLD), length * channels * 4, grad_BLD.device):
        for j in range(width):
            total[j] += (grad_BLD[part] * padded[part, j : j + length]).sum((0, 1), dtype=dtype)
    return total.T
