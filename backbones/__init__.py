"""Memory backbones: the abstraction, the registry, one file per architecture, and the model around them."""

from __future__ import annotations

from .base import MemoryBackbone, MemoryLayer
from .model import MembershipModel
from .online import Answer, OnlineMemory, load_memory
from .registry import available, build, lookup, register
from .state import StackState, State

__all__ = [
    "Answer",
    "MembershipModel",
    "MemoryBackbone",
    "MemoryLayer",
    "OnlineMemory",
    "StackState",
    "State",
    "available",
    "build",
    "load_memory",
    "lookup",
    "register",
]
