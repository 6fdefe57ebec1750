"""Pretrained vision-language models run here, through transformers: one adapter, one small record of rules per family.

    system = LocalModel("Qwen/Qwen3-VL-8B-Instruct")          a hub id or a folder
    python evaluate.py memory=local memory.path=FOLDER split=SPLIT

`families` has the rules, `frames` the check that no frame and no pixel is lost on the way, `model` the adapter.
Needs the extra: pip install 'ecclab[vlm]'.
"""

from .families import FAMILIES, FamilyRules, rules_of
from .frames import FramesLost
from .model import LocalModel

__all__ = ["FAMILIES", "FamilyRules", "FramesLost", "LocalModel", "rules_of"]
