"""Speed of DeltaFormer, TTT-MLP, Memory Mosaic and the Compressive Transformer against straightforward forms of them.

    python -m benchmarks.other_backbones [--threads 1 2] [--rounds 5] [--length 1024] > results.tsv

Every reference computes the same numbers, which is checked before anything is timed:

    deltaformer              two stages of attention; flash-linear-attention's naive function
    ttt_mlp                  the fast-weight MLP; the dual form of the paper with b x b matrices
    memory_mosaic            a layer; leaky averages as T x T tables, a mask for strict causality, a loop over memories
    compressive_transformer  a layer; block by block, keys and values of all slots projected again for every block

Ratios are reference over ours in process CPU time, medians of alternating rounds, float32. Above 1 ours is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from backbones import MemoryLayer, build
from benchmarks.timing import in_turn, machine, table
from kernels import causal_attention
from kernels.deltaformer import corrected_values
from kernels.ttt import FastMemory, FastWeights, InnerLoop, ttt_mlp
from kernels.ttt.inner import query_output, token_gradient

BATCH, WIDTH = 8, 128
LONGEST_BACKWARD = {"deltaformer": 512}
"""The naive function keeps every prefix of its list for the backward pass: 2 GB at 512 tokens, 8 GB at 1024."""
HEADER = ["backbone", "L", "threads", "pass", "reference / ours", "ours ms", "reference ms", "spread"]
Case = tuple[Callable[[], Tensor], Callable[[], Tensor], list[Tensor]]
"""Ours, the reference, and the tensors whose gradients the backward pass computes."""


# ---- references ------------------------------------------------------------------------------------------------------
def dual_form(q, k, v, lr, memory: FastMemory, inner: InnerLoop) -> Tensor:
    """TTT-MLP as its authors write it: one b x b attention and one b x b bias sum per layer of the fast network."""
    q, k, v, lr = (x.transpose(1, 2) for x in (q, k, v, lr))
    anchor, outputs, b = memory.anchor, [], inner.mini_batch
    ones = torch.ones_like(lr[:, :, :b])
    for part in (slice(i, i + b) for i in range(0, k.shape[2], b)):
        q_b, k_b, rate = q[:, :, part], k[:, :, part], lr[:, :, part]
        step = token_gradient(k_b, v[:, :, part], ones[:, :, : k_b.shape[2]], anchor, inner)
        eta = (inner.tau[: k_b.shape[2], None] * rate.unsqueeze(-2)).tril()
        z = q_b @ anchor.W1 - (eta * (q_b @ k_b.transpose(-1, -2)).tril()) @ step.hidden
        x = F.gelu(z + anchor.b1.unsqueeze(2) - eta @ step.hidden, approximate="tanh")
        z = x @ anchor.W2 - (eta * (x @ step.features.transpose(-1, -2)).tril()) @ step.output
        outputs.append(query_output(q_b, z + anchor.b2.unsqueeze(2) - eta @ step.output, inner))
        last = eta[:, :, -1, :, None]
        anchor = FastWeights(
            anchor.W1 - (last * k_b).transpose(-1, -2) @ step.hidden,
            anchor.b1 - (last * step.hidden).sum(2),
            anchor.W2 - (last * step.features).transpose(-1, -2) @ step.output,
            anchor.b2 - (last * step.output).sum(2),
        )
    return torch.cat(outputs, 2).transpose(1, 2)


def tabled_mosaic(layer: MemoryLayer, x: Tensor) -> Tensor:
    """Memory Mosaic as in its authors' single-file version, the memories one after another."""
    T = x.shape[1]
    age = (torch.arange(T)[:, None] - torch.arange(T)).float()

    def heads(y: Tensor) -> Tensor:
        return y.unflatten(-1, (layer.heads, -1)).transpose(1, 2)

    def unit(y: Tensor) -> Tensor:
        return y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)

    def keys(module, h: Tensor) -> Tensor:
        decay = (10 * module.leak).abs().view(-1, 1, 1)
        averaged = torch.exp(-age.clamp_min(0) * decay).tril() @ heads(module.project(h))
        return unit(averaged) * torch.exp(module.power * 10 * module.scale).view(-1, 1, 1)

    h = layer.context_norm(x)
    key, v, mix = keys(layer.context_keys, h), heads(layer.value(h)), layer.value_mix.view(-1, 1, 1)
    value = unit(mix * v + (1 - mix) * F.pad(v[:, :, 1:], (0, 0, 0, 1))) * torch.exp(10 * layer.value_scale).view(
        -1, 1, 1
    )
    strict = torch.ones(T, T, dtype=torch.bool).tril(-1)
    y = torch.zeros_like(v)
    y[:, :, 1:] = F.scaled_dot_product_attention(key[:, :, 1:], key, value, attn_mask=strict[1:], scale=1.0)
    x = x + layer.context_out(y.transpose(1, 2).flatten(2))
    key = keys(layer.persistent_keys, layer.persistent_norm(x))
    y = 0
    for entry_keys, entry_values in zip(layer.entry_keys, layer.entry_values, strict=True):
        entries = (e.expand(len(x), -1, -1, -1) for e in (entry_keys, entry_values))
        y = y + F.scaled_dot_product_attention(key, *entries, scale=1.0)
    y = y / layer.config.memories * torch.exp(10 * layer.persistent_scale).view(-1, 1, 1)
    return x + layer.persistent_out(y.transpose(1, 2).flatten(2))


def block_by_block(layer: MemoryLayer, x: Tensor) -> Tensor:
    """The Compressive Transformer as its authors run it: a block at a time through queues of slots."""
    layout, D = layer.layout, layer.width
    recent = level1 = level2 = long_term = x[:, :0]
    ys = []

    def heads(y: Tensor) -> Tensor:
        return y.unflatten(-1, (layer.heads, -1)).transpose(1, 2)

    def shift(scores: Tensor) -> Tensor:
        n, S = scores.shape[-2:]
        rows = F.pad(scores, (0, n)).flatten(-2)
        rows = F.pad(rows, (0, -rows.shape[-1] % (n + S - 1))).unflatten(-1, (-1, n + S - 1))
        return rows[..., :n, n - 1 :]

    for block in x.split(layout.block, 1):
        h = layer.attention_norm(block)
        seen = torch.cat([long_term, level2, level1, recent, h], 1)
        n, S = h.shape[1], seen.shape[1]
        k, v = (heads(y) for y in layer.key_value(seen).chunk(2, -1))
        q = heads(layer.query(h))
        scores = q @ k.transpose(-1, -2) / 4
        scores = scores + shift(q @ layer.positions[:, -S:].transpose(-1, -2) / 4)
        hidden = torch.ones(n, S, dtype=torch.bool).triu(S - n + 1)
        o = scores.masked_fill(hidden, -torch.finfo(scores.dtype).max).softmax(-1) @ v
        gates = []
        for gate in (layer.attention_gate, layer.ffn_gate):
            gates.append((gate.input.weight, gate.hidden.weight, gate.input.bias, gate.hidden.bias))
        o = layer.out(o.transpose(1, 2).flatten(2)).flatten(0, 1)
        y = torch.gru_cell(o, block.flatten(0, 1), *gates[0])
        ys.append(torch.gru_cell(layer.ffn(layer.ffn_norm(y)), y, *gates[1]).unflatten(0, (len(x), -1)))
        if n < layout.block:
            break
        if recent.shape[1]:
            level1 = torch.cat([level1, layer.compress1(recent, trained=False)], 1)
        recent = h
        over, level1 = level1[:, : -layout.slots[0]], level1[:, -layout.slots[0] :]
        if over.shape[1]:
            level2 = torch.cat([level2, layer.compress2(over, trained=False)], 1)
        over, level2 = level2[:, : -layout.slots[1]], level2[:, -layout.slots[1] :]
        if over.shape[1]:
            weights = (layer.long_term_key(over) @ layer.long_term_query[:, None] / D**0.5).softmax(1)
            update = weights.transpose(1, 2) @ layer.long_term_value(over)
            long_term = layer.long_term_gru(update, long_term) if long_term.shape[1] else update
    return torch.cat(ys, 1)


# ---- cases -----------------------------------------------------------------------------------------------------------
def deltaformer(length: int) -> Case:
    from fla.ops.deltaformer.naive import naive_deltaformer_attn

    shape = (BATCH, length, WIDTH // 16)
    q, k, v = (torch.randn(*shape, 16, requires_grad=True) for _ in range(3))
    beta = torch.rand(shape, requires_grad=True)

    def ours() -> Tensor:
        return causal_attention(q, k, corrected_values(q, k, v, beta))

    return ours, lambda: naive_deltaformer_attn(q, k, v, beta), [q, k, v, beta]


def fast_weights(length: int) -> Case:
    layer = build("ttt_mlp", width=WIDTH).layers[0]
    with torch.no_grad():
        q, k, v, lr = layer._fast_inputs(torch.randn(BATCH, length, WIDTH), 0, length)
    memory, inner = layer.initial_state(BATCH).memory(), layer._inner()
    leaves = [x.requires_grad_() for x in (q, k, v, lr)]
    memory, inner = _detached(memory, inner, leaves)
    return lambda: ttt_mlp(*leaves[:4], memory, inner)[0], lambda: dual_form(*leaves[:4], memory, inner), leaves


def _detached(memory: FastMemory, inner: InnerLoop, leaves: list[Tensor]) -> tuple[FastMemory, InnerLoop]:
    """Weights and constants as leaves of their own, so that both sides differentiate through the same graph."""
    anchor = memory.anchor.combine(lambda w: w.detach().clone().requires_grad_())
    inner = InnerLoop(*(x.detach().clone().requires_grad_() for x in inner))
    leaves += [*anchor, *inner]
    return FastMemory(anchor, memory.total.combine(torch.Tensor.detach), 0), inner


def layer_case(name: str, reference: Callable[[MemoryLayer, Tensor], Tensor]) -> Callable[[int], Case]:
    def case(length: int) -> Case:
        layer = build(name, width=WIDTH).layers[0].eval()
        x = torch.randn(BATCH, length, WIDTH, requires_grad=True)
        y = reference(layer, x)
        reached = torch.autograd.grad(y.sum(), list(layer.parameters()), allow_unused=True)
        used = [p for p, grad in zip(layer.parameters(), reached, strict=True) if grad is not None]

        def ours() -> Tensor:
            return layer.write(x, layer.initial_state(BATCH))[0]

        return ours, lambda: reference(layer, x), [x, *used]

    return case


CASES: dict[str, Callable[[int], Case]] = {
    "deltaformer": deltaformer,
    "ttt_mlp": fast_weights,
    "memory_mosaic": layer_case("memory_mosaic", tabled_mosaic),
    "compressive_transformer": layer_case("compressive_transformer", block_by_block),
}


def check(ours: Callable[[], Tensor], reference: Callable[[], Tensor], leaves: list[Tensor]) -> None:
    """Outputs and gradients with respect to `leaves` agree, or there is nothing to time."""
    results = []
    for call in (ours, reference):
        with torch.set_grad_enabled(bool(leaves)):
            y = call()
        results.append([y, *torch.autograd.grad(y.square().mean(), leaves)] if leaves else [y])
    for found, expected in zip(*results, strict=True):
        error = (found - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp_min(1e-12)
        if not error < 1e-4:
            raise ArithmeticError(f"the reference computes something else: RMS ratio {error:.1e}")


def measure(name: str, length: int, rounds: int, threads: list[int]) -> Iterator[list[object]]:
    """One row per pass and number of threads."""
    for L, backward in ((length, False), (min(length, LONGEST_BACKWARD.get(name, length)), True)):
        torch.manual_seed(0)
        ours, reference, leaves = CASES[name](L)
        check(ours, reference, leaves if backward else [])

        def run(call: Callable[[], Tensor], leaves: list[Tensor] = leaves, backward: bool = backward) -> None:
            with torch.set_grad_enabled(backward):
                y = call()
                if backward:
                    torch.autograd.grad(y.square().sum(), leaves)

        for count in threads:
            torch.set_num_threads(count)
            calls = {"ours": partial(run, ours), "reference": partial(run, reference)}
            times = in_turn(calls, rounds, repeats=1)
            a, b = times["ours"], times["reference"]
            yield [name, L, count, "forward + backward" if backward else "forward", f"{b.median / a.median:.2f}",
                   f"{1e3 * a.median:.1f}", f"{1e3 * b.median:.1f}", f"{max(a.spread, b.spread):.2f}"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}; all if none")
    parser.add_argument("--length", type=int, default=1024, help="stream length L")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in CASES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(CASES)}")
    print(f"# {machine()}; B = {BATCH}, D = {WIDTH}, float32, process CPU time")
    print(table(HEADER, []), flush=True)
    for name in args.names:
        for row in measure(name, args.length, args.rounds, args.threads):
            print("\t".join(str(cell) for cell in row), flush=True)


if __name__ == "__main__":
    main()
