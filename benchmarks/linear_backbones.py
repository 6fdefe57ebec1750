"""Speed of one layer of each linear recurrence against the best that public code does with it on a CPU.

    python -m benchmarks.linear_backbones [names ...] [--threads 1 2] [--rounds 3] [--length 1024] > results.tsv

A peer is the layer as its library writes it (one projection per tensor, `nn.Conv1d`, `rms_norm`), around that
library's own torch form of the recurrence: flash-linear-attention's naive functions, transformers'
`torch_chunk_gated_delta_rule` and whole `Mamba2Mixer`. Both sides share their weights, and a row appears only after
outputs and gradients agreed. FLA's Triton kernels do not run on a CPU.

Forward + backward at B = 8, D = 128, float32, in process CPU time, competitors in turn, medians; `peer / ours` above 1
means that ours is faster. Peers that loop over tokens are compared at L = 256: their backward pass is quadratic in L.
`peak` is the share of the FLOP per CPU second of a large matrix product in the same rounds, counting three times the
closed-form price of the layer: one forward, two for the backward.
"""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backbones import MemoryLayer, build
from backbones.mom import MoM, Packing
from benchmarks.timing import in_turn, machine, table
from kernels import rotary

BATCH, WIDTH = 8, 128
LOOP = 256
"""Stream length for peers that loop over tokens; their labels end in "recurrence"."""
HEADER = ["backbone", "peer", "L", "threads", "peer / ours", "ours ms", "peer ms", "spread", "tokens/s", "peak"]
Core = Callable[..., Tensor]
"""q, k [B, T, H, K], v [B, T, H, V], and gates by name -> o [B, T, H, V], the readout scaled by K^-1/2."""


# ---- recurrences of other libraries ----------------------------------------------------------------------------------
def heads_first(function: Callable, **fixed: Any) -> Core:
    """A function over [B, H, T, *] as one over [B, T, H, *]."""

    def core(q, k, v, **gates) -> Tensor:
        swapped = (x.transpose(1, 2) for x in (q, k, v, *gates.values()))
        return function(*swapped, **fixed)[0].transpose(1, 2)

    return core


def retention(q, k, v, log_decay) -> Tensor:
    from fla.ops.retention.naive import naive_retention

    return naive_retention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def simple_gla(q, k, v, log_decay) -> Tensor:
    from fla.ops.simple_gla.naive import naive_chunk_simple_gla

    return naive_chunk_simple_gla(q, k, v, log_decay.expand(q.shape[:3]).float(), chunk_size=64)[0]


def gla(q, k, v, log_decay) -> Tensor:
    from fla.ops.gla.naive import naive_recurrent_gla

    return naive_recurrent_gla(q, k, v, log_decay)[0]


def gated_delta(q, k, v, log_decay, beta) -> Tensor:
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule

    return naive_chunk_gated_delta_rule(q, k, v, log_decay, beta, chunk_size=64)[0]


def gated_delta_transformers(q, k, v, log_decay, beta) -> Tensor:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    return inspect.unwrap(torch_chunk_gated_delta_rule)(q, k, v, g=log_decay, beta=beta, chunk_size=64)[0]


def delta_cores() -> dict[str, Core]:
    from fla.ops.delta_rule.naive import delta_rule_chunkwise, delta_rule_recurrence

    return {
        "fla delta_rule_chunkwise, C=32": heads_first(delta_rule_chunkwise, chunk_size=32),
        "fla delta_rule_recurrence": heads_first(delta_rule_recurrence),
    }


def dplr_cores() -> dict[str, Core]:
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_chunkwise, dplr_recurrence

    return {
        "fla dplr_chunkwise, C=32": heads_first(dplr_chunkwise, chunk_size=32),
        "fla dplr_recurrence": heads_first(dplr_recurrence),
    }


GATED_DELTA = {
    "fla naive_chunk_gated_delta_rule": gated_delta,
    "transformers torch_chunk_gated_delta_rule": gated_delta_transformers,
}


# ---- layers of other libraries ---------------------------------------------------------------------------------------
def conv(x: Tensor, weight: Tensor) -> Tensor:
    """nn.Conv1d with left padding, then SiLU."""
    y = F.conv1d(x.transpose(1, 2), weight[:, None], padding=weight.shape[1] - 1, groups=len(weight))
    return F.silu(y[..., : x.shape[1]]).transpose(1, 2)


def projections(layer: MemoryLayer, x: Tensor, *widths: int) -> list[Tensor]:
    """The parts of our fused projection, one product each."""
    x = F.rms_norm(x, (layer.width,), layer.mixer_norm.weight, 1e-6)
    return [F.linear(x, weight) for weight in layer.project.weight.split(widths)]


def qkv(layer: MemoryLayer, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Three convolutions; each of the results in heads."""
    filters = layer.convs["qkv"].weight.split([x.shape[-1] for x in (q, k, v)])
    return [conv(x, w).unflatten(-1, (layer.heads, -1)) for x, w in zip((q, k, v), filters, strict=True)]


def block(layer: MemoryLayer, x: Tensor, o: Tensor, gate: Tensor | None = None) -> Tensor:
    """Norm and gate of the heads, output projection, and the SwiGLU branch."""
    norm = layer.readout_norm
    y = F.rms_norm(o, (o.shape[-1],), norm.weight, norm.eps).flatten(-2)
    x = x + layer.out(y if gate is None else y * F.silu(gate))
    h = F.rms_norm(x, (layer.width,), layer.ffn_norm.weight, 1e-6)
    gate_weight, up_weight = layer.ffn.gate_up.weight.chunk(2)
    return x + layer.ffn.down(F.silu(F.linear(h, gate_weight)) * F.linear(h, up_weight))


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gla_layer(layer, x: Tensor, core: Core) -> Tensor:
    D, K = layer.width, layer.keys
    gate, q, k, v, decay = projections(layer, x, D, K, K, D, layer.config.gate_rank)
    decay = (F.logsigmoid(layer.decay(decay)) / 16).clamp_min(-5)
    q, k, v, decay = (y.unflatten(-1, (layer.heads, -1)) for y in (q, k, v, decay))
    return block(layer, x, core(q, k, v, log_decay=decay), gate)


def retnet_layer(layer, x: Tensor, core: Core) -> Tensor:
    D, V = layer.width, layer.values
    gate, q, k, v = projections(layer, x, V, D, D, V)
    q, k, v = qkv(layer, q, k, v)
    position = torch.arange(x.shape[1])
    return block(layer, x, core(rotary(q, position), rotary(k, position), v, log_decay=layer.log_decay()), gate)


def deltanet_layer(layer, x: Tensor, core: Core) -> Tensor:
    D = layer.width
    q, k, v, beta = projections(layer, x, D, D, D, layer.heads)
    q, k, v = qkv(layer, q, k, v)
    return block(layer, x, core(unit(q), unit(k), v, beta=beta.sigmoid()))


def gated_deltanet_layer(layer, x: Tensor, core: Core) -> Tensor:
    D, V, H = layer.width, layer.values, layer.heads
    gate, q, k, v, beta, decay = projections(layer, x, V, D, D, V, H, H)
    q, k, v = qkv(layer, q, k, v)
    decay = -layer.decay.A_log.exp() * F.softplus(decay + layer.decay.dt_bias)
    return block(layer, x, core(unit(q), unit(k), v, log_decay=decay, beta=beta.sigmoid()), gate)


def rwkv7_layer(layer, x: Tensor, core: Core) -> Tensor:
    """A middle layer: x carries v_first beside the residual stream. The core scales by K^-1/2; RWKV-7 does not."""
    D, H, dim = layer.width, layer.heads, layer.head_dim
    x, v_first = x[..., :D], x[..., D:]
    h = layer.time_norm(x)
    delta = F.pad(h, (0, 0, 1, 0))[:, :-1] - h
    xr, xw, xk, xv, xa, xg = (torch.addcmul(h, delta, mu) for mu in layer.mu)
    r, k, v, g = layer.receptance(xr), layer.key(xk), layer.value(xv), layer.gate(xg)
    w, a = -0.6065306597126334 * layer.decay(xw).sigmoid(), layer.rate(xa).sigmoid()
    v = torch.lerp(v, v_first, layer.value_mix(xv).sigmoid())
    kappa = unit((k * layer.k_k).unflatten(-1, (H, dim)))
    k = k.addcmul(k * (a - 1), layer.k_a)
    r, w, k, v, a = (y.unflatten(-1, (H, dim)) for y in (r, w, k, v, a))
    o = core(r * dim**0.5, k, v, alpha=-kappa, beta=kappa * a, gk=w).flatten(-2)
    norm = layer.readout_norm
    o = F.group_norm(o.flatten(0, 1), H, norm.weight, norm.bias, norm.eps).view_as(x)
    o = o + ((r * k * layer.r_k).sum(-1, keepdim=True) * v).flatten(-2)
    x = x + layer.out(o * g)
    c = layer.channel_norm(x)
    c = torch.addcmul(c, F.pad(c, (0, 0, 1, 0))[:, :-1] - c, layer.channel_mix.mu)
    x = x + layer.channel_mix.down(F.relu(layer.channel_mix.up(c)).square())
    return torch.cat([x, v_first], -1)


def mom_layer(layer: MoM, x: Tensor, core: Core) -> Tensor:
    """FLA's layer without its packed kernels: the rows of `Packing`, padded."""
    D, H, M = layer.width, layer.heads, layer.config.memories
    gate, q, k, v, beta, decay = projections(layer, x, D, D, D, D, H, H)
    decay, beta = -layer.decay.A_log.exp() * F.softplus(decay + layer.decay.dt_bias), beta.sigmoid()
    scores = layer.router(layer.mixer_norm(x)).softmax(-1)
    weight, choice = scores.topk(layer.config.chosen, -1)
    packing = Packing(choice, M)

    def memory(q, k, v, decay, beta) -> Tensor:
        q, k, v = (conv(y, w) for y, w in zip((q, k, v), layer.conv.weight.chunk(3), strict=True))
        q, k, v = (y.unflatten(-1, (H, -1)) for y in (q, k, v))
        return core(unit(q), unit(k), v, log_decay=decay, beta=beta)

    o = packing.unpack(memory(*(packing.pack(y) for y in (q, k, v, decay, beta))))
    o = (o * (weight / weight.sum(-1, keepdim=True))[..., None, None]).sum(2) + memory(q, k, v, decay, beta)
    return block(layer, x, o, gate)


def mamba2_peers(layer: MemoryLayer) -> dict[str, Callable[[Tensor], Tensor]]:
    """transformers' own module on our parameters, at the two chunk sizes where it is fastest."""
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    def mixer(chunk: int) -> Callable[[Tensor], Tensor]:
        sizes = {"num_heads": layer.heads, "head_dim": 64, "hidden_size": layer.width, "state_size": layer.key_dim}
        module = Mamba2Mixer(Mamba2Config(**sizes, n_groups=1, chunk_size=chunk, num_hidden_layers=1), layer_idx=0)
        del module.conv1d.weight  # a parameter would be a leaf of its own; this is a view of ours
        module.conv1d.weight = layer.convs["xBC"].weight[:, None]
        module.conv1d.bias, module.A_log, module.D = layer.convs["xBC"].bias, layer.decay.A_log, layer.skip.D
        module.in_proj.weight, module.out_proj.weight = layer.project.weight, layer.out.weight
        module.dt_bias, module.norm.weight = layer.decay.dt_bias, layer.readout_norm.weight
        return lambda x: x + module(F.rms_norm(x, (layer.width,), layer.mixer_norm.weight, 1e-6))

    return {f"transformers Mamba2Mixer, C={chunk}": mixer(chunk) for chunk in (32, 64)}


def peers_of(name: str, layer: MemoryLayer) -> dict[str, Callable[[Tensor], Tensor]]:
    """Peers by label, each a function of the layer's input."""
    if name == "mamba2":
        return mamba2_peers(layer)
    cores, peer = {
        "gla": (lambda: {"fla naive_recurrent_gla, recurrence": gla}, gla_layer),
        "retnet": (
            lambda: {"fla naive_retention": retention, "fla naive_chunk_simple_gla, C=64": simple_gla},
            retnet_layer,
        ),
        "deltanet": (delta_cores, deltanet_layer),
        "gated_deltanet": (lambda: GATED_DELTA, gated_deltanet_layer),
        "rwkv7": (dplr_cores, rwkv7_layer),
        "mom": (lambda: {"transformers torch_chunk_gated_delta_rule": gated_delta_transformers}, mom_layer),
    }[name]
    return {label: (lambda x, core=core: peer(layer, x, core)) for label, core in cores().items()}


NAMES = ["mamba2", "gla", "retnet", "deltanet", "gated_deltanet", "rwkv7", "mom"]


# ---- measurement -----------------------------------------------------------------------------------------------------
def check(found: list[Tensor], expected: list[Tensor], label: str) -> None:
    """Outputs and gradients agree, or there is nothing to time."""
    for a, b in zip(found, expected, strict=True):
        if a is None and b is None:
            continue
        error = (a - b).square().mean().sqrt() / b.square().mean().sqrt().clamp_min(1e-12)
        if not error < 1e-3:
            raise ArithmeticError(f"{label} computes something else: RMS ratio {error:.1e}")


def measure(name: str, length: int, rounds: int, threads: list[int]) -> list[list[object]]:
    torch.manual_seed(0)
    layer = build(name, width=WIDTH).layers[1]
    with torch.no_grad():
        for parameter in layer.parameters():  # what starts at zero would hide what lies behind it
            parameter += 0.02 * torch.randn_like(parameter)
    x = torch.randn(BATCH, length, WIDTH * (2 if name == "rwkv7" else 1), requires_grad=True)
    weight = torch.randn(BATCH, length, layer.output_width)
    price = sum(term.flops for term in layer.terms())

    def ours(x: Tensor) -> Tensor:
        return layer.write(x, layer.initial_state(BATCH))[0]

    def results(call: Callable[[Tensor], Tensor], length: int) -> list[Tensor]:
        y = call(x[:, :length])
        leaves = [x, *layer.parameters()]
        return [y, *torch.autograd.grad((y * weight[:, :length]).sum(), leaves, allow_unused=True)]

    peers = peers_of(name, layer)
    torch.set_num_threads(1)
    expected = results(ours, 64)
    for label, peer in peers.items():
        check(results(peer, 64), expected, label)

    square, rows = torch.randn(1024, 1024), []
    lengths = {label: min(length, LOOP) if label.endswith("recurrence") else length for label in peers}
    for count in threads:
        torch.set_num_threads(count)
        for part in sorted(set(lengths.values()), reverse=True):
            calls = {"ours": ours} | {label: peer for label, peer in peers.items() if lengths[label] == part}
            timed = {label: (lambda call=call, part=part: results(call, part)) for label, call in calls.items()}
            times = in_turn({"product": lambda: square @ square, **timed}, rounds, repeats=1)
            peak, a = 2 * len(square) ** 3 / times.pop("product").median, times.pop("ours")
            for label, b in times.items():
                rows.append([name, label, part, count, f"{b.median / a.median:.2f}", f"{1e3 * a.median:.0f}",
                             f"{1e3 * b.median:.0f}", f"{max(a.spread, b.spread):.2f}",
                             f"{BATCH * part / a.median:.0f}",
                             f"{3 * price * BATCH * part / a.median / peak:.2f}"])  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"of {', '.join(NAMES)}; all if none")
    parser.add_argument("--length", type=int, default=1024, help="stream length L, a multiple of 64")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    warnings.simplefilter("ignore")
    rows = [row for name in args.names for row in measure(name, args.length, args.rounds, args.threads)]
    print(f"# {machine()}; B = {BATCH}, L = {args.length}, D = {WIDTH}, float32, forward + backward, CPU time")
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
