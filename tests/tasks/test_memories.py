"""Bounded memories: what they hold, what they admit not to know, and the limit that no memory passes."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from tasks import BANDS, MAX_CANDIDATE, PAD, SOLVERS, MembershipConfig, sample, solver
from tasks.limit import best_accuracy
from tasks.memories import MEMORIES, memory

CONFIG = MembershipConfig()


def probabilities(name: str, batch) -> torch.Tensor:
    system = solver(name)
    return system.read(batch.candidates, batch.lengths, system.write(batch.stream))


@pytest.mark.parametrize("name", MEMORIES)
def test_writing_in_pieces_is_writing_at_once(name):
    batch = sample(CONFIG, 0, range(3), 80, 16, split="test")
    system = solver(name)
    whole = system.read(batch.candidates, batch.lengths, system.write(batch.stream))
    for cut in (0, 1, 4, 5, 37, 80):
        state = system.write(batch.stream[:, cut:], system.write(batch.stream[:, :cut]))
        assert torch.equal(system.read(batch.candidates, batch.lengths, state), whole), cut


@pytest.mark.parametrize("name", MEMORIES)
def test_a_stream_is_answered_alike_whatever_its_neighbours(name):
    batch = sample(CONFIG, 0, range(4), 40, 16, split="test")
    assert torch.equal(probabilities(name, batch.rows(slice(2, 3))), probabilities(name, batch)[2:3])


@pytest.fixture(scope="module")
def batches():
    return {band: sample(CONFIG, 3, range(120), 256, 32, split="test", band=band) for band in BANDS}


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("name", MEMORIES)
def test_confidence_is_accuracy(batches, name, band):
    """p(yes) comes from the state, so it holds on regular streams as on noise, full or nearly empty."""
    batch = batches[band]
    if band == "low" and name.startswith("recent"):
        pytest.skip("a window that recurs is likelier to be in the kept end than a uniform one")
    p, label = probabilities(name, batch).double(), batch.labels.double()
    right = torch.where(p > 0.5, label, 1 - label)
    surplus = (torch.maximum(p, 1 - p) - right).mean(1)  # per stream: its queries are right or wrong together
    error = float(surplus.std() / math.sqrt(len(surplus)))
    assert abs(float(surplus.mean())) <= 4 * error + 0.03, (float(surplus.mean()), error)


def test_a_filter_never_denies_what_occurred():
    batch = sample(CONFIG, 0, range(20), 300, 32, split="test")
    yes = batch.labels == 1
    for name in ("bloom16", "bloom256", "counts16", "counts1024"):
        assert (probabilities(name, batch)[yes] > 0).all()
    assert (probabilities("recent256", batch)[yes] == 1).all()


def test_probabilities_of_hand_made_states():
    stream = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    candidates = torch.full((1, 3, MAX_CANDIDATE), PAD)
    candidates[0, :, :3] = torch.tensor([[1, 2, 3], [5, 6, 7], [9, 9, 9]])
    lengths = torch.full((1, 3), 3)

    kept = memory("recent2")  # holds 4 5 6 7: two of the stream's five triples
    assert kept.read(candidates, lengths, kept.write(stream))[0].tolist() == pytest.approx([0.375, 1, 0.375])

    table = memory("counts4096")  # 5 + 4 + 3 + 2 grams, all in counters of their own
    p = table.read(candidates, lengths, table.write(stream))[0].tolist()
    assert p == pytest.approx([1 / (1 + 14 / 8192)] * 2 + [0])

    bloom = memory("bloom4096")
    state = bloom.write(stream)
    fill = int(state.cells.sum()) / (8 * 4096)
    assert bloom.read(candidates, lengths, state)[0].tolist() == pytest.approx([1 / (1 + fill**8)] * 2 + [0])


def test_saturated_counters_are_taken_at_their_mean():
    table = memory("counts16")
    stream = torch.zeros((1, 200), dtype=torch.int64)
    state = table.write(stream)
    assert state.cells.max() == 15
    same = torch.full((1, 1, MAX_CANDIDATE), PAD)
    same[..., :3] = 0
    mean = state.insertions / int((state.cells == 15).sum())  # every insertion fell into a saturated counter
    load = state.insertions / 32
    assert table.read(same, torch.tensor([[3]]), state).item() == pytest.approx(mean / (mean + load))


@pytest.mark.parametrize("name", [*MEMORIES, *SOLVERS])
def test_states_hold_no_more_than_they_say(name):
    """The distinct values that a state takes can be told apart by its bits."""
    system = solver(name)
    if name.startswith(("bloom", "counts")):
        state = system.write(torch.randint(0, 16, (2, 999)))
        values = 2 if name.startswith("bloom") else 16
        assert int(state.cells.max()) < values
        assert system.state_bits(999) >= state.cells.shape[1] * math.log2(values) + 4 * state.tail.shape[1]
        assert system.state_bits(10) == system.state_bits(10_000), "bounded"
    elif name.startswith("recent"):
        assert system.state_bits(10_000) == 8 * int(name.removeprefix("recent")) + 32
        assert system.write(torch.randint(0, 16, (2, 9999))).symbols.shape[1] * 4 + 32 == system.state_bits(9999)
    else:
        expected = {"exact": 400, "set1": 16, "set2": 260, "set3": 4104, "hist": 16 * 7, "hist2": 256 * 7 + 4}
        assert system.state_bits(100) == expected.get(name, 31)


def test_unknown_names_say_what_there_is():
    with pytest.raises(ValueError, match="bloom256"):
        memory("boom64")
    with pytest.raises(ValueError, match=r"did you mean 'bloom64'\?"):
        solver("blom64")


# -- the limit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [32, 128, 512])
def test_no_memory_passes_the_limit(length):
    batch = sample(CONFIG, 5, range(200), length, 32, split="test")
    for name in (*SOLVERS, *MEMORIES):
        right = ((probabilities(name, batch) > 0.5).long() == batch.labels).double().mean(1)
        error = float(right.std() / math.sqrt(len(right)))
        limit = best_accuracy(solver(name).state_bits(length), length)
        assert float(right.mean()) <= limit + 3 * error, name


def optimum(vocabulary: int, length: int, n: int, states: int) -> float:
    """The best accuracy of any memory with that many states, by trying every function of the stream."""
    strings = list(product(range(vocabulary), repeat=n))
    advantage = []  # per stream and string: its probability among positives minus that among negatives
    for x in product(range(vocabulary), repeat=length):
        windows = [x[i : i + n] for i in range(length - n + 1)]
        absent = len(strings) - len(set(windows))
        advantage.append([windows.count(s) / len(windows) - (s not in windows) / absent for s in strings])
    advantage = np.array(advantage)
    best = 0.0
    for code in product(range(states), repeat=len(advantage)):
        of_state = np.eye(states)[:, list(code)] @ advantage  # what each state knows of each string
        best = max(best, np.maximum(of_state, 0).sum())
    return 0.5 + 0.5 * best / len(advantage)


@pytest.mark.parametrize(("vocabulary", "length", "n"), [(8, 1, 1), (3, 2, 1), (4, 2, 2)])
def test_the_limit_is_above_the_best_of_all_small_memories(vocabulary, length, n):
    best = optimum(vocabulary, length, n, states=2)
    limit = best_accuracy(1, length, vocabulary, [n])
    assert 0.5 < best <= limit < 1


def test_the_limit_rises_with_bits_to_one_and_falls_with_length():
    limits = [best_accuracy(bits, 512) for bits in (0, 1, 64, 256, 1024, 2048, 1 << 20)]
    assert limits == sorted(limits)
    assert limits[0] < 0.52
    assert limits[-1] == pytest.approx(1)
    assert best_accuracy(256, 1024) < best_accuracy(256, 512)
    with pytest.raises(ValueError, match="length=4"):
        best_accuracy(10, 4)


def test_the_limit_of_disjoint_items_is_that_of_approximate_membership():
    """One-symbol candidates do not overlap: log2(1/epsilon) bits per symbol buy a false positive rate of epsilon."""
    length, vocabulary = 64, 1 << 20
    for epsilon in (0.25, 0.01):
        bits = length * math.log2(1 / epsilon)
        assert best_accuracy(bits, length, vocabulary, [1]) >= 1 - epsilon / 2 - 1e-6
    assert best_accuracy(0, length, vocabulary, [1]) == pytest.approx(0.5, abs=1e-4)
