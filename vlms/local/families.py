"""What differs between families: how frames go in, and which of a processor's habits must be off.

Every processor of a video family samples frames or shrinks them unless told not to, and says nothing:

    Qwen2-VL's (Qwen2.5-VL, MiMo-VL, Omni)   enlarges frames below 316 x 316, shrinks those above 775 x 775
    Qwen3-VL's                               fits a clip into a budget of pixels: 96 x 96 per frame at 64 frames
    GLM-4V's                                 the same, and takes frames at 2 per second for at most 300 seconds
    Phi-4's                                  as many crops as `dynamic_hd` allows
    InternVL's                               one 448 x 448 tile per frame (the paper's setting), more if asked to crop

`processor` holds the settings that stop it; `frames.check` proves that they did.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vlms.protocol import MemoryFailure

BUDGET = {"shortest_edge": 4096, "longest_edge": 448 * 448 * 4096}
"""Pixels that no frame or clip of ours falls below or exceeds: 64 x 64, and 4,096 frames of 448 x 448."""
KEEP_ALL = {"do_sample_frames": False, "size": BUDGET}


@dataclass(frozen=True)
class FamilyRules:
    """How one family is loaded and fed.

    Attributes:
        name: of the family; also the `architecture` of its rows.
        models: its models in the paper.
        model_types: `model_type` of the configs that it covers.
        loader: class of transformers that loads it.
        frames: as clips or as single pictures.
        processor: settings of the processor for prompts with frames.
        rewrite: stretches of a templated prompt that the processor must find written differently.
        inline: prompts are plain text with picture tokens in it, not parts, for templates that know no parts.
        adapter: folder, inside the checkpoint, of low-rank weights that are active whenever there is a picture.
    """

    name: str
    models: tuple[str, ...]
    model_types: tuple[str, ...]
    loader: str = "AutoModelForImageTextToText"
    frames: Literal["video", "images"] = "video"
    processor: Mapping[str, Any] = field(default_factory=dict)
    rewrite: Mapping[str, str] = field(default_factory=dict)
    inline: bool = False
    adapter: str | None = None


FAMILIES: tuple[FamilyRules, ...] = (
    FamilyRules(
        "qwen2.5-vl",
        ("Qwen2.5-VL", "MiMo-VL"),
        ("qwen2_5_vl",),
        processor=KEEP_ALL | {"cap_pixels_per_frame": False},
    ),
    FamilyRules(
        "qwen3-vl",
        ("Qwen3-VL Instruct", "Qwen3-VL Thinking", "Qwen3-VL MoE"),
        ("qwen3_vl", "qwen3_vl_moe"),
        processor=KEEP_ALL | {"cap_pixels_per_frame": False},
        # The processor marks every pair of frames itself. Until transformers 5 it also took away the template's own
        # marks around the clip, with which the model was never trained; now it leaves them.
        rewrite={"<|vision_start|><|video_pad|><|vision_end|>": "<|video_pad|>"},
    ),
    FamilyRules(
        "qwen3-omni",
        ("Qwen3-Omni",),
        ("qwen3_omni_moe", "qwen3_omni_moe_thinker"),
        loader="Qwen3OmniMoeThinkerForConditionalGeneration",  # the talker makes sound, which nobody asks for
        processor=KEEP_ALL | {"cap_pixels_per_frame": False, "fps": 1.0},
    ),
    FamilyRules(
        "glm-4.5v",
        ("GLM-4.5V",),
        ("glm4v_moe",),
        processor=KEEP_ALL,
    ),
    FamilyRules(
        "internvl3.5",
        ("InternVL3.5 8B", "InternVL3.5 38B", "InternVL3.5 30B-A3B"),  # the -HF checkpoints
        ("internvl",),
        frames="images",  # its clips must all be of one length
        processor={"crop_to_patches": False},
    ),
    FamilyRules(
        "phi-4-mm",
        ("Phi-4-multimodal",),
        ("phi4_multimodal",),
        loader="Phi4MultimodalForCausalLM",
        frames="images",
        inline=True,
        adapter="vision-lora",
    ),
)


def rules_of(model_type: str) -> FamilyRules:
    """The family of a config.

    Raises:
        MemoryFailure: no family has that `model_type`; those that there are, and the way for others.
    """
    known = {kind: rules for rules in FAMILIES for kind in rules.model_types}
    if model_type in known:
        return known[model_type]
    near = difflib.get_close_matches(model_type, known, n=1)
    hint = f" (near: {near[0]})" if near else ""
    raise MemoryFailure(
        f"no family is known for model_type {model_type!r}{hint}; there are {', '.join(known)}. Serve the model with "
        "vLLM, SGLang or transformers and ask it by memory=server"
    )
