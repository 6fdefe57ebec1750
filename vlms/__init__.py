"""Pretrained vision-language models, local or served, and anything else that answers, as memories.

    protocol.py   what a memory is to the harness
    registry.py   names of memories
    prompts/      the paper's prompts, and how stream, candidate and prompt become one input
    parsing.py    from what a model wrote to a decision
    local/        models run here, through transformers
    server.py     models behind an OpenAI-compatible address

`lab/harness.py` asks; docs/memory_systems.md shows how to add a memory. The models' libraries are the extra `vlm`.
"""

from vlms.protocol import (
    NATURAL,
    SYNTHETIC,
    AnswerSet,
    Cost,
    MemoryFailure,
    MemorySystem,
    Observation,
    Query,
    Reply,
    WholePrompt,
)
from vlms.registry import available, build, lookup, register

__all__ = [
    "NATURAL",
    "SYNTHETIC",
    "AnswerSet",
    "Cost",
    "MemoryFailure",
    "MemorySystem",
    "Observation",
    "Query",
    "Reply",
    "WholePrompt",
    "available",
    "build",
    "lookup",
    "register",
]
