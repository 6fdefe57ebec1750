"""What a vision-language model's answer costs, in closed form, from the checkpoint's own config (ECCBench, B.3).

    p = price_vlm("path/to/checkpoint")             or the config.json as a dict, or a transformers config
    cost = p.response(clips=(64, 4), n_in=9_000, answer=3.0)
    cost.vision, cost.connector, cost.prefill, cost.decode, cost.write, cost.read
    python -m flops.vlm                             the price list of the paper's models

Convention of `flops.terms`: a product (m x k)(k x n) costs 2 m k n, everything else is free. No number here is measured
or fitted, and none is a constant where a config says it. `flops.vlm.shapes` reads configs, `flops.vlm.price` has the
formulas, docs/vlm_pricing.md what they give and what is assumed. Needs neither torch nor transformers.
"""

from .price import VlmCost, VlmPrice, price_vlm
from .shapes import Connector, Decoder, Shapes, Tower, UnknownFamily, read_shapes

__all__ = [
    "Connector",
    "Decoder",
    "Shapes",
    "Tower",
    "UnknownFamily",
    "VlmCost",
    "VlmPrice",
    "price_vlm",
    "read_shapes",
]
