"""What models are told: roles, strategies, what agents read of one another, and how to answer.

Used by the live backend alone; the surrogate needs no texts.
"""

from __future__ import annotations

from inframind_gym.live.prompts.prompts import Message, Prompts
from inframind_gym.live.prompts.size import estimate_upper

__all__ = ["Message", "Prompts", "estimate_upper"]
