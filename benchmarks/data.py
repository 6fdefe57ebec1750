"""The share of a training step that generating its batch takes: python -m benchmarks.data [backbone]

`preset=cpu`'s own schedule at its longest length, float32, process CPU time of one thread.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F

from backbones import MembershipModel
from backbones.lightning import parameter_groups
from benchmarks.timing import in_turn, machine, table
from tasks import MembershipConfig, sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbone", nargs="?", default="transformer_conv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"# {machine()}, {arguments.backbone}, D = 64, 16 streams x 64 queries")
    rows, config = [], MembershipConfig()
    for length, times in ((32, (16, 32)), (64, (16, 32, 48, 64)), (128, (32, 64, 96, 128)), (1024, (1024,))):
        model = MembershipModel(arguments.backbone)
        optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-4, fused=True)

        def generate(length=length, times=times):
            return sample(config, 0, range(16), length, 64, split="train", times=times)

        batch = generate()

        def step(model=model, optimizer=optimizer, batch=batch):
            logits = model(batch.stream, batch.candidates, batch.lengths, batch.times)
            F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

        times_ = in_turn({"generate": generate, "step": step}, rounds=5, repeats=3)
        g, s = times_["generate"].median, times_["step"].median
        rows.append([length, f"{1e3 * g:.2f}", f"{1e3 * s:.1f}", f"{g / (g + s):.1%}"])
    print(table(["L", "ms to generate", "ms of the step", "share of both"], rows))


if __name__ == "__main__":
    main()
