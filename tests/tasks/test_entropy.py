"""Low-entropy streams: rules do what they say, rates are the paper's, and streams are a function of their index."""

import numpy as np
import pytest

from tasks import EntropyConfig, MembershipConfig, RuleSet, low_stream, low_streams, streams
from tasks.entropy import ACCEPTANCES, SAMPLERS
from tasks.lempel_ziv import rate

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def midpoints(n: int):
    """n draws spread evenly over [0, 1): each outcome comes up in proportion to its probability."""
    return iter(np.random.default_rng(0).permutation((np.arange(n) + 0.5) / n).tolist())


# -- rule sets ------------------------------------------------------------------------------------


def test_the_longest_matching_context_decides():
    rules = RuleSet({(1,): {2: 1.0}, (3, 1): {4: 1.0}, (0, 3, 1): {5: 1.0}})
    assert rules.context([9, 1]) == (1,)
    assert rules.context([3, 1]) == (3, 1)
    assert rules.context([0, 3, 1]) == (0, 3, 1)
    assert rules.context([1, 9]) == ()
    assert rules.contexts([0, 3, 1, 5]) == [(), (), (), (0, 3, 1)]


def test_leftover_mass_is_even_over_the_other_symbols():
    # The paper's own example (A.1): 0.8 to symbol 8, 0.18 to symbol 13, 0.02 over the remaining fourteen.
    table = RuleSet({(1, 2): {8: 0.8, 13: 0.18}}).distribution((1, 2))
    assert sum(table.values()) == pytest.approx(1)
    assert (table[8], table[13]) == (0.8, 0.18)
    assert [table[s] for s in range(16) if s not in (8, 13)] == pytest.approx([0.02 / 14] * 14)
    assert RuleSet({}).distribution(()) == dict.fromkeys(range(16), 1 / 16)


def test_generation_follows_the_distribution_of_each_context():
    rules = RuleSet({(0,): {1: 0.7, 2: 0.2}, (1,): {0: 0.5, 3: 0.5}, (0, 1): {0: 0.9, 2: 0.1}}, vocabulary=4)
    n = 40_000
    text = list(rules.generate(n, midpoints(n)))
    followers = {}
    for context, symbol in zip(rules.contexts(text), text, strict=True):
        followers.setdefault(context, []).append(symbol)
    assert set(followers) == {(), (0,), (1,), (0, 1)}
    for context, symbols in followers.items():
        share = np.bincount(symbols, minlength=4) / len(symbols)
        expected = [rules.distribution(context)[s] for s in range(4)]
        np.testing.assert_allclose(share, expected, atol=4 * 0.5 / len(symbols) ** 0.5)


def test_generation_tells_long_contexts_apart():
    # Only five symbols of context know when the next 1 is due.
    rules = RuleSet({(1,): {0: 1.0}, (0,): {0: 1.0}, (1, 0, 0, 0, 0): {1: 1.0}})
    first_is_1 = 1.5 / 16
    assert rules.generate(60, iter([first_is_1] + [0.5] * 59)) == bytes([1, 0, 0, 0, 0] * 12)


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("acceptance", ACCEPTANCES)
def test_a_stream_is_in_its_band_and_explained_by_its_rules(sampler, acceptance):
    config = EntropyConfig(sampler=sampler, acceptance=acceptance)
    for index in range(4):
        stream = low_stream(config, 0, index, 64, split="test")
        assert stream.rate == rate(stream.symbols.tolist())
        assert 0.33 <= stream.rate <= 0.99
        assert stream.tries >= 1
        if acceptance == "aim":
            assert abs(stream.rate - stream.target) <= 0.08
        else:
            assert stream.target is None
        assert all(1 <= len(context) <= 8 for context in stream.rules.rules)
        assert all(1 <= len(named) <= 4 for named in stream.rules.rules.values())
        assert all(sum(named.values()) <= 1 + 1e-9 for named in stream.rules.rules.values())
        symbols = stream.symbols.tolist()
        for context, symbol in zip(stream.rules.contexts(symbols), symbols, strict=True):
            assert stream.rules.distribution(context)[symbol] > 0


def test_pooled_rates_are_the_papers():
    """A.1: mean 0.67, standard deviation 0.16, range [0.33, 0.99] over all lengths, the same number of each."""
    rates = [s.rate for n in LENGTHS for s in low_streams(EntropyConfig(), 0, range(12), n, split="test")]
    assert np.mean(rates) == pytest.approx(0.67, abs=0.03)
    assert np.std(rates) == pytest.approx(0.16, abs=0.03)
    assert min(rates) >= 0.33
    assert max(rates) <= 0.99


def test_a_stream_depends_on_seed_split_index_and_length_alone():
    config = EntropyConfig()
    made = low_streams(config, 0, [7, 3, 11], 32, split="test")
    for index, stream in zip([7, 3, 11], made, strict=True):
        again = low_stream(config, 0, index, 32, split="test")
        np.testing.assert_array_equal(stream.symbols, again.symbols)
        assert stream.rules == again.rules
    in_batch = streams(MembershipConfig(), 0, [7, 3, 11], 32, split="test", band="low")
    np.testing.assert_array_equal(in_batch, np.stack([s.symbols for s in made]))
    others = [low_stream(config, seed, 7, n, split=split) for seed, n, split in ((1, 32, "test"), (0, 32, "train"))]
    assert len({s.symbols.tobytes() for s in (made[0], *others)}) == 3


def test_processes_give_the_same_streams_in_order_and_report_progress():
    seen = []
    config = EntropyConfig()
    alone = low_streams(config, 0, range(5), 32, split="test")
    shared = low_streams(config, 0, range(5), 32, split="test", processes=2, progress=lambda *at: seen.append(at))
    assert [s.symbols.tolist() for s in shared] == [s.symbols.tolist() for s in alone]
    assert seen == [(i, 5) for i in range(1, 6)]


def test_giving_up_names_the_length_and_the_band():
    config = EntropyConfig(low=0.01, high=0.02, acceptance="band", max_tries=20)
    with pytest.raises(ValueError, match="unknown split 'eval'"):
        low_stream(config, 0, 0, 16, split="eval")
    with pytest.raises(ValueError, match=r"no stream of L=16 .* \[0.01, 0.02\].* among 20 rule sets; widen the band"):
        low_stream(config, 0, 0, 16, split="test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampler": "open"}, "unknown sampler 'open': it is one of closed, independent"),
        ({"acceptance": "any"}, "unknown acceptance 'any': it is one of aim, band"),
        ({"low": 1.0}, "must satisfy 0 < low < high"),
        ({"tolerance": 0}, "must be positive"),
        ({"max_tries": 0}, "max_tries=0 must be at least 1"),
    ],
)
def test_bad_configurations_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        EntropyConfig(**change)
