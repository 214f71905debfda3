"""The constants of a run."""

from __future__ import annotations

import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.params import build_params
from inframind_gym.simulator.workflow.state import MAX_MODELS
from inframind_gym.tasks import load_tasks


def test_more_models_than_the_state_has_room_for() -> None:
    pool = load_pool("b200-2gpu")
    crowd = [
        pool.models[0].model_copy(update={"alias": f"model-{i}"}) for i in range(MAX_MODELS + 1)
    ]
    big = pool.model_copy(update={"models": tuple(crowd)})
    tasks = load_tasks("builtin")
    with pytest.raises(ConfigError, match=r"b200-2gpu.* has 17 models; at most 16"):
        build_params(big, [], tasks, np.zeros(len(tasks), np.int32), (10.0,), (0, 1), {})
