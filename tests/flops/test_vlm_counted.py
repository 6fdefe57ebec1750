"""The closed form against what runs: toy checkpoints of every family under a FLOP counter, equal to the last product.

Four differences are known, and named here. A causal call multiplies all N^2 pairs where the paper charges N (N + 1) / 2
(the prediction uses N^2). Rotary angles are outer products, which the paper does not count. Phi-4's tower ends in a
pooling head whose result nobody uses. Qwen3-Omni projects every token of the prompt to the vocabulary, not the last.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("torchvision")
pytest.importorskip("transformers")

from flops.count import Product, count
from tests.vlms.tiny import FAMILIES, tiny_checkpoint
from vlms.local import LocalModel
from vlms.prompts import TextPart, VideoPart


def charged(product: Product) -> int:
    """FLOPs that the paper charges for a product that ran; see the module docstring."""
    m, k, _ = product.shape
    rotary = product.parameter is None and k == 1
    pooling_head = m == 1 if product.parameter is None else ".img_processor.head." in product.parameter
    if rotary or pooling_head:
        return 0
    return product.flops // m if product.parameter == "lm_head.weight" else product.flops


@pytest.mark.parametrize("family", FAMILIES)
def test_closed_form_is_what_runs(family, tmp_path):
    """A prompt of two clips of different lengths, one odd, with frames that are no whole number of windows."""
    system = LocalModel(str(tiny_checkpoint(family, tmp_path, taught=False)), attention="eager")
    if hasattr(system.model, "set_experts_implementation"):
        system.model.set_experts_implementation("eager")
    price, mode = system.price, system.rules.frames
    size, lengths = ((448, 448), (1, 1)) if mode == "images" else ((128, 192), (3, 2))
    rng = np.random.default_rng(0)
    parts = [VideoPart(tuple(rng.integers(0, 255, (n, *size, 3), dtype=np.uint8))) for n in lengths]
    prompt, clips = system._prompt([TextPart("Main video:"), *parts, TextPart("Answer {0} or {1}.")])
    inputs = {k: v for k, v in system._tokens(prompt, clips).items() if isinstance(v, torch.Tensor)}
    n = inputs["input_ids"].shape[1]

    counted = count(system.model, **inputs, logits_to_keep=1, use_cache=False, module=system.model)
    found = sum(charged(product) for product in counted.products)

    vision, connector = price.vision(lengths, size, mode), price.connector(lengths, size, mode)
    assert found == vision + connector + price.per_token * n + price.per_pair * n * n + price.per_vocabulary
    assert price.prefill(n) == price.per_token * n + price.per_pair * n * (n + 1) / 2
