"""Trained backbones and reference solvers as memory systems: symbols in, a decision with its probability out.

Neither sees a prompt or a payoff arm: both give a confidence, and an arm is a threshold on it (scoring/arms.py). Of a
video they are shown the symbols, not the belts, so a false candidate that only moved a letter looks true to them.

Letters: L symbols of the stream, Q queries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from backbones.run import Run
from lab.config import UsageError
from tasks import MAX_CANDIDATE, PAD
from tasks import solver as find_solver
from vlms.protocol import Cost, MemorySystem, Modality, Observation, Query, Reply
from vlms.registry import register


class Held(NamedTuple):
    """A stream as far as it has been written."""

    state: Any
    """Of the model or solver; None before the first symbol."""
    length: int


class TokenMemory(MemorySystem):
    """What backbones and solvers share: batches of one stream, and probabilities to replies."""

    modalities: frozenset[Modality] = frozenset({"tokens"})

    def open(self, stream_id: str, seed: int) -> Held:
        return Held(None, 0)

    def write(self, state: Held, observations: Sequence[Observation]) -> Held:
        if not observations:
            return state
        symbols = torch.tensor([[int(o.value) for o in observations]])
        return Held(self.fold(symbols, state.state), state.length + len(observations))

    def read(self, state: Held, query: Query) -> Reply:
        return self.read_many(state, [query])[0]

    def read_many(self, state: Held, queries: Sequence[Query]) -> list[Reply]:
        """All queries in one batch."""
        candidates = torch.full((1, len(queries), MAX_CANDIDATE), PAD)
        for i, query in enumerate(queries):
            candidates[0, i, : len(query.candidate)] = torch.as_tensor([int(s) for s in query.candidate])
        lengths = torch.tensor([[len(query.candidate) for query in queries]])
        p_yes = self.probabilities(candidates, lengths, state.state)[0].double().tolist()
        return [self._reply(p, state.length) for p in p_yes]

    def _reply(self, p: float, length: int) -> Reply:
        decision = "yes" if p > 0.5 else "no"  # an even p is a no, as for the solvers' strict inequalities
        return Reply(decision=decision, confidence=max(p, 1 - p), scores=(1 - p, p), cost=self.cost(length))

    def fold(self, symbols: torch.Tensor, state: Any) -> Any:
        """State after symbols int64 [1, L]."""
        raise NotImplementedError(f"{type(self).__name__} must define fold")

    def probabilities(self, candidates: torch.Tensor, lengths: torch.Tensor, state: Any) -> torch.Tensor:
        """p(yes) [1, Q]."""
        raise NotImplementedError(f"{type(self).__name__} must define probabilities")

    def cost(self, length: int) -> Cost | None:
        """Of one question on a stream of that length."""
        return None


@register("run")
class BackboneMemory(TokenMemory):
    """A trained run.

    Args:
        path: of its folder.
        device: "auto", "cpu" or "cuda".

    Raises:
        RunError: the folder is no run, or its weights are missing or damaged.
    """

    counts_flops = True

    def __init__(self, path: str, device: str = "cpu"):
        run = Run(Path(path))
        record = run.record()
        cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        self.device = torch.device("cuda" if cuda else "cpu")
        self.model = run.load_model(self.device)
        self.name, self.architecture = run.name, record["model"]["name"]
        self.width, self.seed, self.code = record["model"]["width"], record["seed"], record["code"]
        weights = hashlib.sha256(run.best.read_bytes()).hexdigest()[:16]
        self.identity: Mapping[str, Any] = {"run": run.name, "weights": weights}
        self._price = self.model.price()

    @torch.inference_mode()
    def fold(self, symbols: torch.Tensor, state: Any) -> Any:
        return self.model.write(symbols.to(self.device), state)

    @torch.inference_mode()
    def probabilities(self, candidates: torch.Tensor, lengths: torch.Tensor, state: Any) -> torch.Tensor:
        logits = self.model.read(candidates.to(self.device), lengths.to(self.device), state)
        return logits.float().softmax(-1)[..., 1].cpu()

    def cost(self, length: int) -> Cost:
        return Cost(float(self._price.write(length)), float(self._price.read(length)))


@register("solver")
class SolverMemory(TokenMemory):
    """A reference solver (tasks/solvers.py); "coin" is a coin flip.

    Args:
        solver: its name.
    """

    code = "reference"

    def __init__(self, solver: str = "coin"):
        try:
            self.memory = find_solver(solver)
        except ValueError as error:
            raise UsageError(f"memory.solver: {error}") from error
        self.name = self.architecture = solver
        self.identity: Mapping[str, Any] = {"solver": solver}

    def fold(self, symbols: torch.Tensor, state: Any) -> Any:
        return self.memory.write(symbols, state)

    def probabilities(self, candidates: torch.Tensor, lengths: torch.Tensor, state: Any) -> torch.Tensor:
        return self.memory.read(candidates, lengths, state)
