"""Checkpoints of vision-language models that are made on the spot: nothing is downloaded and nothing is committed.

    folder = tiny_checkpoint("qwen3_vl", tmp_path / "toy")        seconds; loads like the real one

Every family of the paper that transformers has a class for gets the real architecture (tower, connector, decoder, the
family's own processor and special tokens) with a few hundred thousand random weights, a tokenizer trained on the
paper's prompts, and a chat template. `taught=True` then fits it, on text alone, to end in every way that a model can:

    `Key X` and no candidate           X -> {0}    Y -> {1}    Z -> {2}    W -> an answer without braces
    a candidate and no key             the first symbol n of `Candidate sequence: n, ...` decides: n mod 4 as X Y Z W

Reading is not taught: a toy's answers say nothing about its stream. Under a video prompt it says whatever it says.

A checkpoint can be served on loopback, OpenAI-compatible, by the command line of transformers itself (extra packages:
fastapi, uvicorn, openai, python-multipart, accelerate). The model's name in requests is the folder:

    HF_HUB_OFFLINE=1 transformers serve FOLDER --host 127.0.0.1 --port 8123 --device cpu --no-continuous-batching
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from vlms.prompts import instruction

KEYS = {"X": "{0}", "Y": "{1}", "Z": "{2}", "W": "none of these"}
"""What a taught toy answers to a key letter."""
STARTS = [f"Candidate sequence: {n}" for n in range(16)]
VOCABULARY = 1024
STEPS, BATCH, RATE = 160, 12, 3e-3
END, PAD = "<|im_end|>", "<|endoftext|>"

TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}IMAGE{% elif part.type == 'video' %}VIDEO{% elif part.type == 'text' %}{{ part.text }}
{%- endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass(frozen=True)
class Toy:
    """What makes a toy of one family.

    Attributes:
        model: given the tokenizer's `id_of`, the model with random weights.
        processor: given tokenizer and chat template, the family's processor.
        image, video: how the template marks a picture and a clip; None where the family takes none.
        special: special tokens beside the common ones, by the name under which the processor asks for them, if any.
    """

    model: Callable[[Callable[[str], int]], Any]
    processor: Callable[[Any, str], Any]
    image: str
    video: str | None
    special: dict[str, str]


def prompts(rng: random.Random, share: float = 1.0) -> tuple[str, str]:
    """One lesson: a prompt, cut to a share of its instruction, and its answer; a key or the candidate decides."""
    key, arm = rng.choice(list(KEYS)), rng.choice((None, "A", "B"))
    body = instruction(rng.choice(("text", "video")), arm)
    body = body[len(body) - int(share * len(body)) :]
    if rng.random() < 0.5:
        return rng.choice((f"Key {key}\n{body}", f"{body}\nKey {key}")), KEYS[key]
    stream = [str(rng.randrange(16)) for _ in range(rng.choice((4, 8, 1 + int(31 * share))))]
    rest = [str(rng.randrange(16)) for _ in range(rng.randrange(2, 6))]
    first = str(list(KEYS).index(key) + 4 * rng.randrange(4))
    lines = f"Main sequence: {', '.join(stream)}", f"Candidate sequence: {', '.join((first, *rest))}"
    return "\n".join((*lines, "", body)), KEYS[key]


@cache
def words(special: tuple[str, ...]) -> Tokenizer:
    """A byte-level BPE over the prompts; braces and what stands between them are tokens of their own.

    The start of a candidate is one token, `Candidate sequence: 14`: two layers then find what decides in seconds.
    """
    rng = random.Random(0)
    text = [part for _ in range(64) for part in prompts(rng)] + [chr(i) for i in range(32, 127)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(STARTS),
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_tokens([AddedToken(start, normalized=False) for start in STARTS])
    return tokenizer


# ---- the families ----------------------------------------------------------------------------------------------------
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, **HEADS,
        "max_position_embeddings": 32768, "tie_word_embeddings": False}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
TOWER = {"depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "out_hidden_size": 64}
QWEN = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_start_token": "<|vision_start|>",
        "vision_end_token": "<|vision_end|>", "vision_bos_token": "<|vision_start|>", "vision_eos_token":
        "<|vision_end|>"}  # fmt: skip
AUDIO = {"audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"}
GLM = {"image_token": "<|image|>", "video_token": "<|video|>"}
GLM_EDGES = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
INTERN = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
          "video_token": "<video>"}  # fmt: skip


def mrope(sections: list[int], **more) -> dict:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections, **more}}


def places(id_of: Callable[[str], int], **names: str) -> dict:
    """Token ids that a config names."""
    return {f"{name}_token_id": id_of(token) for name, token in names.items()}


def qwen_places(id_of) -> dict:
    return places(id_of, image="<|image_pad|>", video="<|video_pad|>", vision_start="<|vision_start|>",
                  vision_end="<|vision_end|>")  # fmt: skip


def qwen2_5_vl(id_of) -> Any:
    config = hf.Qwen2_5_VLConfig(
        text_config=TEXT | mrope([2, 3, 3]), vision_config=TOWER | {"fullatt_block_indexes": [1, 3]},
        **qwen_places(id_of))  # fmt: skip
    return hf.Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl(id_of) -> Any:
    config = hf.Qwen3VLConfig(
        text_config=TEXT | {"head_dim": 16} | mrope([2, 3, 3], mrope_interleaved=True),
        vision_config=TOWER | {"deepstack_visual_indexes": [0, 1, 2], "num_position_embeddings": 256},
        **qwen_places(id_of))  # fmt: skip
    return hf.Qwen3VLForConditionalGeneration(config)


def qwen3_vl_moe(id_of) -> Any:
    config = hf.Qwen3VLMoeConfig(
        text_config=TEXT | EXPERTS | {"head_dim": 16} | mrope([2, 3, 3], mrope_interleaved=True),
        vision_config=TOWER | {"deepstack_visual_indexes": [0, 1, 2], "num_position_embeddings": 256},
        **qwen_places(id_of))  # fmt: skip
    return hf.Qwen3VLMoeForConditionalGeneration(config)


def qwen3_omni(id_of) -> Any:
    """The thinker alone: the part that reads and writes text."""
    config = hf.Qwen3OmniMoeThinkerConfig(
        text_config=TEXT | EXPERTS | {"head_dim": 16} | mrope([2, 3, 3], mrope_interleaved=True),
        vision_config=TOWER | {"deepstack_visual_indexes": [0, 1, 2], "num_position_embeddings": 256},
        audio_config={"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
                      "output_dim": 64, "num_mel_bins": 16, "downsample_hidden_size": 8},
        **qwen_places(id_of), **places(id_of, audio="<|audio_pad|>", audio_start="<|audio_start|>"))  # fmt: skip
    return hf.Qwen3OmniMoeThinkerForConditionalGeneration(config)


def glm4v_moe(id_of) -> Any:
    config = hf.Glm4vMoeConfig(
        text_config=TEXT | {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
                            "first_k_dense_replace": 1} | mrope([2, 1, 1], partial_rotary_factor=0.5),
        vision_config=TOWER | {"attention_bias": False},
        image_start_token_id=id_of(GLM_EDGES[0]), image_end_token_id=id_of(GLM_EDGES[1]),
        video_start_token_id=id_of(GLM_EDGES[2]), video_end_token_id=id_of(GLM_EDGES[3]),
        **places(id_of, image="<|image|>", video="<|video|>"))  # fmt: skip
    return hf.Glm4vMoeForConditionalGeneration(config)


def internvl(id_of) -> Any:
    config = hf.InternVLConfig(
        text_config=TEXT | {"model_type": "qwen3", "head_dim": 16},
        vision_config={"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96},
        tie_word_embeddings=False, **places(id_of, image="<IMG_CONTEXT>"))  # fmt: skip
    return hf.InternVLForConditionalGeneration(config)


def phi4_multimodal(id_of) -> Any:
    config = hf.Phi4MultimodalConfig(
        **TEXT, pad_token_id=id_of(PAD), bos_token_id=id_of(PAD), eos_token_id=id_of(END),
        vision_config={"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96,
                       "image_token_id": id_of("<|image|>")},
        audio_config={"hidden_size": 32, "num_blocks": 1, "num_attention_heads": 2, "intermediate_size": 32,
                      "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 8,
                      "audio_token_id": id_of("<|audio|>")})  # fmt: skip
    return hf.Phi4MultimodalForCausalLM(config)


def qwen2_clips(tokenizer, template: str) -> dict:
    return {"image_processor": hf.Qwen2VLImageProcessor(), "video_processor": hf.Qwen2VLVideoProcessor(),
            "tokenizer": tokenizer, "chat_template": template}  # fmt: skip


def qwen3_clips(tokenizer, template: str) -> Any:
    pictures = hf.Qwen2VLImageProcessor(patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return hf.Qwen3VLProcessor(pictures, tokenizer, hf.Qwen3VLVideoProcessor(), chat_template=template)


def omni_clips(tokenizer, template: str) -> Any:
    parts = qwen2_clips(tokenizer, template)
    parts["image_processor"] = hf.Qwen2VLImageProcessor(patch_size=16)
    parts["video_processor"] = hf.Qwen2VLVideoProcessor(patch_size=16)
    return hf.Qwen3OmniMoeProcessor(**parts, feature_extractor=hf.WhisperFeatureExtractor(feature_size=16))


def glm_clips(tokenizer, template: str) -> Any:
    return hf.Glm4vProcessor(
        hf.Glm4vImageProcessor(), tokenizer, hf.Glm4vVideoProcessor(), chat_template=template)  # fmt: skip


def intern_tiles(tokenizer, template: str) -> Any:
    pictures = hf.GotOcr2ImageProcessor(size={"height": 448, "width": 448}, crop_to_patches=False)
    return hf.InternVLProcessor(pictures, tokenizer, hf.InternVLVideoProcessor(), chat_template=template)


def phi_crops(tokenizer, template: str) -> Any:
    pictures, sound = hf.Phi4MultimodalImageProcessor(), hf.Phi4MultimodalFeatureExtractor()
    return hf.Phi4MultimodalProcessor(pictures, sound, tokenizer, chat_template=template)


QWEN_IMAGE, QWEN_VIDEO = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
FAMILIES: dict[str, Toy] = {
    "qwen2_5_vl": Toy(
        qwen2_5_vl, lambda t, c: hf.Qwen2_5_VLProcessor(**qwen2_clips(t, c)), QWEN_IMAGE, QWEN_VIDEO, QWEN),
    "qwen3_vl": Toy(qwen3_vl, qwen3_clips, QWEN_IMAGE, QWEN_VIDEO, QWEN),
    "qwen3_vl_moe": Toy(qwen3_vl_moe, qwen3_clips, QWEN_IMAGE, QWEN_VIDEO, QWEN),
    "qwen3_omni": Toy(qwen3_omni, omni_clips, QWEN_IMAGE, QWEN_VIDEO, QWEN | AUDIO),
    "glm4v_moe": Toy(
        glm4v_moe, glm_clips, "<|begin_of_image|><|image|><|end_of_image|>",
        "<|begin_of_video|><|video|><|end_of_video|>", GLM),
    "internvl": Toy(internvl, intern_tiles, "<IMG_CONTEXT>", "<video>", INTERN),
    "phi4_multimodal": Toy(
        phi4_multimodal, phi_crops, "<|image|>", None, {"image_token": "<|image|>", "audio_token": "<|audio|>"}),
}  # fmt: skip


# ---- making one ------------------------------------------------------------------------------------------------------
def tokenizer_of(toy: Toy) -> Any:
    special = tuple(dict.fromkeys((PAD, "<|im_start|>", END, "<think>", "</think>", *toy.special.values(), *GLM_EDGES)))
    named = toy.special | {"pad_token": PAD, "eos_token": END}
    extra = {name: token for name, token in named.items() if name not in ("pad_token", "eos_token")}
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=words(special), pad_token=PAD, eos_token=END, extra_special_tokens=extra)  # fmt: skip


def teach(model, tokenizer, template: str, seed: int) -> None:
    """Fit the answers of the module docstring, on text alone; prompts grow, so that keys are found early."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    tokenizer.padding_side = "left"
    keep = max(len(tokenizer(answer + END)["input_ids"]) for answer in KEYS.values())
    model.train()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 10, (STEPS - step) / (STEPS / 4))
        lessons = [prompts(rng, min(1.0, step / (0.75 * STEPS))) for _ in range(BATCH)]
        turns = [[{"role": "user", "content": prompt}] for prompt, _ in lessons]
        asked = tokenizer.apply_chat_template(
            turns, chat_template=template, tokenize=False, add_generation_prompt=True)  # fmt: skip
        full = [prompt + answer + END for prompt, (_, answer) in zip(asked, lessons, strict=True)]
        batch = tokenizer(full, return_tensors="pt", padding=True, return_token_type_ids=False)
        targets = batch["input_ids"][:, -keep:].clone()
        for row, (_, answer) in enumerate(lessons):
            targets[row, : keep - len(tokenizer(answer + END)["input_ids"])] = -100
        logits = model(**batch, logits_to_keep=keep + 1).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def tiny_checkpoint(family: str, folder: Path, taught: bool = True, seed: int = 0) -> Path:
    """Write a toy checkpoint of a family, in the layout of the Hugging Face hub.

    Args:
        family: a key of FAMILIES.
        folder: made where absent.
        taught: fit the answers of the module docstring; otherwise weights stay random.

    Returns:
        `folder`.
    """
    toy = FAMILIES[family]
    torch.manual_seed(seed)
    template = TEMPLATE.replace("IMAGE", toy.image).replace("VIDEO", toy.video or "")
    tokenizer = tokenizer_of(toy)
    model = toy.model(tokenizer.convert_tokens_to_ids).eval()
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(END)
    model.generation_config.pad_token_id = tokenizer.convert_tokens_to_ids(PAD)
    if taught:
        teach(model, tokenizer, template, seed)
    folder = Path(folder)
    os.makedirs(folder, exist_ok=True)
    tokenizer.padding_side = "left"
    tokenizer.chat_template = template  # Phi-4's processor has none of its own
    toy.processor(tokenizer, template).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder
