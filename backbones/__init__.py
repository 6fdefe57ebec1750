"""Memory backbones: the abstraction, the registry, one file per architecture, and the model around them."""

from __future__ import annotations

from .base import MemoryBackbone, MemoryLayer
from .model import MembershipModel
from .registry import available, build, lookup, register
from .state import StackState, State

__all__ = [
    "MembershipModel",
    "MemoryBackbone",
    "MemoryLayer",
    "StackState",
    "State",
    "available",
    "build",
    "lookup",
    "register",
]
