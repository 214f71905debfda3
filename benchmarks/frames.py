"""Pictures of the environments' pages: a frame of an episode of each, as "rgb_array" draws it.

python -m benchmarks.frames
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import gymnasium as gym
from PIL import Image

import inframind_gym  # noqa: F401  (registers the environments)

IMAGES: Final = Path(__file__).resolve().parents[1] / "docs/images"


class Frame(NamedTuple):
    """An episode, drawn after some decisions.

    `actions` are what is done: a number of sampled actions, or the actions.
    """

    environment: str
    actions: int | tuple[int, ...]
    arguments: dict[str, Any]


FRAMES: Final = {
    "executor-env": Frame("Executor", 3, {"planner": {"topology": "Debate", "num_agents": 3}}),
    "planner-env": Frame("Planner", 1, {}),
    "stream": Frame("Stream", 130, {"arrival_rate_per_min": 100.0}),
    "placement-env": Frame("Placement", 2, {"demand": "shifting"}),
    "assignment-env": Frame("Assignment", 30, {"load": "queue", "arrivals": "skewed"}),
    "token-budget-env": Frame("TokenBudget", (1, 5, 7, 4, 7, 4), {"budget": 16000}),
    "coordination-env": Frame("Coordination", (0, 1, 6, 9, 10), {}),
}


def frame(of: Frame, seed: int = 0) -> Image.Image:
    """Return the picture, 960 x 540 pixels."""
    env = gym.make(f"InfraMind-{of.environment}-v0", render_mode="rgb_array", **of.arguments)
    env.action_space.seed(seed)
    _, info = env.reset(seed=seed)
    for action in of.actions if isinstance(of.actions, tuple) else of.actions * (None,):
        sampled = env.action_space.sample(mask=info["action_mask"])
        _, _, terminated, truncated, info = env.step(sampled if action is None else action)
        if terminated or truncated:
            break
    image: Any = env.render()
    return Image.fromarray(image)


if __name__ == "__main__":
    for name, of in FRAMES.items():
        frame(of).quantize(64).save(IMAGES / f"{name}.png", optimize=True)
        print(f"docs/images/{name}.png")
