"""Speed of the sequence operators against other libraries' CPU forms of the same mathematics.

    python -m benchmarks.kernels [names ...] [--threads 1 2] [--rounds 5] [--length 1024] > results.tsv
    python -m benchmarks.kernels --chunks [names ...]        ours alone, over chunk sizes
    python -m benchmarks.kernels --states                    our native form against our chunks, over sizes of the state

Sizes are those of one layer at B = 8, D = 128, in float32. Competitors run in turn, in process CPU time; medians.
`peer / ours` above 1 means that ours is faster. A row appears only after its outputs agreed with ours. Peers: the naive
and chunked functions of flash-linear-attention (FLA) and transformers that run on a CPU, PyTorch's own idioms, our loop
over tokens, and our chunked form where another one is chosen. Where FLA's in-place loop makes autograd quadratic
in the length, only the forward pass is timed. `useful` is three times the forward FLOP of the mathematics (of the
recurrence: every pass over the state) per CPU second of forward and backward, whatever the form executes, and `of peak`
its share of what a large product reaches in the same run.
"""

from __future__ import annotations

import argparse
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import Timing, in_turn, machine, table
from kernels import (
    attention_read,
    causal_attention,
    explain,
    leaky_average,
    linear_recurrence,
    linear_state,
    short_conv,
)
from kernels.testing import CASES, Case, RecurrenceInputs, recurrence_inputs, rms_ratio

BATCH, WIDTH = 8, 128
ARCHITECTURES = ["retnet", "gla", "mamba2", "deltanet", "gated_deltanet", "rwkv7"]
CHUNKS = (8, 16, 32, 64, 128)
HEADER = ["operator", "kernel", "peer", "threads", "forward", "forward+backward", "ours ms", "peer ms", "spread"]
HEADER += ["useful", "of peak"]
TOLERANCE = 2e-4


@dataclass
class Peer:
    """One competitor."""

    name: str
    forward: Callable[[], Tensor]
    trains: bool = True


@dataclass
class Contest:
    """Ours, its competitors, and what to differentiate by."""

    ours: Callable[[], Tensor]
    leaves: list[Tensor]
    peers: list[Peer]
    flops: int
    """Of the mathematics, forward."""
    kernel: str
    """The form that `ours` is; `"auto"` where an operator has one fast form."""


def first(call: Callable) -> Callable[[], Tensor]:
    """The first of what `call` returns."""
    return lambda: call()[0]


def heads_first(function: Callable, *tensors: Tensor, **options) -> Callable[[], Tensor]:
    """A function over `[B, H, L, *]` called with `[B, L, H, *]`."""
    return lambda: function(*(x.transpose(1, 2) for x in tensors), **options)[0].transpose(1, 2)


# ---- the linear recurrence -------------------------------------------------------------------------------------------
def layer_case(name: str) -> tuple[Case, int]:
    """The rule of one layer of an architecture at this width, and its heads."""
    case = CASES[name]
    if case.shared_heads:
        case = replace(case, key_dim=2 * WIDTH)  # Mamba-2: N = 2 D
    return case, WIDTH // case.width_per_head


def layer_inputs(name: str, length: int) -> RecurrenceInputs:
    case, heads = layer_case(name)
    x = recurrence_inputs(case, batch=BATCH, length=length, heads=heads, with_state=False).leaves(torch.float32)
    if case.gate == "constant":
        x.log_decay = x.log_decay.detach()  # a buffer, not a parameter
    return x


def chosen(name: str, kernel: str, reads: bool = True) -> str:
    """The form that `kernel` is for an architecture. Sharing a q makes no difference where nothing reads."""
    case, _ = layer_case(name)
    sizes = {"key_dim": case.key_dim, "value_dim": case.value_dim, "shared_heads": case.shared_heads and reads}
    return explain(kernel=kernel, gate=case.gate, erase=case.erase, **sizes).split()[1]


def passes(name: str, length: int, count: int) -> int:
    """FLOP of `count` passes over the states of all streams, tokens and heads."""
    case, heads = layer_case(name)
    return 2 * count * case.key_dim * case.value_dim * heads * length * BATCH


def recurrence(name: str, length: int, kernel: str) -> Contest:
    """The recurrence of an architecture, with all peers that compute it."""
    case, _ = layer_case(name)
    x = layer_inputs(name, length)
    scale = 1.0 if name == "mamba2" else case.key_dim**-0.5

    def form(kernel: str) -> Callable[[], Tensor]:
        def run() -> Tensor:
            v = mamba2_writes(x) if name == "mamba2" else x.v
            options = {"v": v, "scale": scale, "min_log_decay": case.lowest, "kernel": kernel}
            return linear_recurrence(**x.arguments() | options)[0]

        return run

    own = [Peer("our loop over tokens", form("reference"))]
    if chosen(name, kernel) != "chunk":
        own.append(Peer("our chunked form", form("chunk")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FLA warns that there is no GPU
        peers = PEERS[name](x, scale)
    flops = passes(name, length, {"none": 2, "delta": 3, "low rank": 4}[case.erase])
    leaves = [t for t in x.tensors() if t.requires_grad]
    return Contest(form(kernel), leaves, [*own, *peers], flops, chosen(name, kernel))


def retnet(x: RecurrenceInputs, scale: float) -> list[Peer]:
    from fla.ops.retention.naive import naive_retention
    from fla.ops.simple_gla.naive import naive_chunk_simple_gla, naive_recurrent_simple_gla

    tensors = x.q, x.k, x.v, x.log_decay.expand(x.v.shape[:3])

    def retention() -> Tensor:
        return naive_retention(*(t.transpose(1, 2) for t in (x.q, x.k, x.v))).transpose(1, 2)

    return [
        Peer("FLA naive_retention", retention),
        Peer("FLA naive_chunk_simple_gla", first(lambda: naive_chunk_simple_gla(*tensors, scale=scale))),
        Peer("FLA naive_recurrent_simple_gla", first(lambda: naive_recurrent_simple_gla(*tensors, scale=scale)), False),
    ]


def gla(x: RecurrenceInputs, scale: float) -> list[Peer]:
    from fla.ops.gla.naive import naive_recurrent_gla

    return [Peer("FLA naive_recurrent_gla", first(lambda: naive_recurrent_gla(x.q, x.k, x.v, x.log_decay)), False)]


def mamba2_writes(x: RecurrenceInputs) -> Tensor:
    """dt x: the peer is given dt and x, so ours starts from them too. With A = -1, dt is minus the log decay."""
    return x.v * -x.log_decay.unsqueeze(-1)


def mamba2(x: RecurrenceInputs, scale: float) -> list[Peer]:
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    scan = inspect.unwrap(mamba2_chunk_scan)
    minus_one = -torch.ones(x.v.shape[2])

    def peer(chunk: int) -> Peer:
        return Peer(
            f"transformers mamba2_chunk_scan C={chunk}",
            lambda: scan(x.v, -x.log_decay, minus_one, x.k, x.q, chunk),
        )

    return [peer(64), peer(256)]


def deltanet(x: RecurrenceInputs, scale: float) -> list[Peer]:
    from fla.ops.delta_rule.naive import delta_rule_chunkwise, delta_rule_recurrence

    tensors = x.q, x.k, x.v, x.erase
    return [
        Peer("FLA delta_rule_chunkwise C=32", heads_first(delta_rule_chunkwise, *tensors, chunk_size=32)),
        Peer("FLA delta_rule_chunkwise C=64", heads_first(delta_rule_chunkwise, *tensors, chunk_size=64)),
        Peer("FLA delta_rule_recurrence", heads_first(delta_rule_recurrence, *tensors), False),
    ]


def gated_deltanet(x: RecurrenceInputs, scale: float) -> list[Peer]:
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule, naive_recurrent_gated_delta_rule
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    chunked = inspect.unwrap(torch_chunk_gated_delta_rule)
    arguments = x.q, x.k, x.v, x.log_decay, x.erase
    recurrent = x.q, x.k, x.v, x.erase, x.log_decay
    return [
        Peer("transformers torch_chunk_gated_delta_rule", first(lambda: chunked(*arguments))),
        Peer("FLA naive_chunk_gated_delta_rule", first(lambda: naive_chunk_gated_delta_rule(*arguments))),
        Peer(
            "FLA naive_recurrent_gated_delta_rule", first(lambda: naive_recurrent_gated_delta_rule(*recurrent)), False
        ),
    ]


def rwkv7(x: RecurrenceInputs, scale: float) -> list[Peer]:
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_chunkwise, dplr_recurrence

    a, b = x.erase
    tensors = x.q, x.k, x.v, b, a, x.log_decay
    return [
        Peer("FLA dplr_chunkwise C=16", heads_first(dplr_chunkwise, *tensors, chunk_size=16)),
        Peer("FLA dplr_recurrence", heads_first(dplr_recurrence, *tensors), False),
    ]


PEERS = {f.__name__: f for f in (retnet, gla, mamba2, deltanet, gated_deltanet, rwkv7)}


def state_alone(name: str, length: int, kernel: str) -> Contest:
    """The top layer's shortcut against the whole recurrence, both for the final state."""
    case, _ = layer_case(name)
    x = layer_inputs(name, length)
    arguments = {**x.arguments(), "min_log_decay": case.lowest, "kernel": kernel}
    q = arguments.pop("q")

    def whole() -> Tensor:
        return linear_recurrence(q, **arguments)[1]

    def ours() -> Tensor:
        return linear_state(**arguments)

    flops = passes(name, length, {"none": 1, "delta": 2, "low rank": 3}[case.erase])
    leaves = [t for t in x.tensors()[1:] if t.requires_grad]
    return Contest(ours, leaves, [Peer("whole recurrence", whole)], flops, chosen(name, kernel, reads=False))


# ---- the other operators ---------------------------------------------------------------------------------------------
def convolution(length: int) -> Contest:
    """As many channels as q, k and v together."""
    x = torch.randn(BATCH, length, 3 * WIDTH, requires_grad=True)
    weight = torch.randn(3 * WIDTH, 4, requires_grad=True)

    def conv1d() -> Tensor:
        y = F.conv1d(x.transpose(1, 2), weight.unsqueeze(1), padding=3, groups=3 * WIDTH)
        return F.silu(y[..., :length]).transpose(1, 2)

    return Contest(
        lambda: short_conv(x, weight, activation="silu")[0],
        [x, weight],
        [
            Peer("conv1d with padding", conv1d),
            Peer("loop over tokens", lambda: short_conv(x, weight, activation="silu", kernel="reference")[0]),
        ],
        2 * x.numel() * weight.shape[1],
        "auto",
    )


def attention(length: int) -> Contest:
    q, k, v = (torch.randn(BATCH, length, WIDTH // 16, 16, requires_grad=True) for _ in range(3))
    return Contest(
        lambda: causal_attention(q, k, v),
        [q, k, v],
        [Peer("explicit softmax", lambda: causal_attention(q, k, v, kernel="reference"))],
        2 * q.numel() * (length + 1),
        "auto",
    )


def reading(length: int) -> Contest:
    q, k, v = (torch.randn(BATCH, 32, WIDTH // 16, 16, requires_grad=True) for _ in range(3))
    past = [torch.randn(BATCH, length, WIDTH // 16, 16, requires_grad=True) for _ in range(2)]
    return Contest(
        lambda: attention_read(q, k, v, *past),
        [q, k, v, *past],
        [Peer("explicit softmax", lambda: attention_read(q, k, v, *past, kernel="reference"))],
        4 * q.numel() * (length + 1),
        "auto",
    )


def leaky(length: int) -> Contest:
    heads = WIDTH // 16
    x = torch.randn(BATCH, length, heads, 16, requires_grad=True)
    log_decay = (-torch.linspace(0.5, 5, heads)).requires_grad_()
    distance = torch.arange(length)[:, None] - torch.arange(length)

    def whole_table() -> Tensor:
        exponents = (log_decay[:, None, None] * distance.clamp_min(0)).masked_fill(distance < 0, -math.inf)
        return (exponents.exp() @ x.transpose(1, 2)).transpose(1, 2)

    return Contest(
        lambda: leaky_average(x, log_decay)[0],
        [x, log_decay],
        [
            Peer("table of all pairs", whole_table),
            Peer("loop over tokens", lambda: leaky_average(x, log_decay, kernel="reference")[0]),
        ],
        2 * x.numel(),
        "auto",
    )


OTHERS = {"short_conv": convolution, "attention": attention, "attention_read": reading, "leaky_average": leaky}
CONTESTS: dict[str, Callable[[int, str], Contest]] = {
    **{name: partial(recurrence, name) for name in ARCHITECTURES},
    **{f"{name} state": partial(state_alone, name) for name in ARCHITECTURES},
    **{name: lambda length, kernel, contest=contest: contest(length) for name, contest in OTHERS.items()},
}


# ---- running ---------------------------------------------------------------------------------------------------------
def training(forward: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], object]:
    """Forward and backward, from a fixed gradient of the outputs."""
    gradient = torch.randn(forward().shape, generator=torch.Generator().manual_seed(1))
    return lambda: torch.autograd.grad(forward(), leaves, gradient, allow_unused=True)


def without_gradients(forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return forward()

    return run


def agree(contest: Contest) -> None:
    """Stop unless every peer's outputs are ours."""
    expected = without_gradients(contest.ours)()
    for peer in contest.peers:
        error = rms_ratio(without_gradients(peer.forward)(), expected)
        if not error < TOLERANCE:
            raise SystemExit(f"{peer.name}: outputs differ from ours by {error:.1e} (RMS), more than {TOLERANCE}")


def peak_of(timing: Timing, size: int) -> float:
    return 2 * size**3 / timing.median


def rows(name: str, contest: Contest, rounds: int, repeats: int) -> list[list[object]]:
    """One row per peer."""
    agree(contest)
    a = torch.randn(512, 512)
    calls = {"ours": contest.ours, **{peer.name: peer.forward for peer in contest.peers}}
    forward = {label: without_gradients(call) for label, call in calls.items()}
    trained = {label: training(call, contest.leaves) for label, call in calls.items() if label == "ours"}
    trained |= {p.name: training(p.forward, contest.leaves) for p in contest.peers if p.trains}
    forward_times = in_turn(forward, rounds, repeats)
    times = in_turn({**trained, "matmul": lambda: a @ a}, rounds, repeats)
    ours = times["ours"]
    useful = 3 * contest.flops / ours.median
    result = []
    for peer in contest.peers:
        both = times.get(peer.name)
        forward_ratio = forward_times[peer.name].median / forward_times["ours"].median
        result.append(
            [
                name,
                contest.kernel,
                peer.name,
                torch.get_num_threads(),
                f"{forward_ratio:.2f}",
                f"{both.median / ours.median:.2f}" if both else "-",
                f"{forward_times['ours'].median * 1e3:.1f} / {ours.median * 1e3:.1f}",
                f"{forward_times[peer.name].median * 1e3:.1f} / {both.median * 1e3 if both else math.nan:.1f}",
                f"{ours.spread:.0%}",
                f"{useful / 1e9:.1f} GFLOP/s",
                f"{useful / peak_of(times['matmul'], 512):.0%}",
            ]
        )
    return result


def chunk_rows(name: str, length: int, rounds: int, repeats: int) -> list[list[object]]:
    """Ours over chunk sizes: forward, forward and backward, in milliseconds."""
    case, _ = layer_case(name)
    x = layer_inputs(name, length)
    leaves = [t for t in x.tensors() if t.requires_grad]

    def run(chunk: int) -> Callable[[], Tensor]:
        return lambda: linear_recurrence(**x.arguments(), chunk=chunk, min_log_decay=case.lowest)[0]

    forward = in_turn({str(c): without_gradients(run(c)) for c in CHUNKS}, rounds, repeats)
    both = in_turn({str(c): training(run(c), leaves) for c in CHUNKS}, rounds, repeats)
    return [
        [name, c, torch.get_num_threads(), f"{forward[c].median * 1e3:.1f}", f"{both[c].median * 1e3:.1f}"]
        for c in forward
    ]


STATES = ((8, 16), (16, 16), (16, 32), (32, 32), (64, 32), (64, 64), (128, 64), (128, 128))
RULES = {
    "no gate, no erase": Case("none", "none"),
    "gate per head, no erase": Case("head", "none"),
    "the same, one q and k": Case("head", "none", shared_heads=True),
    "gate per head, delta rule": Case("head", "delta"),
    "gate per channel, low rank erase": Case("channel", "low rank", lowest=-0.6),
}


def state_rows(length: int, rounds: int, repeats: int) -> list[list[object]]:
    """Chunks over native, forward and forward + backward, for rules and sizes of the state of one head."""
    found = []
    for rule, base in RULES.items():
        for key_dim, value_dim in STATES:
            case = replace(base, key_dim=key_dim, value_dim=value_dim)
            heads = max(1 + case.shared_heads, WIDTH // value_dim)
            x = recurrence_inputs(case, batch=BATCH, length=length, heads=heads, with_state=False)
            x = x.leaves(torch.float32)

            def form(kernel: str, x: RecurrenceInputs = x, lowest: float | None = case.lowest) -> Callable:
                return lambda: linear_recurrence(**x.arguments(), kernel=kernel, min_log_decay=lowest)[0]

            forms = {name: form(name) for name in ("native", "chunk")}
            forward = in_turn({k: without_gradients(f) for k, f in forms.items()}, rounds, repeats)
            both = in_turn({k: training(f, x.tensors()) for k, f in forms.items()}, rounds, repeats)
            ratios = [f"{times['chunk'].median / times['native'].median:.2f}" for times in (forward, both)]
            found.append([rule, f"{key_dim} x {value_dim}", *ratios])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(CONTESTS)}; all by default")
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--kernel", default="auto", help="the form of the recurrence to time as ours")
    parser.add_argument("--chunks", action="store_true", help="compare chunk sizes instead of peers")
    parser.add_argument("--states", action="store_true", help="compare our two fast forms over sizes of the state")
    arguments = parser.parse_args()
    names = arguments.names or (ARCHITECTURES if arguments.chunks else list(CONTESTS))
    if unknown := set(names) - set(CONTESTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(CONTESTS)}")
    torch.set_num_threads(arguments.threads[0])
    print(f"# {machine()}, B = {BATCH}, L = {arguments.length}, D = {WIDTH}, float32")
    if arguments.states:
        header = ["rule", "state", "chunk / native, forward", "forward+backward"]
        print(table(header, state_rows(arguments.length, arguments.rounds, arguments.repeats)))
        return
    print(
        table(["operator", "chunk", "threads", "forward ms", "forward+backward ms"] if arguments.chunks else HEADER, [])
    )
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for name in names:
            if arguments.chunks:
                found = chunk_rows(name, arguments.length, arguments.rounds, arguments.repeats)
            else:
                contest = CONTESTS[name](arguments.length, arguments.kernel)
                found = rows(name, contest, arguments.rounds, arguments.repeats)
            for row in found:
                print(table([], [row]).strip(), flush=True)


if __name__ == "__main__":
    main()
