"""Golden values of the default configurations: the closed forms of the design, in full, beside what terms add up to."""

from __future__ import annotations

import pytest

from flops import price
from flops.formulas import closed_form
from flops.report import TIER_LENGTH, TIERS, configuration, tier_table

LENGTHS = (32, 1024, 2048, 4096)

MFLOPS = {
    "transformer_rope": ([5.3, 555.0, 1915.1, 7051.3], [20.3, 1412.2, 4434.5, 15310.8]),
    "transformer_nope": ([5.3, 555.0, 1915.1, 7051.3], [20.3, 1412.2, 4434.5, 15310.8]),
    "transformer_conv": ([5.3, 556.6, 1918.3, 7057.6], [20.4, 1415.4, 4440.8, 15323.4]),
    "gru": ([4.9, 151.1, 302.1, 604.1], [19.5, 604.6, 1208.5, 2416.5]),
    "mamba2": ([14.9, 463.7, 926.9, 1853.3], [59.1, 1835.8, 3669.7, 7337.6]),
    "gla": ([13.5, 418.8, 837.2, 1673.9], [33.5, 1039.1, 2077.2, 4153.4]),
    "retnet": ([17.2, 535.3, 1070.1, 2139.6], [47.4, 1473.6, 2945.8, 5890.2]),
    "deltanet": ([13.8, 428.2, 856.1, 1711.7], [34.2, 1061.1, 2121.3, 4241.5]),
    "gated_deltanet": ([17.7, 551.0, 1101.5, 2202.5], [68.1, 2116.0, 4229.9, 8457.8]),
    "rwkv7": ([13.5, 419.8, 839.3, 1678.1], [48.1, 1494.6, 2987.8, 5974.1]),
    "deltaformer": ([13.9, 1211.5, 4033.2, 14508.5], [34.3, 2627.7, 8475.6, 29835.1]),
    "ttt_mlp": ([15.0, 468.3, 936.2, 1872.1], [47.9, 1493.9, 2986.5, 5971.8]),
    "mom": ([17.1, 532.1, 1063.8, 2127.0], [62.0, 1927.1, 3852.3, 7702.6]),
    "memory_mosaic": ([23.9, 1133.6, 3071.7, 9364.0], [94.9, 3728.2, 9064.1, 24567.8]),
    "compressive_transformer": ([20.1, 875.3, 1817.1, 3711.3], [79.1, 3020.7, 6188.5, 12550.1]),
}
"""Total at D = 64 and at D = 128, for the four lengths (design page "FLOPs", table A.3)."""


def windowed(T: int, W: int = 16) -> int:
    return sum(min(t, W + 1) for t in range(1, T + 1))


def compressive_slots(blocks: int) -> int:
    """Memory slots that a block sees after `blocks` full ones, by playing the buffers of 128, 32, 32 and 1 through."""
    recent = level1 = level2 = long_term = 0
    for _ in range(blocks):
        level1 += recent // 8
        out, level1 = max(0, level1 - 32), min(32, level1)
        level2 += out // 4
        long_term, level2 = max(long_term, int(level2 > 32)), min(32, level2)
        recent = 128
    return recent + level1 + level2 + long_term


def compressive(D: int, T: int) -> int:
    n, rest = divmod(T, 128)
    per_layer = sum(6144 * D * D + 6 * D * (128 * compressive_slots(b) + 8256) for b in range(n))
    per_layer += max(0, n - 1) * 320 * D * D + max(0, n - 3) * 48 * D * D + max(0, n - 11) * (32 * D * D + 16 * D)
    per_layer += rest * 48 * D * D + 6 * D * (rest * compressive_slots(n) + rest * (rest + 1) // 2)
    return 3 * per_layer


I4, GATE = {64: 256, 128: 512}, {64: 32, 128: 64}
"""Hidden width of a SwiGLU of ratio 4, and rank of RWKV-7's gate."""

CLOSED = {
    "transformer_rope": lambda D, T: 3 * (12 * T * D**2 + 2 * D * T * (T + 1)),
    "transformer_nope": lambda D, T: 3 * (12 * T * D**2 + 2 * D * T * (T + 1)),
    "transformer_conv": lambda D, T: 3 * (12 * T * D**2 + 8 * D * T + 2 * D * T * (T + 1)),
    "gru": lambda D, T: 36 * T * D**2,
    "mamba2": lambda D, T: 3 * T * (2 * D * (8 * D + D // 32) + 48 * D + 20 * D**2),
    "gla": lambda D, T: 3 * T * (8 * D**2 + 1616 * D),
    "retnet": lambda D, T: 3 * T * (16 * D**2 + 1696 * D),
    "deltanet": lambda D, T: 3 * T * (65 * D**2 // 8 + 1656 * D),
    "gated_deltanet": lambda D, T: 3 * T * (65 * D**2 // 4 + 224 * D + 6 * D * I4[D]),
    "rwkv7": lambda D, T: T * (72 * D**2 + 384 * D + 4 * D * (3 * 32 + 3 * 32 + 3 * GATE[D] + 2 * 32)),
    "deltaformer": lambda D, T: 3 * (65 * T * D**2 // 8 + 1536 * T * D + 4 * D * T**2),
    "ttt_mlp": lambda D, T: 3 * (177 * T * D**2 // 8 + 896 * T * D + 4 * D * windowed(T)),
    "mom": lambda D, T: 3 * T * (41 * D**2 // 4 + 512 * D + 6 * D * I4[D]),
    "memory_mosaic": lambda D, T: 3 * (58 * T * D**2 + 2 * D * T * (T - 1)),
    "compressive_transformer": compressive,
}
"""ECCBench, Appendix C.2, completed from the settings of its Table 11 where the formula is not printed."""


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", MFLOPS)
def test_total_is_the_golden_value(name, width):
    found = [round(price(name, width=width).total(L + 1) / 1e6, 1) for L in LENGTHS]
    assert found == MFLOPS[name][width == 128]


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", CLOSED)
def test_total_is_the_closed_form_at_every_length(name, width):
    declared = price(name, width=width)
    for T in (1, 2, 16, 17, 18, 33, 127, 128, 129, 511, 512, 513, 1535, 1536, 1537, 1793, 2049, 4097):
        assert declared.total(T) == CLOSED[name](width, T), T


def test_printed_formulas():
    """The formula that is printed is read off the terms; these are the ones that the paper prints."""

    def form(name):
        return closed_form(lambda width: price(name, width=width))

    assert form("gru") == "3 (12 D^2 T)"
    assert form("deltanet") == "3 ((8.125 D^2 + 1656 D) T)"
    assert form("transformer_conv") == "3 ((12 D^2 + 8 D) T + 4 D T (T + 1) / 2)"
    assert form("memory_mosaic") == "3 (58 D^2 T + 4 D T (T - 1) / 2)"
    assert form("mamba2") == "3 ((36.0625 D^2 + 48 D) T)"
    assert form("gated_deltanet") == "3 ((16.25 D^2 + 224 D + 6 D [256, 512]) T)"
    assert form("rwkv7") == "(72 D^2 + 1408 D + 12 D [32, 64]) T"  # layer 0 has no value residual


def test_reads_of_attention_grow_and_those_of_a_state_do_not():
    for width, D in ((64, 64), (128, 128)):
        rope, gla = price("transformer_rope", width=width), price("gla", width=width)
        for L in (128, 4096):
            assert rope.read(L) == 3 * (12 * D * D + 4 * D * (L + 1))
            assert gla.read(L) == gla.read(1)


def test_what_rests_on_an_assumption_is_named():
    """MoM's feed-forward, TTT's gate, RetNet's convolutions and DeltaFormer's SwiGLU are open choices."""
    for name, word in (
        ("mom", "SwiGLU"),
        ("ttt_mlp", "gate"),
        ("retnet", "convolution"),
        ("deltaformer", "SwiGLU"),
    ):
        assert any(word in label for label in price(name).assumed), name
    for name in ("gru", "deltanet", "mamba2", "transformer_conv", "memory_mosaic", "compressive_transformer"):
        assert not price(name).assumed, f"{name}: the paper prints this formula"


def test_tiers_admit_what_the_paper_says():
    rows = [
        configuration(name, width, TIER_LENGTH, price(name, width=width), ())
        for name in MFLOPS
        if name != "transformer_nope"  # the paper prices it as the rotary one
        for width in (64, 128)
    ]
    table = tier_table(rows)
    assert [row["budget"] for row in table.rows] == list(TIERS), "nothing is above the last budget"
    assert [row["admitted"] for row in table.rows] == [4, 18, 6]
    first = [(c["backbone"], c["d"]) for c in table.rows[0]["configurations"]]
    assert first == [("gru", 64), ("gla", 64), ("rwkv7", 64), ("deltanet", 64)]
    assert table.rows[-1]["configurations"][-1]["backbone"] == "deltaformer"
