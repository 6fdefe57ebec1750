"""The local adapter on toys of every family: answers, prices, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from flops.vlm import price_vlm
from tests.vlms.tiny import FAMILIES, KEYS
from vlms.local import LocalModel, rules_of
from vlms.local.model import place
from vlms.parsing import parse
from vlms.prompts import VideoPart, instruction
from vlms.protocol import SYNTHETIC, MemoryFailure, Observation, Query
from vlms.registry import build

TEXT = Query("t", "text", "14, 1, 5", instruction("text"))


def stream(system, values, modality):
    """A state with the values written in two pieces."""
    observations = [Observation(modality, value, float(t)) for t, value in enumerate(values)]
    state = system.open("0", 0)
    return system.write(system.write(state, observations[:3]), observations[3:])


def noise(frames: int, size=(128, 192), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (frames, *size, 3), dtype=np.uint8)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_answers_on_text_and_on_frames(family, local):
    system = local(family)
    text = system.read(stream(system, list("0123456789"), "text"), TEXT)
    assert (text.frames_in, text.frames_seen, text.grid) == (None, None, None)
    assert text.cost.terms["vision"] == text.cost.terms["connector"] == 0

    tiles = system.rules.frames == "images"
    size, lengths = ((448, 448), (2, 1)) if tiles else ((128, 192), (7, 3))
    main, option = noise(lengths[0], size), noise(lengths[1], size, seed=1)
    reply = system.read(stream(system, main, "frames"), Query("v", "frames", tuple(option), instruction("video")))
    assert reply.frames_in == reply.frames_seen == sum(lengths)
    assert reply.meta == {}
    price = price_vlm(system.path)
    expected = price.response(lengths, size, n_in=reply.n_in, answer=1, frames_as=system.rules.frames)
    assert reply.cost.write == expected.write
    assert reply.cost.read >= expected.read
    assert reply.cost.write == sum(reply.cost.terms[term] for term in ("vision", "connector", "prefill"))
    assert 1 <= reply.n_out <= 4
    assert (reply.finish == "length") == (reply.n_out == 4 and not reply.text.endswith("}"))


LOSSES = [
    ("qwen2_5_vl", {"do_sample_frames": True, "num_frames": 4}, (128, 192), "4 of 7 frames"),
    ("qwen2_5_vl", {"size": {"shortest_edge": 3136, "longest_edge": 112 * 112}}, (448, 448), "clip 0: frames of 448 x"),
    ("qwen3_vl", {"do_sample_frames": True, "num_frames": 4, "fps": None}, (128, 192), "4 of 7 frames"),
    ("qwen3_vl", {"size": {"shortest_edge": 131072, "longest_edge": 786432}}, (448, 448), "frames of 448 x 448 became"),
    ("qwen3_vl_moe", {"size": {"shortest_edge": 131072, "longest_edge": 786432}}, (448, 448), "448 x 448 became"),
    ("qwen3_omni", {"size": {"shortest_edge": 3136, "longest_edge": 112 * 112}}, (448, 448), "448 x 448 became"),
    ("glm4v_moe", {"do_sample_frames": True, "fps": 0.5}, (128, 192), "of 7 frames"),
    ("glm4v_moe", {"size": {"shortest_edge": 3136, "longest_edge": 448 * 448}}, (448, 448), "448 x 448 became"),
    ("internvl", {"size": {"height": 224, "width": 224}}, (448, 448), r"grid of \(16, 16\) instead of \(32, 32\)"),
    ("internvl", {"crop_to_patches": True}, (448, 896), "21 of 7 frames"),
    ("phi4_multimodal", {"dynamic_hd": 1}, (448, 896), r"grid of \(32, 32\) instead of \(32, 64\)"),
]


@pytest.mark.parametrize(("family", "setting", "size", "message"), LOSSES)
def test_a_setting_that_loses_frames_or_pixels_is_caught(family, setting, size, message, local, monkeypatch):
    from vlms.local import FramesLost

    system = local(family, processor=setting)
    monkeypatch.setattr(system, "_generate", lambda *_: pytest.fail("the model ran on a prompt that lost frames"))
    state = stream(system, noise(7, size), "frames")
    with pytest.raises(FramesLost, match=message):
        system.read(state, Query("v", "frames", None, "Answer {0} or {1}."))


def test_a_permitted_loss_marks_the_reply_and_prices_what_was_seen(local):
    system = local("qwen3_vl", processor={"do_sample_frames": True, "num_frames": 4, "fps": None}, allow_downscale=True)
    reply = system.read(stream(system, noise(8), "frames"), Query("v", "frames", None, "Answer {0} or {1}."))
    assert (reply.frames_in, reply.frames_seen, reply.meta) == (8, 4, {"downscaled": True})
    assert reply.cost.terms["vision"] == system.price.vision((4,), (128, 192))
    assert system.identity["allow_downscale"] is True


def test_stock_processors_would_lose_frames(checkpoint):
    """What the settings of the families are for: without them a clip of 448 x 448 shrinks, and nobody says so."""
    from transformers import AutoProcessor

    stock = AutoProcessor.from_pretrained(checkpoint("qwen3_vl")).video_processor
    out = stock(videos=[noise(16, (448, 448))], do_sample_frames=False, return_tensors="pt")
    assert out["video_grid_thw"][0].tolist() != [8, 28, 28]


CLIP_TEXT = {  # what a clip of four frames, at one per second, becomes in the prompt; V stands for its patches
    "qwen2_5_vl": "<|vision_start|>V<|vision_end|>",
    "qwen3_vl": "<0.5 seconds><|vision_start|>V<|vision_end|><2.5 seconds><|vision_start|>V<|vision_end|>",
    "qwen3_omni": "<|vision_start|>V<|vision_end|>",
    "glm4v_moe": "<|begin_of_video|><|begin_of_image|>V<|end_of_image|>0<|begin_of_image|>V<|end_of_image|>2"
    "<|end_of_video|>",
    "internvl": "<img>V</img>" * 4,
    "phi4_multimodal": "V\nV\nV\nV",
}


@pytest.mark.parametrize("family", CLIP_TEXT)
def test_times_and_marks_of_a_clip(family, local):
    system = local(family)
    prompt, clips = system._prompt([VideoPart(tuple(noise(4)))])
    inputs = system._tokens(prompt, clips)
    text = system.tokens_to.tokenizer.decode(inputs["input_ids"][0])
    for token in system.vision_ids:
        mark = re.escape(system.tokens_to.tokenizer.convert_ids_to_tokens(token))
        text = re.sub(f"({mark})+", "V", text)
    assert f"user\n{CLIP_TEXT[family]}<|im_end|>" in text
    for key in ("second_per_grid_ts", "video_second_per_grid"):
        assert inputs.get(key, torch.tensor([2.0])).tolist() == [2.0], "two frames, one second each"


@pytest.fixture(scope="module")
def taught(checkpoint):
    return LocalModel(str(checkpoint("qwen3_vl", taught=True)), max_new_tokens=12)


@pytest.mark.parametrize(("key", "kind"), list(zip(KEYS, ("answer", "answer", "explicit", "none"), strict=True)))
def test_every_way_to_answer(taught, key, kind):
    state = stream(taught, list("0123456789"), "text")
    reply = taught.read(state, replace(TEXT, candidate=None, question=f"Key {key}\n{TEXT.question}"))
    assert reply.text == KEYS[key]
    assert reply.finish == "stop"
    assert parse(reply.text, SYNTHETIC, reply.finish).kind == kind


def test_an_answer_cut_short_is_an_overflow(checkpoint):
    system = LocalModel(str(checkpoint("qwen3_vl", taught=True)), max_new_tokens=1)
    reply = system.read(stream(system, list("0123"), "text"), replace(TEXT, candidate="3, 1, 5"))
    assert (reply.finish, reply.n_out) == ("length", 1)
    assert parse(reply.text, SYNTHETIC, reply.finish).kind == "overflow"


def test_questions_are_independent_of_their_order(taught):
    state = stream(taught, list("0123456789"), "text")
    queries = [replace(TEXT, candidate=f"{n}, 1, 5") for n in range(len(KEYS))]
    forth = [reply.text for reply in taught.read_many(state, queries)]
    back = [reply.text for reply in taught.read_many(state, queries[::-1])]
    assert forth == back[::-1] == list(KEYS.values())


def test_sampling_settings_of_a_checkpoint_are_off(taught, monkeypatch):
    state = stream(taught, list("0123"), "text")
    plain = taught.read(state, TEXT)
    for setting, value in {"do_sample": True, "temperature": 50.0, "repetition_penalty": 9.0}.items():
        monkeypatch.setattr(taught.model.generation_config, setting, value)
    assert {taught.read(state, TEXT).text for _ in range(3)} == {plain.text}


def test_a_template_that_opens_a_thought_is_noticed(checkpoint, local, tmp_path):
    folder = tmp_path / "thinker"
    shutil.copytree(checkpoint("qwen3_vl"), folder)
    for file in folder.glob("*.jinja"):
        file.write_text(file.read_text().replace("assistant\n", "assistant\n<think>\n"))
    assert LocalModel(str(folder), max_new_tokens=2).opens_thought
    assert not local("qwen3_vl").opens_thought


def test_the_prompt_may_not_exceed_the_positions(checkpoint, tmp_path):
    folder = tmp_path / "short"
    shutil.copytree(checkpoint("qwen3_vl"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    short = LocalModel(str(folder), max_new_tokens=2)
    state = stream(short, ["7"] * 100, "text")
    with pytest.raises(MemoryFailure, match=r"exceeds the 64 positions of short.*memory\.beyond_context=true"):
        short.read(state, TEXT)
    short.beyond_context = True
    assert short.read(state, TEXT).n_in > 64


def test_what_is_wrong_is_said_with_the_way_out(checkpoint, tmp_path):
    with pytest.raises(MemoryFailure, match="it has no config"):
        LocalModel(str(tmp_path))
    with pytest.raises(MemoryFailure, match=r"no checkpoint at .*correct memory\.path"):
        LocalModel(str(tmp_path / "absent"))
    with pytest.raises(MemoryFailure, match=r"'qwen3_vx' \(near: qwen3_vl\).*memory=server"):
        rules_of("qwen3_vx")
    with pytest.raises(MemoryFailure, match="no precision of torch"):
        place("cpu", "float17")
    with pytest.raises(MemoryFailure, match="auto, split, cpu or cuda:N"):
        place("gpu", "auto")
    with pytest.raises(MemoryFailure, match="max_new_tokens=0"):
        LocalModel(str(checkpoint("qwen3_vl")), max_new_tokens=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_here():
    with pytest.raises(MemoryFailure, match=r"no CUDA device; use memory\.device=cpu"):
        place("cuda", "auto")


@pytest.mark.gpu
def test_a_toy_answers_alike_on_a_gpu(checkpoint):
    folder = str(checkpoint("qwen3_vl", taught=True))
    query = replace(TEXT, candidate="5, 1, 5")
    replies = [
        (system := LocalModel(folder, device=device, dtype="float32", max_new_tokens=12)).read(
            stream(system, list("0123456789"), "text"), query
        )
        for device in ("cpu", "cuda")
    ]
    assert replies[0].text == replies[1].text == "{1}"
    assert replies[0].cost == replies[1].cost


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    for module in ("vlms.local", "vlms.local.model"):
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MemoryFailure, match=r"pip install 'ecclab\[vlm\]' \(torchvision is missing\)"):
        build("local", path="anywhere")


def test_the_registry_builds_it_and_its_identity_is_json(checkpoint):
    system = build("local", path=str(checkpoint("internvl")), max_new_tokens=3)
    assert json.loads(json.dumps(system.identity)) == system.identity
    assert (system.architecture, system.width) == ("internvl3.5", 64)
    assert system.counts_flops
