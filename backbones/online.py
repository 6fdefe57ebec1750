"""A trained memory used as it was meant: write what arrives, ask at any time.

memory = load_memory("outputs/<run>")
memory.write([8, 1, 4, 6, 2])
memory.read([4, 6, 2])        # Answer(occurred=True, confidence=0.99, flops=...)
memory.write("cab")           # letters do as well: a is 0
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from flops import Price

from .model import MembershipModel
from .run import Run
from .state import StackState


@dataclass(frozen=True)
class Answer:
    """What a memory says about one candidate.

    Attributes:
        occurred: the more probable of yes and no.
        confidence: its softmax probability.
        flops: what writing so far and this read have cost by the closed form.
    """

    occurred: bool
    confidence: float
    flops: int


class OnlineMemory:
    """One stream's memory: a model and the state it has reached. Reading changes nothing."""

    def __init__(self, model: MembershipModel, name: str = "memory"):
        self.model, self.name = model.eval(), name
        self.state: StackState | None = None
        self.length = 0

    @torch.inference_mode()
    def write(self, symbols: Sequence[int] | str) -> OnlineMemory:
        """Fold symbols, numbers or letters, into the state; returns itself.

        Raises:
            ValueError: a symbol outside the vocabulary.
        """
        stream = self._tensor(symbols, "stream")
        if stream.numel():
            self.state = self.model.write(stream[None], self.state)
            self.length += stream.numel()
        return self

    @torch.inference_mode()
    def read(self, candidate: Sequence[int] | str) -> Answer:
        """Did the candidate occur in what has been written?

        Raises:
            ValueError: an empty candidate, one longer than the model was made for, or an unknown symbol.
        """
        longest, vocabulary = self.model.candidate.longest, self.model.candidate.vocabulary
        symbols = self._tensor(candidate, "candidate")
        if not 1 <= symbols.numel() <= longest:
            raise ValueError(f"a candidate of {symbols.numel()} symbols; this model takes 1 to {longest}")
        state = self.model.backbone.initial_state(1) if self.state is None else self.state
        padded = torch.nn.functional.pad(symbols, (0, longest - symbols.numel()), value=vocabulary)
        logits = self.model.read(padded[None, None], symbols.new_full((1, 1), symbols.numel()), state)
        p_yes = float(logits.float().softmax(-1)[0, 0, 1])
        return Answer(p_yes > 0.5, max(p_yes, 1 - p_yes), self._price.total(self.length + 1))

    def reset(self) -> OnlineMemory:
        """Forget the stream."""
        self.state, self.length = None, 0
        return self

    @property
    def letters(self) -> str:
        """The letters that stand for the symbols 0, 1, 2, ..., as far as the alphabet goes."""
        return string.ascii_lowercase[: self.model.candidate.vocabulary]

    @cached_property
    def _price(self) -> Price:
        return self.model.price()

    def _tensor(self, symbols: Sequence[int] | str, what: str) -> torch.Tensor:
        vocabulary, known = self.model.candidate.vocabulary, self.letters
        if isinstance(symbols, str):
            if unknown := [letter for letter in symbols if letter not in known]:
                raise ValueError(
                    f"{what} {symbols!r}: {unknown[0]!r} is not one of the letters {known[0]}..{known[-1]}"
                )
            symbols = [known.index(letter) for letter in symbols]
        tensor = torch.as_tensor(symbols, dtype=torch.int64, device=self.model.head.weight.device)
        if tensor.ndim != 1 or (tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < vocabulary):
            raise ValueError(f"{what} {list(symbols)}: expected symbols 0..{vocabulary - 1}")
        return tensor


def load_memory(run: str | Path, device: str | torch.device = "cpu") -> OnlineMemory:
    """The trained memory of a run folder, with nothing written yet.

    Raises:
        RunError: not a run folder, or weights that cannot be used.
    """
    run = Run(Path(run))
    return OnlineMemory(run.load_model(device), run.name)
