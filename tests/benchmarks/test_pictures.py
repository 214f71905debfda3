"""Pictures of the pages: frames of environments, and what the figures of the concepts count."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pictures import FRAMES, IMAGES, frame, in_flight, play


@pytest.mark.parametrize("name", ["assignment-env", "token-budget-env", "coordination-env"])
def test_a_frame_is_drawn(name: str) -> None:
    assert frame(name).size == (960, 540)


def test_every_frame_is_in_the_docs() -> None:
    assert all((IMAGES / f"{name}.png").is_file() for name in FRAMES)


def test_queries_in_flight() -> None:
    queries = np.zeros(2, [("arrival_s", "f8"), ("finish_s", "f8")])
    queries["arrival_s"], queries["finish_s"] = (1.0, 2.0), (5.0, 3.0)
    assert in_flight(queries, np.array([0.0, 1.5, 2.5, 4.0, 6.0])).tolist() == [0, 1, 2, 1, 0]
    queries = play("bid_price", 20)
    assert len(queries) == 20 and (np.diff(queries["arrival_s"]) >= 0).all()
