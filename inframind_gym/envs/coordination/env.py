"""InfraMind-Coordination-v0: what a supervisor of five agents does next before a deadline."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.checks import check_actions, check_options
from inframind_gym.envs.coordination.config import coordination_config
from inframind_gym.envs.coordination.context import CoordinationContext, CoordinationSpec
from inframind_gym.envs.coordination.observation import HIGH, LOW
from inframind_gym.envs.coordination.simulation import CoordinationSimulation
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.teams.coordination.rules import (
    FALLBACK,
    NAMES,
    NOTHING,
    NUM_ACTIONS,
    TERMS,
    milliseconds,
)
from inframind_gym.teams.coordination.scenarios import Scenario, find_scenario
from inframind_gym.teams.coordination.state import REASONS

RENDER_MODES = ("ansi", "rgb_array")


def coordination_spaces() -> tuple[spaces.Box, spaces.Discrete]:
    """Return the spaces of observations and actions."""
    return spaces.Box(LOW, HIGH), spaces.Discrete(NUM_ACTIONS)


def scenario_of(options: dict[str, Any] | None) -> Scenario | None:
    """Return the scenario that the options of a reset name.

    Raises:
        ConfigError: an option is unknown, or there is no such scenario.
    """
    name = check_options(options, ("scenario",)).get("scenario")
    return None if name is None else find_scenario(str(name))


class CoordinationEnv(gym.Env[Any, Any]):
    """Decide what router, planner, retrieval, synthesis and validation do before a deadline.

    ## Description

    A question is answered from passages, by five agents on one server. A router names a strategy of
    retrieval and guesses how complex the question is; a planner splits it into sub-tasks; searches
    bring passages, one by one or up to three at once; a synthesis merges what several searches
    brought; the answer is written and may be validated, and written again. All of it takes time on
    a server that reads 1,050 and writes 130 tokens a second, and the answer is wanted within 1.5 s
    where the question is simple, within 2 s else, within 3 s in any case. Calls fail or are slow
    now and then. The rules are in `inframind_gym.teams.coordination.rules` and `.state`, the
    simulated question is in `.simulate`, the constants are in `envs_configs/teams`.

    ## Action Space

    `Discrete(15)`:

    | action | |
    |---|---|
    | 0 | route |
    | 1 | plan |
    | 2-4 | search for the next sub-task, or for the whole question: vector, hybrid, graphrag |
    | 5-7 | search for up to three sub-tasks at once: vector, hybrid, graphrag |
    | 8 | rewrite the question for the searches |
    | 9 | synthesize: merge the passages of several searches |
    | 10 | validate the answer, which is written first where there is none |
    | 11 | trim the conversation to 108,800 tokens |
    | 12 | answer: pass the answer on, or write it and pass it on |
    | 13 | write the answer again, told of the issues |
    | 14 | fall back: one search and a short answer |

    `info["action_mask"]` marks the actions that are open. An action that is not open does nothing
    and takes an iteration.

    ## Observation Space

    `Box(49,)`, number by number in `inframind_gym.envs.coordination.observation`. It holds what the
    application sees, never the evidence or the score.

    ## Rewards and costs

    The answer's score (0-1), 0.2 for the share of its claims with a source, -0.1 if it was not
    validated, all at the end; -0.1 for every 2 s and -0.05 for every 4,096 tokens.
    The fallback earns its score alone. `info["rewards"]` holds the terms. `info["cost"]` is paid at
    the end: the time past the deadline of the question's complexity, over the deadline.

    ## Starting State

    A random question; in a conversation after five exchanges of up to 131,000 tokens, to one of
    which it may refer.

    ## Episode End

    Terminated by an answer, by the fallback, or with nothing where the conversation exceeds 131,072
    tokens. The fallback is forced after ten decisions, and as soon as it must begin to be there by
    3 s; what an agent is doing then is lost.

    ## Info

    "carried_out" is what was done, "" for nothing; "reason" is "" or one of answer, fallback,
    deadline, iterations, context. The last step adds "episode_cost", "episode_reward" and the
    numbers of `CoordinationSimulation.summaries`.

    ## Options of `reset`

    * `scenario`: "S1" to "S8" (`inframind_gym.teams.coordination.scenarios`).

    ## Arguments

    All are JSON types.

    * `team`: name or path of the constants (`envs_configs/teams`).
    * `conversation`: whether there are exchanges before the question, or for what share of them.
    * `supervisor`: "rule", whose decisions take a millisecond, or "model", which reads what is new
      and writes 20 tokens at each decision.
    * `max_num_seqs`: calls that the server decodes together; None: of the constants (3).
    * `prefill_tokens_per_s`: rate at which the server reads; None: of the constants (1,050).
    * `noise`: whether lengths vary and calls fail.
    * `fallback`: whether there is a fallback when time is up; without one the answer is worth 0.
    * `trim`: "both_ends" keeps the oldest 30 % and the newest 70 %, "newest" the newest alone.
    * `render_mode`: None, "ansi" (text) or "rgb_array".

    ## Version History

    * v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # noqa: RUF012

    def __init__(
        self,
        team: str = "coordination",
        conversation: bool | float = False,
        supervisor: Literal["rule", "model"] = "rule",
        max_num_seqs: int | None = None,
        prefill_tokens_per_s: float | None = None,
        noise: bool = True,
        fallback: bool = True,
        trim: Literal["both_ends", "newest"] = "both_ends",
        render_mode: str | None = None,
        **unknown_arguments: Any,
    ) -> None:
        arguments = {**locals(), **unknown_arguments}
        for name in ("self", "render_mode", "unknown_arguments"):
            del arguments[name]
        if render_mode not in (None, *RENDER_MODES):
            raise ConfigError(unknown("render_mode", render_mode, RENDER_MODES))
        self.render_mode = render_mode
        self.config = coordination_config(arguments)
        self.simulation = CoordinationSimulation(self.config, 1)
        self.observation_space, self.action_space = coordination_spaces()
        self._row = np.zeros(1, np.int64)
        self._running = False
        self._episode_cost = self._episode_reward = 0.0
        self._trace: list[tuple[str, int, int]] = []  # what was done, from when to when in ms

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: of the questions.
            options: `scenario`.

        Raises:
            ConfigError: an option is unknown, or there is no such scenario.
        """
        super().reset(seed=seed)
        scenario = scenario_of(options)
        observations = self.simulation.observations()
        self.simulation.start(self._row, [self.np_random], observations, scenario)
        self._running = True
        self._episode_cost = self._episode_reward = 0.0
        self._trace = []
        return observations[0], {"cost": 0.0, **self._mask()}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Carry out a decision.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            gymnasium.error.ResetNeeded: the episode is over.
        """
        if not self._running:
            raise gym.error.ResetNeeded("the episode is over; call reset() before step()")
        simulation, observations = self.simulation, self.simulation.observations()
        began = int(simulation.state.elapsed_ms[0])
        chosen = check_actions(action, np.array([NUM_ACTIONS]), 1)[:, 0]
        simulation.step(chosen, observations)
        terms = simulation.terms[0].tolist()
        reward, cost = sum(terms), float(simulation.costs()[0])
        self._episode_cost += cost
        self._episode_reward += reward
        done = int(simulation.action[0])
        carried_out = "" if done == NOTHING else NAMES[done]
        end = int(simulation.state.elapsed_ms[0])
        if done == FALLBACK and done != chosen[0]:  # forced, while something else was done
            lost_ms = end - int(milliseconds(simulation.settings.fallback_s))
            self._trace.append((NAMES[int(chosen[0])], began, lost_ms))
            began = lost_ms
        self._trace.append((carried_out, began, end))
        over = bool(simulation.state.over[0])
        info: dict[str, Any] = {
            "cost": cost,
            "rewards": dict(zip(TERMS, terms, strict=True)),
            "carried_out": carried_out,
            "reason": REASONS[int(simulation.state.reason[0])],
            **self._mask(),
        }
        if over:
            self._running = False
            info |= {
                "episode_cost": self._episode_cost,
                "episode_reward": self._episode_reward,
                **{name: v[0].item() for name, v in simulation.summaries(self._row).items()},
            }
        return observations[0], reward, over, False, info

    def _mask(self) -> dict[str, Any]:
        return {"action_mask": self.simulation.state.mask[0].astype(np.int8)}

    # Information for policies

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the actions that are open, (15,), as MaskablePPO takes them."""
        mask: NDArray[np.bool_] = self.simulation.state.mask[0].copy()
        return mask

    def context(self) -> CoordinationContext:
        """Return the input of a policy, arrays with a first axis of 1."""
        return self.simulation.contexts(self._row)

    def coordination_spec(self) -> CoordinationSpec:
        """Return the facts of the run that a policy is reset with."""
        return self.simulation.spec()

    def render(self) -> Any:
        """Return the question: lines ("ansi") or a picture, (540, 960, 3) uint8 ("rgb_array")."""
        if self.render_mode is None:
            return None
        from inframind_gym.envs.coordination import rendering

        if self.render_mode == "ansi":
            return rendering.text(self.simulation, self._trace)
        sums = self._episode_reward, self._episode_cost
        return rendering.draw_frame(self.simulation, self._trace, *sums)
