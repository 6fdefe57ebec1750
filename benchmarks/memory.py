"""What reading off a shared state costs and saves: python -m benchmarks.memory [names ...]

Per backbone, D = 64, batch 16, float32, process CPU time of one thread:

    reads    write + 32 reads over write + 1 read
    train    a training step (write, 32 reads, backward, AdamW) over forward and backward of the stream alone
    shared   one pass per query over write + 32 reads off one state
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F

from backbones import MembershipModel, available
from backbones.lightning import parameter_groups
from benchmarks.timing import in_turn, machine, table

BATCH, QUERIES, WIDTH = 16, 32, 64
HEADER = ["backbone", "L", "comparison", "ratio", "ms", "ms of the other", "spread"]


def questions(length: int, queries: int = QUERIES) -> tuple[torch.Tensor, ...]:
    """Stream [B, L], candidates [B, Q, 6], lengths [B, Q], labels [B, Q]; what they hold does not matter here."""
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, (BATCH, *shape), generator=generator)

    return draw(0, 16, length), draw(0, 16, queries, 6), draw(3, 7, queries), draw(0, 2, queries)


def compare(name: str, length: int, what: str, a, b, rounds: int) -> list[object]:
    times = in_turn({"a": a, "b": b}, rounds)
    a, b = times["a"], times["b"]
    return [name, length, what, f"{a.median / b.median:.2f}", f"{1e3 * a.median:.1f}", f"{1e3 * b.median:.1f}",
            f"{max(a.spread, b.spread):.2f}"]  # fmt: skip


def reads(name: str, length: int, rounds: int) -> list[object]:
    model = MembershipModel(name, WIDTH).eval()
    stream, candidates, lengths, _ = questions(length)

    @torch.inference_mode()
    def ask(queries: int) -> torch.Tensor:
        return model.read(candidates[:, :queries], lengths[:, :queries], model.write(stream))

    return compare(name, length, "write + 32 reads / write + 1 read", lambda: ask(QUERIES), lambda: ask(1), rounds)


def training(name: str, length: int, rounds: int) -> list[object]:
    model = MembershipModel(name, WIDTH)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-4, fused=True)
    stream, candidates, lengths, labels = questions(length)

    def step() -> None:
        logits = model(stream, candidates, lengths, (length,))
        F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    def stream_alone() -> None:
        y, _ = model.backbone.write(model.embedding(stream))
        y.sum().backward()
        model.zero_grad()

    return compare(name, length, "training step / forward and backward of the stream", step, stream_alone, rounds)


def shared(name: str, length: int, rounds: int) -> list[object]:
    model = MembershipModel(name, WIDTH).eval()
    stream, candidates, lengths, _ = questions(length)

    @torch.inference_mode()
    def pass_per_query() -> None:
        queries = model.candidate(candidates, lengths)
        tokens = model.embedding(stream)
        for i in range(QUERIES):
            y, _ = model.backbone.write(torch.cat([tokens, queries[:, i : i + 1]], 1))
            model.head(model.norm(y[:, -1]))

    @torch.inference_mode()
    def off_one_state() -> None:
        model.read(candidates, lengths, model.write(stream))

    return compare(name, length, "one pass per query / shared state", pass_per_query, off_one_state, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="backbones; all by default")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"# {machine()}")
    print(table(HEADER, []), flush=True)
    for name in arguments.names or available():
        for measure, lengths in ((reads, (256, 1024)), (training, (256, 1024)), (shared, (128,))):
            for length in lengths:
                print("\t".join(str(cell) for cell in measure(name, length, arguments.rounds)), flush=True)


if __name__ == "__main__":
    main()
