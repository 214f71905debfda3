"""The three prompt strategies of the executor (`spec/inframind.md` §2.2)."""

from __future__ import annotations

from typing import Final

STRATEGIES: Final = ("Flash", "Concise", "DeepThink")

STRATEGY_INSTRUCTIONS: Final = {
    "Flash": "Go straight to the answer. No reasoning.",
    "Concise": "Brief 2-3 key points, then answer.",
    "DeepThink": "Reason thoroughly step-by-step, verify result.",
}
