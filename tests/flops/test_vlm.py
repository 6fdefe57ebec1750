"""Prices of vision-language models against what the paper states, and against each other.

The facts are ECCBench's (B.3, B.7); the table of unit prices is the project's specification. Toy checkpoints under a
counter are in test_vlm_counted.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flops.vlm import UnknownFamily, price_vlm
from flops.vlm.__main__ import generated, main
from flops.vlm.price import windows
from flops.vlm.published import entries, names, published

CLIPS = (3, 4, 5, 6)
"""Lengths of the paper's candidate clips."""

UNITS = {  # B in GF per token, A in MF per pair, F_voc in GF, tower in TF per frame, V_LLM at 64 and 1,024 frames
    "Qwen2.5-VL-7B": (13.051, 0.401, 1.090, 0.662, 8192, 131072),
    "MiMo-VL-7B": (12.759, 0.590, 1.243, 0.667, 8192, 131072),
    "Qwen3-VL-8B": (13.892, 0.590, 1.245, 0.362, 6272, 100352),
    "Qwen3-Omni-30B-A3B": (5.461, 0.786, 0.623, 0.362, 6272, 100352),
    "GLM-4.5V": (24.363, 2.261, 1.242, 0.775, 8192, 131072),
    "InternVL3.5-8B": (13.892, 0.590, 1.245, 0.724, 16384, 262144),
    "InternVL3.5-38B": (62.411, 2.097, 1.556, 11.945, 16384, 262144),
    "InternVL3.5-30B-A3B": (5.461, 0.786, 0.622, 0.724, 16384, 262144),
    "MiniCPM-V 2.6": (13.051, 0.401, 1.087, 0.974, 4096, 65536),
    "MiniCPM-V 4.5": (13.892, 0.590, 1.243, 0.974, 4096, 10944),
    "LongVILA-R1-7B": (13.051, 0.401, 1.087, 0.974, 4112, 16448),
    "Phi-4-multimodal": (7.181, 0.393, 1.229, 1.947, 34880, 558080),
}
RESPONSE = {  # write in TF, read in GF: 64 frames, three tokens of answer, no text
    "Qwen2.5-VL-7B": (163.5, 35.9), "MiMo-VL-7B": (167.8, 38.9), "Qwen3-VL-8B": (123.9, 38.9),
    "Qwen3-Omni-30B-A3B": (74.4, 22.7), "GLM-4.5V": (327.9, 89.5), "InternVL3.5-8B": (354.2, 50.8),
    "InternVL3.5-38B": (2071.5, 198.2), "InternVL3.5-30B-A3B": (241.8, 38.6), "MiniCPM-V 2.6": (123.4, 32.7),
    "MiniCPM-V 4.5": (129.7, 36.3), "LongVILA-R1-7B": (120.6, 32.7), "Phi-4-multimodal": (615.2, 45.5),
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_unit_prices_are_those_of_the_specification(name):
    price = published(name)
    found = (
        round(price.per_token / 1e9, 3), round(price.per_pair / 1e6, 3), round(price.per_vocabulary / 1e9, 3),
        round(price.vision((64,)) / 64 / 1e12, 3), price.tokens((64,)), price.tokens((1024,)))  # fmt: skip
    assert found == UNITS[name]


@pytest.mark.parametrize("name", RESPONSE)
def test_a_response_of_sixty_four_frames(name):
    cost = published(name).response((64,), answer=3)
    assert (round(cost.write / 1e12, 1), round(cost.read / 1e9, 1)) == RESPONSE[name]
    assert cost.write == sum(cost.terms.values()) - cost.read


def test_every_published_model_is_checked():
    assert set(names()) == set(UNITS) == set(RESPONSE)
    assert all(entry["source"] for entry in entries())


OVERFLOW = {"InternVL3.5-8B": 6.4, "InternVL3.5-38B": 6.4, "InternVL3.5-30B-A3B": 6.4, "Phi-4-multimodal": 4.3,
            "MiniCPM-V 2.6": 2.0, "GLM-4.5V": 2.0, "Qwen3-Omni-30B-A3B": 1.5, "Qwen2.5-VL-7B": 1.02,
            "MiMo-VL-7B": 1.02}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_who_exceeds_its_positions_at_1024_frames(name):
    """B.3, «Checkpoint context lengths»: nine models, by these factors; no other model does."""
    price = published(name)
    ratio = price.tokens((1024,)) / price.decoder.positions
    if name in OVERFLOW:
        stated = OVERFLOW[name]
        assert round(ratio, len(str(stated).split(".")[1])) == stated
    else:
        assert ratio < 1


def test_tokens_that_the_paper_counts():
    assert published("Phi-4-multimodal").tokens((1,)) == 545
    rows, columns = published("Qwen3-VL-8B").grid()
    assert (rows, columns, rows * columns) == (28, 28, 784)
    assert published("InternVL3.5-8B").tokens((1,)) == 256
    assert published("Qwen2.5-VL-7B").tokens((5,)) == 256 * 3


def test_the_retrieval_pipeline_of_the_paper():
    """B.7: 0.56 TF for a sentence query (40 tokens), 32.9 TF for a window of 16 frames, 11 TF for a candidate clip."""
    price = published("Qwen3-VL-8B")
    assert price.response(n_in=40).write + price.response(n_in=40).read == pytest.approx(0.56e12, rel=0.01)

    def total(frames: int, text: float) -> float:
        cost = price.response((frames,), n_in=price.tokens((frames,)) + text)
        return cost.write + cost.read

    assert total(16, 0) == pytest.approx(28.80e12, rel=1e-3)
    assert total(16, 275) == pytest.approx(32.9e12, rel=1e-3)
    clip = sum(total(m, 60 + 215 / 8 * -(-m // 2)) for m in CLIPS) / len(CLIPS)
    assert 10.5e12 <= clip < 11.5e12


def test_a_retrieved_window_is_cheaper_by_the_papers_factor():
    """B.7: the smallest saving is 4.7 times, Qwen3-Omni at 64 frames."""
    price = published("Qwen3-Omni-30B-A3B")

    def total(frames: int) -> float:
        cost = price.response((frames,), n_in=price.tokens((frames,)) + 30 * frames // 2, answer=3)
        return cost.write + cost.read

    assert total(64) / (total(16) + 0.56e12) == pytest.approx(4.7, abs=0.05)


def test_decode_of_a_fractional_answer_lies_between_its_neighbours():
    price = published("GLM-4.5V")
    assert price.decode(100, 1) == price.per_vocabulary
    assert price.decode(100, 2) < price.decode(100, 2.5) < price.decode(100, 3)
    assert price.decode(100, 3) - price.decode(100, 2) == (
        price.per_vocabulary + price.per_token + 102 * price.per_pair
    )  # the third token attends to 100 and the two before it


def test_prefill_and_decode_meet():
    """Decoding T tokens is the prefill of the T - 1 that go back in, and T projections."""
    price = published("Qwen2.5-VL-7B")
    assert price.decode(50, 4) == price.prefill(53) - price.prefill(50) + 4 * price.per_vocabulary


def test_towers_attend_in_windows_where_the_config_says_so():
    assert windows(32, 8) == 4 * 64
    assert windows(30, 8) == 3 * 64 + 36
    full = json.loads(json.dumps(entries()[0]["config"]))
    full["vision_config"]["fullatt_block_indexes"] = list(range(32))
    dearer = price_vlm(full).span_flops() - published("Qwen2.5-VL-7B").span_flops()
    assert dearer == 28 * 4 * 1024 * (1024 - 64) * 1280


def test_pictures_cost_a_span_each_where_clips_pack_two():
    price = published("Qwen3-VL-8B")
    assert price.tokens((8,), frames_as="images") == 2 * price.tokens((8,))
    assert price.vision((8,), frames_as="images") == 2 * price.vision((8,))
    same = published("InternVL3.5-8B")
    assert same.response((8,), frames_as="images") == same.response((8,))


def test_clips_are_priced_apart_and_added():
    price = published("Qwen3-VL-8B")
    assert price.tokens((7, 3)) == 196 * (4 + 2)
    assert price.vision((7, 3)) == price.vision((7,)) + price.vision((3,))


def test_size_of_the_frame_counts():
    price = published("Qwen3-VL-8B")
    assert price.grid((360, 640)) == (22, 40)
    assert price.tokens((2,), (360, 640)) == 11 * 20
    assert published("InternVL3.5-8B").grid((360, 640)) == (32, 32)
    assert published("Phi-4-multimodal").tokens((1,), (448, 896)) == 16 * 17 + 16 * 33 + 1


def test_the_last_pack_of_frames_is_priced_at_its_true_size():
    price = published("MiniCPM-V 4.5")
    assert [price.pack(n) for n in (1, 180, 181, 900, 901, 1024)] == [1, 1, 2, 5, 6, 6]
    assert price.tokens((1024,)) == 64 * 171
    assert price.connector((1024,)) == 170 * price._call(6 * 1024) + price._call(4 * 1024)


def test_a_config_is_read_from_a_folder_a_file_or_a_dict(tmp_path):
    config = entries()[0]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert price_vlm(tmp_path) == price_vlm(tmp_path / "config.json") == price_vlm(config)
    with pytest.raises(FileNotFoundError, match="give the checkpoint's folder"):
        price_vlm(tmp_path / "absent")


def test_what_a_config_lacks_is_named():
    with pytest.raises(UnknownFamily, match="model_type 'gpt2'"):
        price_vlm({"model_type": "gpt2"})
    with pytest.raises(ValueError, match="no 'vision_config'"):
        price_vlm({"model_type": "qwen3_vl"})
    with pytest.raises(ValueError, match="Qwen3-VL-8B"):
        published("GPT-9")
    with pytest.raises(ValueError, match="196 vision tokens"):
        published("Qwen3-VL-8B").response((2,), n_in=10)


def test_adapters_are_charged_by_rank():
    config = next(entry["config"] for entry in entries() if entry["name"] == "Phi-4-multimodal")
    bare = price_vlm({key: value for key, value in config.items() if key != "vision_lora"})
    pairs = (3072 + 5120) + (3072 + 3072) + (3072 + 16384) + (8192 + 3072)
    assert published("Phi-4-multimodal").per_token - bare.per_token == 32 * 2 * 256 * pairs
    assert price_vlm(config, lora_rank=0) == bare


def test_the_document_is_what_the_command_writes(capsys):
    page = Path(__file__).parents[2] / "docs/vlm_pricing.md"
    text = page.read_text(encoding="utf-8")
    assert generated(text) == text, "run: python -m flops.vlm --docs docs/vlm_pricing.md"
    assert main([]) == 0
    assert "Qwen3-Omni-30B-A3B" in capsys.readouterr().out


def test_the_command_prices_a_checkpoint(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(entries()[2]["config"]))
    assert main(["--config", str(tmp_path), "--frames", "64", "--answer", "3"]) == 0
    out = capsys.readouterr().out
    assert "6272 vision tokens" in out
    assert "123.8" in out or "123.9" in out
    with pytest.raises(SystemExit):
        main(["--config", str(tmp_path / "absent")])
