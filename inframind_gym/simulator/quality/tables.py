"""Constants of the response model as arrays for the compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.workflow.topology import STRATEGIES
from inframind_gym.simulator.workload import TaskProfile
from inframind_gym.tasks import TaskSet

# Response model and lengths of one dataset; fields as in `workload/config.py`.
PROFILE: Final = np.dtype(
    [
        ("sigma_query", "f8"),
        ("sigma_call", "f8"),
        ("difficulty_slope", "f8"),
        ("discrimination", "f8"),
        ("difficulty_sd", "f8"),
        ("role_gain", "f8"),
        ("info_gain", "f8"),
        ("final_info_gain", "f8"),
        ("reflection_gain", "f8"),
        ("latent_correlation", "f8"),
        ("truncated_right_frac", "f8"),
    ],
    align=True,
)


class ResponseTables(NamedTuple):
    """P profiles (datasets), M models, S strategies, T tasks."""

    profile: NDArray[Any]  # (P,) PROFILE
    log_tokens: NDArray[np.float64]  # (P, M) log of the median answer length
    ability: NDArray[np.float64]  # (P, M) logits
    log_strategy: NDArray[np.float64]  # (P, S) log of the strategy's length factor
    strategy_gain: NDArray[np.float64]  # (P, S) logits
    task_profile: NDArray[np.int32]  # (T,)
    task_difficulty: NDArray[np.float32]  # (T,) standard normal units
    max_output_tokens: NDArray[np.int64]  # (1,)


def response_tables(
    profiles: Sequence[TaskProfile],
    aliases: Sequence[str],
    tasks: TaskSet,
    task_profile: NDArray[np.int32],
    max_output_tokens: int,
) -> ResponseTables:
    """Tabulate the response model for the models `aliases` and the tasks.

    Args:
        profiles: (P) what is known of each dataset.
        aliases: (M) the pool's models, in its order.
        tasks: the T tasks.
        task_profile: (T,) index into `profiles`.
        max_output_tokens: where answers are cut.
    """
    flat = np.zeros(len(profiles), PROFILE)
    for p, of in enumerate(profiles):
        quality, output = of.quality, of.output
        flat[p] = (
            output.sigma_query,
            output.sigma_call,
            output.difficulty_slope,
            quality.discrimination,
            quality.difficulty_sd,
            quality.role_gain,
            quality.info_gain,
            quality.final_info_gain,
            quality.reflection_gain,
            quality.latent_correlation,
            quality.truncated_right_frac,
        )
    return ResponseTables(
        profile=flat,
        log_tokens=np.log(
            [[w.models[a].output_tokens_median for a in aliases] for w in profiles]
        ).astype(np.float64),
        ability=np.array([[w.models[a].ability for a in aliases] for w in profiles], np.float64),
        log_strategy=np.log(
            [[w.output.strategy_factor[s] for s in STRATEGIES] for w in profiles]
        ).astype(np.float64),
        strategy_gain=np.array(
            [[w.quality.strategy_gain[s] for s in STRATEGIES] for w in profiles], np.float64
        ),
        task_profile=np.ascontiguousarray(task_profile, np.int32),
        task_difficulty=np.ascontiguousarray(tasks.difficulty, np.float32),
        max_output_tokens=np.array([max_output_tokens], np.int64),
    )
