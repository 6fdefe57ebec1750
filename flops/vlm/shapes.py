"""The shapes behind a price, read off a Hugging Face config.

A config is a dict as in config.json; remote-code checkpoints (MiniCPM-V, LongVILA, Phi-4's original form) have other
names for the same things, which is why every family has a reader of its own. Where the shapes of the weights and what
a config's field is called disagree, the weights are followed (GLM-4.5V's tower).

Letters of the paper's B.3: L_v, d_v, f_v layers, width and feed-forward width of the tower; L_t, d_t, f_t of the
decoder; p patch size in pixels; m width of a merged block of patches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Config = Mapping[str, Any]
Kind = Literal["merge", "deepstack", "glm", "tile", "crops", "resampler", "pool"]


class UnknownFamily(ValueError):
    """A config of a family that has no reader; the message lists those that have."""


@dataclass(frozen=True)
class Tower:
    """A vision transformer.

    Attributes:
        layers, width, ffn: L_v, d_v, f_v.
        gated: three feed-forward matrices instead of two.
        patch: pixels along a patch's side; channels of a pixel.
        frames: frames packed into one patch (and one span).
        merge: patches along the side of the block that becomes one token.
        tile: side in pixels that every picture is resized to; None where the original size is kept.
        class_token: tokens put before the patches.
        full_blocks: blocks that attend over the whole span; None for all. The others attend in windows.
        window: side of such a window, in pixels.
    """

    layers: int
    width: int
    ffn: int
    gated: bool
    patch: int
    channels: int = 3
    frames: int = 1
    merge: int = 2
    tile: int | None = None
    class_token: int = 0
    full_blocks: int | None = None
    window: int | None = None


@dataclass(frozen=True)
class Connector:
    """What carries vision features into the decoder.

    Attributes:
        kind: "merge" m -> m -> d_t; "deepstack" several of those; "glm" m -> d_t -> d_t and a gated feed-forward;
            "tile" m -> d_t -> d_t; "crops" d_v -> d_t -> d_t; "resampler" cross-attention; "pool" as merge, then
            averages over time.
        passes: copies of a "deepstack" merger.
        ffn: width of the gated feed-forward of "glm".
        queries: tokens that a "resampler" emits per call.
        packs: whether a "resampler" reads several frames at once in long clips.
    """

    kind: Kind
    passes: int = 1
    ffn: int = 0
    queries: int = 0
    packs: bool = False


@dataclass(frozen=True)
class Decoder:
    """A language model.

    Attributes:
        layers, width: L_t, d_t.
        q, kv: width of all queries, and of all keys (n_q h_t, n_kv h_t).
        feed_forward: FLOPs per token of each layer's feed-forward, router included.
        vocabulary: rows of the output projection.
        positions: the largest position it was trained on; None where the config does not say.
        lora: FLOPs per token of each layer's low-rank adapters.
    """

    layers: int
    width: int
    q: int
    kv: int
    feed_forward: tuple[int, ...]
    vocabulary: int
    positions: int | None
    lora: int = 0


@dataclass(frozen=True)
class Shapes:
    """Everything that a price depends on."""

    family: str
    tower: Tower
    connector: Connector
    decoder: Decoder


def side(value: Any) -> int:
    """A size that configs write as 14 or as (14, 14)."""
    return int(value[-1]) if isinstance(value, (list, tuple)) else int(value)


def feed_forward(text: Config, layers: int) -> tuple[int, ...]:
    """FLOPs per token of each layer's feed-forward: gated, or a router and the experts that it chooses."""
    width = text["hidden_size"]
    dense = 6 * width * text["intermediate_size"] if text.get("intermediate_size") else 0
    experts = text.get("num_experts") or text.get("n_routed_experts") or text.get("num_local_experts")
    if not experts:
        return (dense,) * layers
    wide = text["moe_intermediate_size"]
    active = text["num_experts_per_tok"] + (text.get("n_shared_experts") or 0)
    sparse = 2 * width * experts + active * 6 * width * wide
    first, only = text.get("first_k_dense_replace") or 0, text.get("mlp_only_layers") or ()
    step = text.get("decoder_sparse_step") or 1
    return tuple(dense if i < first or i in only or (i + 1) % step else sparse for i in range(layers))


def decoder(text: Config, lora_rank: int = 0) -> Decoder:
    """A decoder of the Llama shape, dense or with experts."""
    layers, width, heads = text["num_hidden_layers"], text["hidden_size"], text["num_attention_heads"]
    head = text.get("head_dim") or width // heads
    q, kv = heads * head, (text.get("num_key_value_heads") or heads) * head
    lora = 0
    if lora_rank:  # on fused qkv, o, fused gate and up, down
        ffn = text["intermediate_size"]
        lora = 2 * lora_rank * ((width + q + 2 * kv) + (q + width) + (width + 2 * ffn) + (ffn + width))
    return Decoder(layers, width, q, kv, feed_forward(text, layers), text["vocab_size"],
                   text.get("max_position_embeddings"), lora)  # fmt: skip


def tower(vision: Config, **more: Any) -> Tower:
    """A tower under the names that Qwen and GLM use (`depth`) or those of everybody else."""
    return Tower(
        layers=vision.get("depth") or vision["num_hidden_layers"], width=vision["hidden_size"],
        **{"ffn": vision["intermediate_size"], "gated": False, "patch": side(vision["patch_size"]),
           "channels": vision.get("in_channels") or vision.get("num_channels") or 3, **more})  # fmt: skip


def qwen2_5_vl(config: Config) -> Shapes:
    vision = config["vision_config"]
    return Shapes("qwen2_5_vl", tower(
        vision, gated=True, frames=side(vision["temporal_patch_size"]), merge=vision["spatial_merge_size"],
        full_blocks=len(vision["fullatt_block_indexes"]), window=vision["window_size"]),
        Connector("merge"), decoder(config.get("text_config") or config))  # fmt: skip


def qwen3(config: Config) -> Shapes:
    config = config.get("thinker_config") or config  # Omni: the part that reads and writes text
    vision = config["vision_config"]
    return Shapes("qwen3_vl", tower(
        vision, frames=side(vision["temporal_patch_size"]), merge=vision["spatial_merge_size"]),
        Connector("deepstack", passes=1 + len(vision["deepstack_visual_indexes"])),
        decoder(config["text_config"]))  # fmt: skip


def glm(config: Config) -> Shapes:
    """The blocks' feed-forward is `out_hidden_size` wide; `intermediate_size` is the merger's, as in the weights."""
    vision = config["vision_config"]
    ffn = vision["out_hidden_size"]
    return Shapes("glm4v_moe", tower(
        vision, ffn=ffn, gated=True, frames=side(vision["temporal_patch_size"]), merge=vision["spatial_merge_size"]),
        Connector("glm", ffn=vision["intermediate_size"]), decoder(config["text_config"]))  # fmt: skip


def internvl(config: Config) -> Shapes:
    vision = config["vision_config"]
    return Shapes("internvl", tower(
        vision, tile=side(vision["image_size"]), class_token=1, merge=round(1 / config["downsample_ratio"])),
        Connector("tile"), decoder(config.get("text_config") or config["llm_config"]))  # fmt: skip


def phi4(config: Config) -> Shapes:
    vision = config["vision_config"]
    rank = (config.get("vision_lora") or {}).get("r", 0)
    return Shapes("phi4_multimodal", tower(vision, tile=side(vision["image_size"])), Connector("crops"),
                  decoder(config, rank))  # fmt: skip


def minicpm(config: Config) -> Shapes:
    vision = config["vision_config"]
    return Shapes("minicpmv", tower(vision, tile=config.get("image_size", 448)), Connector(
        "resampler", queries=config["query_num"], packs=float(config["version"]) >= 4.5), decoder(config))  # fmt: skip


def longvila(config: Config) -> Shapes:
    vision = config["vision_tower_cfg"]
    return Shapes("longvila", tower(vision, tile=side(vision["image_size"])), Connector("pool"),
                  decoder(config["llm_cfg"]))  # fmt: skip


READERS: dict[str, Callable[[Config], Shapes]] = {
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3,
    "qwen3_vl_moe": qwen3,
    "qwen3_omni_moe": qwen3,
    "qwen3_omni_moe_thinker": qwen3,
    "glm4v_moe": glm,
    "internvl": internvl,
    "phi4_multimodal": phi4,
    "phi4mm": phi4,
    "minicpmv": minicpm,
    "llava_llama": longvila,
    "vila": longvila,
}
"""By the `model_type` of a config. MiMo-VL's is Qwen2.5-VL's."""


def read_shapes(config: Config) -> Shapes:
    """The shapes that a config states.

    Raises:
        UnknownFamily: no reader for its `model_type`.
        ValueError: a field that the family needs is missing; it is named.
    """
    family = config.get("model_type")
    if family not in READERS:
        raise UnknownFamily(f"no price for model_type {family!r}; there are {', '.join(READERS)}")
    try:
        return READERS[family](config)
    except KeyError as error:
        raise ValueError(f"the {family} config has no {error}, which its price depends on") from error
