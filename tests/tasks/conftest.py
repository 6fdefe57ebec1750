"""A slow, obvious check of a membership batch, written from the task's definition and from none of its code."""

from itertools import pairwise

import pytest


def _windows(prefix: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(prefix[i : i + n]) for i in range(len(prefix) - n + 1)]


def _check_query(prefix: list[int], candidate: list[int], n: int, label: int, age: int, kind: str) -> None:
    window = tuple(candidate[:n])
    assert candidate[n:] == [16] * (6 - n)
    seen = _windows(prefix, n)
    if label:
        assert kind == "positive"
        latest_end = max(i + n for i, w in enumerate(seen) if w == window)
        assert age == len(prefix) - latest_end
        return
    assert age == -1
    assert window not in seen
    if kind == "near":
        assert set(pairwise(window)) <= set(pairwise(prefix))
        assert any(sum(a != b for a, b in zip(window, w, strict=True)) == 1 for w in seen)
    elif kind == "order":
        assert any(sorted(window) == sorted(w) for w in seen)
    else:
        assert kind == "uniform"


@pytest.fixture(scope="session")
def check_batch():
    """check_batch(batch) asserts that every query of a batch is what its label, age and kind say."""
    from tasks import KINDS

    def check(batch) -> None:
        per_time = batch.queries // len(batch.times)
        for b in range(batch.size):
            stream = batch.stream[b].tolist()
            for q in range(batch.queries):
                _check_query(
                    stream[: batch.times[q // per_time]],
                    batch.candidates[b, q].tolist(),
                    int(batch.lengths[b, q]),
                    int(batch.labels[b, q]),
                    int(batch.age[b, q]),
                    KINDS[int(batch.kinds[b, q])],
                )
            for labels in batch.labels[b].split(per_time):
                assert labels.sum() * 2 == per_time

    return check
