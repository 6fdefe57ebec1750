"""One pretrained model as a memory: its prompt is the stream and the question, its answer is generated greedily.

Sampling settings of the checkpoint (temperature, top-p, repetition penalty) are switched off: an answer is a function
of the prompt. Nothing of a stream is kept between questions, so each pays for its own prefill, as the price says.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flops.vlm import VlmCost, VlmPrice, price_vlm
from vlms.parsing import MAX_NEW_TOKENS, charged_length, parse
from vlms.prompts import TextPart, VideoPart, compose
from vlms.protocol import Cost, MemoryFailure, Modality, Observation, Query, Reply, WholePrompt

from .families import FamilyRules, rules_of
from .frames import Seen, check, looked_at

try:
    import torchvision  # noqa: F401  (every video processor of transformers needs it)
    import transformers
    from transformers.video_utils import VideoMetadata
except ImportError as error:
    raise ImportError(f"{error.name} is missing") from error

GREEDY = {"do_sample": False, "num_beams": 1, "temperature": None, "top_p": None, "top_k": None,
          "repetition_penalty": 1.0}  # fmt: skip


class LocalModel(WholePrompt):
    """A checkpoint on this machine, of one of `FAMILIES`.

    Args:
        path: folder, or an id of the Hugging Face hub.
        name: in tables; the last part of `path` where None.
        revision: of a hub id.
        device: "auto" (a GPU if there is one), "cpu", "cuda:1", or "split" over all GPUs (needs accelerate).
        dtype: "auto" (the checkpoint's on a GPU, float32 on a CPU) or a torch name such as "bfloat16".
        attention: implementation, as transformers calls it.
        max_new_tokens: limit of an answer.
        thinking: what to tell a template that can switch thinking on and off; None leaves it alone.
        processor: settings of the processor that replace the family's.
        allow_downscale: go on when frames or pixels are lost, and mark the replies.
        beyond_context: ask even when the prompt exceeds the checkpoint's positions (the paper did).
        trust_remote_code: run code that comes with the checkpoint.

    Raises:
        MemoryFailure: no checkpoint there, no such family, no such device or dtype; says what to do.
    """

    modalities: frozenset[Modality] = frozenset({"text", "frames"})
    counts_flops = True

    def __init__(
        self,
        path: str,
        name: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        attention: str = "sdpa",
        max_new_tokens: int = MAX_NEW_TOKENS,
        thinking: bool | None = None,
        processor: Mapping[str, Any] | None = None,
        allow_downscale: bool = False,
        beyond_context: bool = False,
        trust_remote_code: bool = False,
    ):
        if max_new_tokens < 1:
            raise MemoryFailure(f"max_new_tokens={max_new_tokens}: an answer has at least one token")
        self.path, self.max_new_tokens, self.thinking = str(path), max_new_tokens, thinking
        self.allow_downscale, self.beyond_context = allow_downscale, beyond_context
        hub = {"revision": revision, "trust_remote_code": trust_remote_code}
        config = self._config(hub)
        self.rules: FamilyRules = rules_of(config.model_type)
        self.device, placed = place(device, dtype)
        self.settings = {**self.rules.processor, **(processor or {})}
        self.tokens_to = self._load(transformers.AutoProcessor, hub)
        loader = getattr(transformers, self.rules.loader)
        self.model = self._load(loader, hub | placed | {"attn_implementation": attention}).eval()
        if device != "split":
            self.model.to(self.device)
        self.price: VlmPrice = price_vlm(config, lora_rank=self._adapt())
        self.vision_ids = {
            token
            for holder in (config, getattr(config, "vision_config", None), getattr(config, "thinker_config", None))
            for key in ("image_token_id", "video_token_id")
            if isinstance(token := getattr(holder, key, None), int)
        }
        self.name = name or Path(self.path).name
        self.architecture = self.rules.name
        self.width = self.price.decoder.width
        self.opens_thought = self._prompt([TextPart("?")])[0].rstrip().endswith("<think>")
        stated = json.dumps(config.to_dict(), sort_keys=True, default=str)
        self.identity = {
            "path": self.path, "revision": revision, "config": hashlib.sha256(stated.encode()).hexdigest()[:16],
            "family": self.rules.name, "frames": self.rules.frames, "processor": json.loads(json.dumps(self.settings)),
            "dtype": str(self.model.dtype), "attention": attention, "max_new_tokens": max_new_tokens,
            "thinking": thinking, "allow_downscale": allow_downscale, "transformers": transformers.__version__,
        }  # fmt: skip

    # -- loading -------------------------------------------------------------------------------------------------------

    def _config(self, hub: Mapping[str, Any]) -> Any:
        folder = Path(self.path)
        if folder.is_dir() and not (folder / "config.json").is_file():
            raise MemoryFailure(
                f"no checkpoint in {folder}: it has no config.json; memory.path is a checkpoint's folder"
            )
        try:
            return transformers.AutoConfig.from_pretrained(self.path, **hub)
        except (OSError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise MemoryFailure(
                f"no checkpoint at {self.path!r}, neither a folder nor an id of the hub that can be read ({first}). "
                "Download it first, or correct memory.path; a checkpoint with code of its own needs "
                "memory.trust_remote_code=true"
            ) from error

    def _load(self, loader: Any, settings: Mapping[str, Any]) -> Any:
        try:
            return loader.from_pretrained(self.path, **settings)
        except ImportError as error:
            raise MemoryFailure(f"{self.path} needs the extra `vlm`: pip install 'ecclab[vlm]' ({error})") from error
        except (OSError, ValueError) as error:
            raise MemoryFailure(f"{self.path} does not load as {self.rules.name}: {error}") from error

    def _adapt(self) -> int | None:
        """Load the family's adapter where the checkpoint has one; its rank."""
        if self.rules.adapter is None or not (folder := Path(self.path) / self.rules.adapter).is_dir():
            return None
        rank = json.loads((folder / "adapter_config.json").read_text())["r"]
        try:
            self.model.load_adapter(str(folder), adapter_name="vision")
        except ImportError as error:
            raise MemoryFailure(f"the adapter {folder} needs peft: pip install peft ({error})") from error
        return rank

    # -- the protocol --------------------------------------------------------------------------------------------------

    def read(self, state: tuple[Observation, ...], query: Query) -> Reply:
        """Build the prompt, check it, generate.

        Raises:
            FramesLost: the processor lost frames or pixels.
            MemoryFailure: the prompt exceeds the checkpoint's positions, or the device's memory.
        """
        started = time.perf_counter()
        prompt, clips = self._prompt(compose(state, query))
        inputs = self._tokens(prompt, clips)
        n_in = int(inputs["input_ids"].shape[1])
        limit = self.price.decoder.positions
        if limit and n_in > limit and not self.beyond_context:
            raise MemoryFailure(
                f"question {query.item_id}: a prompt of {n_in} tokens exceeds the {limit} positions of {self.name}; "
                "leave such lengths out, or pass memory.beyond_context=true to ask all the same, as the paper did"
            )
        seen = None
        if clips:
            seen = looked_at(clips, inputs, self.price, self.vision_ids)
            seen = check(clips, seen, self.price, self.rules.frames, self.allow_downscale)
        ids, finish = self._generate(inputs, n_in)
        text = self.tokens_to.tokenizer.decode(ids, skip_special_tokens=True)
        answer = charged_length(parse(text, query.answer_set, finish, self.opens_thought), len(ids))
        cost = self.cost(seen, n_in, answer)
        return Reply(
            text=text, finish=finish, n_in=n_in, n_out=len(ids), frames_in=sum(map(len, clips)) if seen else None,
            frames_seen=sum(seen.frames) if seen else None, grid=seen.grid if seen else None,
            cost=Cost(cost.write, cost.read, cost.terms), seconds=time.perf_counter() - started,
            meta={} if seen is None or seen.intact else {"downscaled": True})  # fmt: skip

    def cost(self, seen: Seen | None, n_in: int, answer: float) -> VlmCost:
        """The price of what really went through the model: the frames and the sizes that it saw."""
        vision = connector = 0
        for frames, size in zip(seen.frames, seen.sizes, strict=True) if seen else ():
            vision += self.price.vision((frames,), size, self.rules.frames)
            connector += self.price.connector((frames,), size, self.rules.frames)
        return VlmCost(vision, connector, self.price.prefill(n_in), self.price.decode(n_in, answer))

    # -- the model -----------------------------------------------------------------------------------------------------

    def _prompt(self, parts: Sequence[TextPart | VideoPart]) -> tuple[str, list[np.ndarray]]:
        """The templated prompt, and the clips that its marks stand for, each uint8 [T, H, W, 3]."""
        clips = [np.stack(part.frames) for part in parts if isinstance(part, VideoPart)]
        content: Any = []
        for part in parts:
            if isinstance(part, TextPart):
                content.append({"type": "text", "text": part.text})
            elif self.rules.frames == "video":
                content.append({"type": "video"})
            else:
                content += [{"type": "image"}] * len(part.frames)
        if self.rules.inline or not clips:
            mark = getattr(self.tokens_to, "image_token", "")
            content = "\n".join(piece.get("text", mark) for piece in content)
        told = {} if self.thinking is None else {"enable_thinking": self.thinking}
        holder = self.tokens_to if self.tokens_to.chat_template else self.tokens_to.tokenizer
        turns = [{"role": "user", "content": content}]
        prompt = holder.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **told)
        for found, wanted in self.rules.rewrite.items():
            prompt = prompt.replace(found, wanted)
        return prompt, clips

    def _tokens(self, prompt: str, clips: Sequence[np.ndarray]) -> Any:
        """The processor's tensors for one prompt."""
        media: dict[str, Any] = {}
        if clips and self.rules.frames == "video":
            media["videos"] = list(clips)
            media["video_metadata"] = [
                VideoMetadata(
                    total_num_frames=len(c), fps=1.0, duration=float(len(c)), frames_indices=list(range(len(c)))
                )
                for c in clips
            ]
        elif clips:
            media["images"] = [frame for clip in clips for frame in clip]
        return self.tokens_to(text=[prompt], return_tensors="pt", **media, **(self.settings if clips else {}))

    def _generate(self, inputs: Any, n_in: int) -> tuple[list[int], str]:
        """Ids of the answer, and "stop" or "length"."""
        kept = {key: value for key, value in inputs.items() if isinstance(value, torch.Tensor)}
        kept = {key: value.to(self.device, self.model.dtype if value.is_floating_point() else None)
                for key, value in kept.items()}  # fmt: skip
        try:
            with torch.inference_mode():
                out = self.model.generate(**kept, max_new_tokens=self.max_new_tokens, **GREEDY)
        except torch.OutOfMemoryError as error:
            raise MemoryFailure(
                f"{self.name} ran out of memory on {self.device} with a prompt of {n_in} tokens; shorter streams, "
                "memory.dtype=bfloat16 or memory.device=split"
            ) from error
        ids = out[0, n_in:].tolist()
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, (list, tuple)) else [ends]
        return ids, "stop" if ids and ids[-1] in ends else "length"


def place(device: str, dtype: str) -> tuple[torch.device, dict[str, Any]]:
    """Where weights go, and in which precision: the device of the inputs, and settings for `from_pretrained`.

    Raises:
        MemoryFailure: a device that is not here, a dtype that torch does not have.
    """
    cuda = torch.cuda.is_available()
    try:
        where = torch.device(("cuda" if cuda else "cpu") if device in ("auto", "split") else device)
    except RuntimeError as error:
        raise MemoryFailure(f"memory.device={device!r}: auto, split, cpu or cuda:N") from error
    if where.type == "cuda" and not cuda:
        raise MemoryFailure(f"memory.device={device!r}, but this machine has no CUDA device; use memory.device=cpu")
    if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise MemoryFailure(f"memory.dtype={dtype!r} is no precision of torch; auto, float32, bfloat16 or float16")
    chosen = ("auto" if where.type == "cuda" else "float32") if dtype == "auto" else dtype
    settings: dict[str, Any] = {"dtype": chosen if chosen == "auto" else getattr(torch, chosen)}
    if device == "split":
        settings["device_map"] = "auto"
    return where, settings
