"""The membership task: every query is what it says, nothing but the stream tells the label, and items are pure."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks import BANDS, KINDS, QUERY_SETS, SPLITS, EntropyConfig, MembershipConfig, ask, queries, sample, streams

CONFIG = MembershipConfig()
SIGNIFICANCE = 1e-4  # fixed seeds: the same verdict each time


def tensors(batch):
    return {f.name: v for f in dataclasses.fields(batch) if isinstance(v := getattr(batch, f.name), torch.Tensor)}


def assert_same(a, b):
    for name, value in tensors(a).items():
        assert torch.equal(value, getattr(b, name)), name
    assert (a.times, a.query_set, a.band, a.split) == (b.times, b.query_set, b.band, b.split)


# -- every query is what it says -------------------------------------------------------------------


@pytest.mark.parametrize("query_set", QUERY_SETS)
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("length", [8, 16, 33, 128])
def test_every_query_is_what_its_label_age_and_kind_say(check_batch, query_set, band, length):
    batch = sample(CONFIG, 1, range(6), length, 32, split="test", query_set=query_set, band=band)
    check_batch(batch)
    assert not (batch.kinds[batch.labels == 1] != KINDS.index("positive")).any()


@pytest.mark.parametrize("query_set", QUERY_SETS)
def test_queries_at_several_times_are_judged_by_what_was_seen_then(check_batch, query_set):
    batch = sample(CONFIG, 2, range(8), 100, 64, split="train", times=(6, 17, 64, 100), query_set=query_set)
    check_batch(batch)
    if query_set == "uniform":  # at t=6 most later windows are unseen, so some negatives occur after their time
        later = 0
        for b in range(8):
            text = batch.stream[b].tolist()
            for q in torch.nonzero(batch.labels[b] == 0)[:, 0].tolist():
                n = int(batch.lengths[b, q])
                window = batch.candidates[b, q, :n].tolist()
                later += any(text[i : i + n] == window for i in range(101 - n))
        assert later > 0


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    length=st.integers(8, 60),
    vocabulary=st.sampled_from([8, 16]),
    lengths=st.sampled_from([(3, 4, 5, 6), (4,), (5, 6)]),
    query_set=st.sampled_from(QUERY_SETS),
    split=st.sampled_from(SPLITS),
    data=st.data(),
)
def test_properties_hold_for_any_configuration(seed, length, vocabulary, lengths, query_set, split, data, check_batch):
    times = tuple(sorted(data.draw(st.sets(st.integers(lengths[-1], length), min_size=1, max_size=3))))
    config = MembershipConfig(vocabulary=vocabulary, candidate_lengths=lengths)
    batch = sample(config, seed, [5, 2**40], length, 4 * len(times), split=split, times=times, query_set=query_set)
    check_batch(batch)
    assert set(batch.lengths.unique().tolist()) <= set(lengths)
    assert batch.stream.max() < vocabulary


@pytest.fixture(scope="module")
def many():
    """Queries enough for frequencies: 800 uniform streams of 64 symbols, 32 queries each, per query set."""
    return {q: sample(CONFIG, 3, range(800), 64, 32, split="test", query_set=q) for q in QUERY_SETS}


def test_near_negatives_change_one_symbol_of_a_window_anywhere_in_it(many):
    near = many["near"]
    assert not near.fallback.any()
    stream = near.stream[:60]
    places = Counter()
    for b in range(60):
        for q in torch.nonzero(near.labels[b] == 0)[:, 0].tolist():
            n = int(near.lengths[b, q])
            if n != 6:  # a six-symbol window differs in one place from its own source only, so the place is known
                continue
            differs = stream[b].unfold(0, n, 1) != near.candidates[b, q, :n]
            assert differs.sum(1).min() == 1
            places.update(torch.nonzero(differs[differs.sum(1) == 1][0])[:, 0].tolist())
    assert set(places) == set(range(6))


@pytest.mark.parametrize("band", BANDS)
def test_order_negatives_permute_the_window_of_their_own_positive(band):
    """The order probe: with equal symbols in both classes, a memory of counts answers both alike."""
    order = sample(CONFIG, 8, range(60), 64, 32, split="test", query_set="order", band=band)
    symbols = order.candidates.sort(-1).values
    for b in range(order.size):
        for pair in range(16):
            (yes,), (no,) = (torch.nonzero((order.pair[b] == pair) & (order.labels[b] == k))[:, 0] for k in (1, 0))
            same_symbols = torch.equal(symbols[b, yes], symbols[b, no])
            assert order.scored[b, yes] == order.scored[b, no] == (same_symbols and not order.fallback[b, no])
    # Uniform windows of one repeated symbol, which have no other order, are 1 in 256 at three symbols.
    assert order.scored.float().mean() > (0.995 if band == "max" else 0.5)


@pytest.mark.parametrize("query_set", QUERY_SETS)
def test_pairs_share_length_and_time_and_are_scored_as_a_whole(query_set):
    batch = sample(CONFIG, 9, range(20), 16, 24, split="test", times=(8, 12, 16), query_set=query_set, band="low")
    assert query_set == "uniform" or batch.fallback.any()
    for b in range(batch.size):
        for pair in range(12):
            yes, no = sorted(torch.nonzero(batch.pair[b] == pair)[:, 0].tolist(), key=lambda q: -batch.labels[b, q])
            assert (batch.labels[b, yes], batch.labels[b, no]) == (1, 0)
            assert batch.lengths[b, yes] == batch.lengths[b, no]
            assert yes // 8 == no // 8 == pair // 4
            assert batch.scored[b, yes] == batch.scored[b, no] == (not batch.fallback[b, no])


# -- nothing but the stream tells the label --------------------------------------------------------


@pytest.mark.parametrize("query_set", QUERY_SETS)
def test_both_classes_have_the_same_lengths_stream_by_stream(many, query_set):
    batch = many[query_set]
    for b in range(batch.size):
        yes, no = (sorted(batch.lengths[b][batch.labels[b] == label].tolist()) for label in (1, 0))
        assert yes == no


def test_lengths_and_places_in_the_batch_are_uniform(many):
    batch = many["uniform"]
    assert stats.chisquare(torch.bincount(batch.lengths.flatten())[3:7].numpy()).pvalue > SIGNIFICANCE
    assert stats.chisquare(batch.labels.sum(0).numpy()).pvalue > SIGNIFICANCE
    # Not an alternating or repeated pattern: a query's label says (almost) nothing about the next one's.
    same = (batch.labels[:, 1:] == batch.labels[:, :-1]).float().mean().item()
    assert abs(same - 15 / 31) < 0.015


def test_uniform_streams_and_negatives_have_uniform_symbols(many):
    batch = many["uniform"]
    assert stats.chisquare(torch.bincount(batch.stream.flatten()).numpy()).pvalue > SIGNIFICANCE
    negatives = batch.candidates[batch.labels == 0]
    assert stats.chisquare(torch.bincount(negatives.flatten())[:16].numpy()).pvalue > SIGNIFICANCE


def test_positives_come_from_uniform_positions(many):
    batch = many["uniform"]
    for n in (3, 6):
        # At six symbols of 64 nearly every window is unique, so the latest match is the source.
        chosen = (batch.labels == 1) & (batch.lengths == n)
        starts = 64 - n - batch.age[chosen]
        assert starts.min() == 0
        assert starts.max() == 64 - n
        bins = np.bincount(starts.numpy() * 10 // (65 - n), minlength=10)
        expected = np.bincount(np.arange(65 - n) * 10 // (65 - n), minlength=10) / (65 - n) * bins.sum()
        assert stats.chisquare(bins, expected).pvalue > SIGNIFICANCE


def test_candidates_alone_say_nothing_about_a_label(many):
    """A linear classifier of a candidate's length and symbols stays at chance on held-out queries."""
    from sklearn.linear_model import LogisticRegression

    batch = many["uniform"]
    hot = torch.nn.functional.one_hot(batch.candidates.flatten(0, 1), 17).flatten(1)
    features = torch.cat((hot, torch.nn.functional.one_hot(batch.lengths.flatten())), 1).numpy()
    labels = batch.labels.flatten().numpy()
    half = len(labels) // 2
    model = LogisticRegression(max_iter=200).fit(features[:half], labels[:half])
    assert abs(model.score(features[half:], labels[half:]) - 0.5) < 0.02


def candidates_of_kind(x: np.ndarray, config: MembershipConfig, query_set: str) -> Counter:
    """How often each three-symbol negative of a set is drawn for one stream, over 150 x 20 draws."""
    drawn: Counter = Counter()
    for index in range(150):
        batch = ask(config, 4, x, [index], 40, split="test", query_set=query_set)
        kept = (batch.labels == 0) & (batch.kinds == KINDS.index(query_set))
        drawn.update(map(tuple, batch.candidates[kept][:, :3].tolist()))
    return drawn


@pytest.mark.parametrize("query_set", QUERY_SETS)
@pytest.mark.parametrize("way", ["rejection", "exhaustion"])
def test_negatives_are_uniform_over_the_choices_of_their_set(query_set, way, monkeypatch):
    """Tries by rejection and the exhaustive list both draw evenly from the choices, here found by brute force."""
    if way == "exhaustion":
        monkeypatch.setitem(queries._BLOCKS, query_set, ())
    config = MembershipConfig(vocabulary=4, candidate_lengths=(3,))
    prefix = (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 3, 1, 0, 2, 2, 3, 3, 0, 0, 1, 1)  # some windows occur many times
    windows = [prefix[i : i + 3] for i in range(22)]
    pairs = set(itertools.pairwise(prefix))
    choices: Counter = Counter()
    if query_set == "uniform":
        choices.update(itertools.product(range(4), repeat=3))
    elif query_set == "near":
        changed = ((*w[:j], s, *w[j + 1 :]) for w in windows for j in range(3) for s in range(4) if s != w[j])
        choices.update(v for v in changed if {v[:2], v[1:]} <= pairs)
    else:
        for w in windows:  # each equally often a positive, whose turn is shared by its absent permutations
            absent = set(itertools.permutations(w)) - set(windows)
            choices.update({v: 60 // len(absent) for v in absent})
    choices = Counter({v: weight for v, weight in choices.items() if v not in windows})

    drawn = candidates_of_kind(np.array([prefix]), config, query_set)
    assert set(drawn) == set(choices)
    expected = np.array([choices[v] for v in sorted(choices)], float)
    observed = np.array([drawn[v] for v in sorted(choices)])
    assert len(expected) > 3
    assert stats.chisquare(observed, expected / expected.sum() * observed.sum()).pvalue > SIGNIFICANCE


# -- where negatives run out -----------------------------------------------------------------------


def test_a_uniform_negative_stands_in_where_a_stream_has_none_of_the_kind_and_says_so(check_batch):
    constant, periodic = np.full((1, 32), 7), np.tile([3, 5, 9, 12], (1, 8))
    for query_set, x, stands_in in (
        ("order", constant, True),
        ("near", constant, True),
        ("near", periodic, True),
        ("order", periodic, False),
    ):
        batch = ask(CONFIG, 0, x, [0], 32, split="test", query_set=query_set)
        check_batch(batch)
        assert batch.fallback.sum() == (16 if stands_in else 0)
        assert not batch.fallback[batch.labels == 1].any()


def test_the_last_absent_window_is_found_and_its_absence_reported():
    config = MembershipConfig(vocabulary=2, candidate_lengths=(3,))
    all_but_111 = np.array([[0, 0, 0, 1, 0, 1, 1, 0, 0]])
    batch = ask(config, 0, all_but_111, [0], 8, split="test")
    assert batch.candidates[batch.labels == 0][:, :3].tolist() == [[1, 1, 1]] * 4
    with pytest.raises(ValueError, match=r"no negative of 3 symbols exists: all 8 windows .* first 10 symbols"):
        ask(config, 0, np.array([[0, 0, 0, 1, 0, 1, 1, 1, 0, 0]]), [0], 8, split="test")


# -- items are pure --------------------------------------------------------------------------------


@pytest.mark.parametrize("query_set", QUERY_SETS)
@pytest.mark.parametrize("band", BANDS)
def test_an_item_does_not_depend_on_its_batch(query_set, band):
    def make(indices):
        return sample(CONFIG, 5, indices, 48, 16, split="train", times=(16, 48), query_set=query_set, band=band)

    whole = make([4, 900_000, 2, 7])
    for i, index in enumerate([4, 900_000, 2, 7]):
        assert_same(make([index]), whole.rows(slice(i, i + 1)))


def test_streams_differ_by_seed_split_band_length_and_index():
    made = [
        streams(CONFIG, seed, [0, 1], length, split=split, band=band)[:, :32].tobytes()
        for seed in (0, 1)
        for length in (32, 64)
        for split in SPLITS
        for band in BANDS
    ]
    halves = [part for both in made for part in (both[:32], both[32:])]
    assert len(set(halves)) == len(halves) == 2 * 2 * 3 * 2 * 2


def test_splits_share_no_stream():
    train, test = (streams(CONFIG, 0, range(20_000), 16, split=split) for split in ("train", "test"))
    assert not {row.tobytes() for row in train} & {row.tobytes() for row in test}


def test_query_sets_share_all_but_their_negatives():
    batches = [sample(CONFIG, 6, range(8), 64, 32, split="test", query_set=q) for q in QUERY_SETS]
    positive = batches[0].labels == 1
    for other in batches[1:]:
        for name in ("stream", "labels", "lengths", "age", "pair"):
            assert torch.equal(getattr(batches[0], name), getattr(other, name))
        assert torch.equal(batches[0].candidates[positive], other.candidates[positive])
        assert not torch.equal(batches[0].candidates, other.candidates)


def test_the_data_of_version_1_stay():
    batch = sample(CONFIG, 0, [3], 16, 4, split="train")
    assert batch.stream.tolist() == [[12, 2, 13, 11, 8, 13, 3, 5, 3, 13, 10, 11, 13, 12, 13, 12]]
    assert batch.labels.tolist() == [[1, 0, 0, 1]]
    assert batch.candidates[0, 1].tolist() == [6, 15, 8, 14, 8, 16]
    low = streams(CONFIG, 0, [3], 16, split="train", band="low")
    assert low.tolist() == [[1, 11, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]]


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 0}, "length=0 must be at least 1"),
        ({"length": 5}, "a candidate of 6 symbols is longer than the 5 symbols seen"),
        ({"times": (5, 16)}, "longer than the 5 symbols seen"),
        ({"times": (16, 8)}, "strictly increasing"),
        ({"times": (8, 8)}, "strictly increasing"),
        ({"times": (8, 17)}, "within the stream's length 16"),
        ({"times": ()}, "strictly increasing"),
        ({"queries": 7}, "7 queries cannot be split .* use a multiple of 2"),
        ({"queries": 6, "times": (8, 16)}, "use a multiple of 4"),
        ({"queries": 0}, "0 queries cannot be split"),
        ({"query_set": "nearr"}, "unknown query_set 'nearr'.*did you mean 'near'"),
        ({"band": "lo"}, "unknown band 'lo'.*did you mean 'low'"),
        ({"split": "eval"}, "unknown split 'eval': it is one of train, validation, test"),
    ],
)
def test_bad_arguments_are_refused_with_the_way_out(change, message):
    arguments = {"length": 16, "queries": 8, "split": "train"} | change
    with pytest.raises(ValueError, match=message):
        sample(CONFIG, 0, range(2), **arguments)


def test_streams_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="indices must name at least one stream"):
        sample(CONFIG, 0, [], 16, 8, split="test", band="low")
    with pytest.raises(ValueError, match="2 streams but 1 indices"):
        ask(CONFIG, 0, np.zeros((2, 16), int), [0], 8, split="test")
    with pytest.raises(ValueError, match=r"symbols 0\.\.16, outside 0\.\.15"):
        ask(CONFIG, 0, np.array([[0] * 15 + [16]]), [0], 8, split="test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary": 17}, "vocabulary=17 must be 2, 4, 8 or 16"),
        ({"candidate_lengths": ()}, "must be increasing and within 2..6"),
        ({"candidate_lengths": (3, 7)}, "within 2..6"),
        ({"candidate_lengths": (4, 3)}, "must be increasing"),
        ({"version": 2}, "version 2 was asked for, but this code makes version 1"),
    ],
)
def test_bad_configurations_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        MembershipConfig(**change)


def test_lists_from_a_configuration_file_are_accepted():
    assert MembershipConfig(candidate_lengths=[3, 4, 5, 6], entropy=EntropyConfig()) == CONFIG
    assert hash(CONFIG) == hash(MembershipConfig())


# -- the batch itself ------------------------------------------------------------------------------


def test_a_batch_moves_as_a_whole():
    batch = sample(CONFIG, 0, range(3), 16, 8, split="train")
    moved = batch.to("meta")
    assert {name: v.device.type for name, v in tensors(moved).items()} == dict.fromkeys(tensors(batch), "meta")
    assert all(v.dtype == torch.int64 for v in tensors(batch).values())
    assert (batch.size, batch.queries) == (3, 8)
    assert batch.rows(slice(1, 3)).index.tolist() == [1, 2]


@pytest.mark.gpu
def test_a_pinned_batch_reaches_the_device():
    batch = sample(CONFIG, 0, range(3), 16, 8, split="train")
    assert batch.pin_memory().stream.is_pinned()
    assert_same(batch.pin_memory().to("cuda", non_blocking=True).to("cpu"), batch)
