"""The state of CMA-ES can be saved and restored."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inframind_gym.calibration.cmaes import CMAES


def test_a_search_that_is_interrupted_goes_on_where_it_was() -> None:
    def bowl(points: NDArray[np.float64]) -> NDArray[np.float64]:
        return ((points - [3.0, -1.0]) ** 2 * [1.0, 30.0]).sum(axis=1)

    whole = CMAES(np.zeros(2), 0.5, samples=8)
    for generation in range(40):
        if generation == 5:
            state = {name: array.copy() for name, array in whole.state().items()}
        whole.tell(bowl(whole.ask(np.random.default_rng(generation))))
    rest = CMAES(np.zeros(2), 0.5, samples=8)
    rest.restore(state)
    assert rest.generation == 5
    for generation in range(5, 40):
        rest.tell(bowl(rest.ask(np.random.default_rng(generation))))
    assert rest.mean.tolist() == whole.mean.tolist()
    assert rest.step == whole.step
    assert bowl(whole.mean[None])[0] < 1.0
