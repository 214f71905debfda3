"""InfraMind-TokenBudget-v0: which agent may still spend tokens, and when to stop."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.checks import check_actions, check_options
from inframind_gym.envs.token_budget.config import TokenBudgetConfig, token_budget_config
from inframind_gym.envs.token_budget.context import TokenBudgetContext, TokenBudgetSpec
from inframind_gym.envs.token_budget.observation import HIGH, LOW
from inframind_gym.envs.token_budget.reward import TERMS
from inframind_gym.envs.token_budget.simulation import TokenBudgetSimulation
from inframind_gym.errors import ActionError, ConfigError, unknown
from inframind_gym.teams.token_budget.rules import NUM_ACTIONS
from inframind_gym.teams.token_budget.state import REASONS, suggestion

RENDER_MODES = ("ansi", "rgb_array")
CONTINUOUS_SIZE = 4  # logits of three shares, and of stopping


def token_budget_spaces(
    config: TokenBudgetConfig,
) -> tuple[spaces.Box, spaces.Discrete | spaces.Box]:
    """Return the spaces of observations and actions."""
    if config.action == "continuous":
        return spaces.Box(LOW, HIGH), spaces.Box(-1.0, 1.0, (CONTINUOUS_SIZE,), np.float32)
    return spaces.Box(LOW, HIGH), spaces.Discrete(NUM_ACTIONS)


def continuous_actions(actions: Any, num_envs: int) -> NDArray[np.float64]:
    """Return continuous actions as a new array (num_envs, 4).

    Raises:
        ActionError: a wrong shape, or a number that is not finite.
    """
    try:
        array = np.array(actions, np.float64)
    except (TypeError, ValueError):
        raise ActionError(f"actions must be numbers, got {actions!r:.80}") from None
    if array.size != num_envs * CONTINUOUS_SIZE or array.shape[-1:] != (CONTINUOUS_SIZE,):
        raise ActionError(
            f"actions have shape {array.shape}; expected {num_envs} of {CONTINUOUS_SIZE} numbers "
            "each"
        )
    if not np.isfinite(array).all():
        raise ActionError("actions must be finite numbers, got nan or inf")
    return array.reshape(num_envs, CONTINUOUS_SIZE)


class TokenBudgetEnv(gym.Env[Any, Any]):
    """Decide who of planner, executor and critic spends the next tokens, and when to stop.

    ## Description

    A team answers a task on a budget of tokens. The planner plans, the executor drafts and revises,
    the critic finds defects, which revisions then resolve. The budget is a hard ceiling; each agent
    has a soft allocation in it. A pre-flight guesses the complexity of the task; after each call an
    LLM rates the product, too kindly. The rules are in `inframind_gym.teams.token_budget.rules`,
    the simulated task is in `.simulate`, the constants are in `envs_configs/teams`.

    ## Action Space

    `Discrete(16)`:

    | action | |
    |---|---|
    | 0-8 | call planner, executor or critic (a // 3) at size S, M or L (a % 3) |
    | 9-11 | cut planner, executor or critic: its allocation returns to the pool |
    | 12-14 | reallocate what the others have not spent to planner, executor or critic |
    | 15 | stop |

    `info["action_mask"]` marks the actions that are open. A call is refused where ceiling or
    allocation leave too little for an answer, a review before there is a draft. An action that is
    not open does nothing and takes a step.

    With `action="continuous"` `Box(-1, 1, (4,))`: three logits (times 4), whose softmax shares out
    all that remains, and a number that stops above 0.5. Planner, executor, critic, executor, … are
    then called in turn, at the largest size that their share pays. There is no mask.

    ## Observation Space

    `Box(32,)`, number by number in `inframind_gym.envs.token_budget.observation`. It holds proxies
    of the quality, never the quality.

    ## Rewards and costs

    True quality that was gained less the price of the tokens, over 100. `info["rewards"]` holds
    the terms "quality" and "tokens" (`inframind_gym.envs.token_budget.reward`). `info["cost"]`:
    tokens of the step over the budget.

    ## Starting State

    A task of random complexity; the pre-flight (200 tokens) is paid. A budget below the minimum of
    that complexity adds "warning" and "suggested_minimum" to `info`.

    ## Episode End

    Terminated by stopping, when all agents are cut, or when no call can be paid. Truncated after
    `max_steps` decisions.

    ## Info

    "event" is the event that WebSocket clients of the application get, an empty dict for a
    reallocation; "cutoff_reason" is "" or one of roi, policy, stop, budget, all_cut, steps,
    refused. The last step adds "episode_cost", "episode_reward" and the numbers of
    `TokenBudgetSimulation.summaries`.

    ## Arguments

    All are JSON types.

    * `team`: name or path of the constants (`envs_configs/teams`).
    * `profile`: "simulated", or the name of a script in that file ("seed-example").
    * `budget`: tokens, or [least, most], from which each episode draws (log-uniform); rounded down
      to `token_unit` (50).
    * `strategy`: mode of the initial allocations: frontload, critique_heavy or adaptive.
    * `price`: points of quality (0-100) that a token costs.
    * `overhead`: whether pre-flight and self-evaluations take tokens.
    * `scope_down`: narrow a task whose minimum the budget is below: less complex, worth less.
    * `max_steps`: decisions of an episode.
    * `action`: "discrete" or "continuous".
    * `render_mode`: None, "ansi" (text) or "rgb_array".

    ## Version History

    * v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # noqa: RUF012

    def __init__(
        self,
        team: str = "token_budget",
        profile: str = "simulated",
        budget: int | list[int] = 20_000,
        strategy: Literal["frontload", "critique_heavy", "adaptive"] = "adaptive",
        price: float = 0.001,
        overhead: bool = True,
        scope_down: bool = False,
        max_steps: int = 20,
        action: Literal["discrete", "continuous"] = "discrete",
        render_mode: str | None = None,
        **unknown_arguments: Any,
    ) -> None:
        arguments = {**locals(), **unknown_arguments}
        for name in ("self", "render_mode", "unknown_arguments"):
            del arguments[name]
        if render_mode not in (None, *RENDER_MODES):
            raise ConfigError(unknown("render_mode", render_mode, RENDER_MODES))
        self.render_mode = render_mode
        self.config = token_budget_config(arguments)
        self.simulation = TokenBudgetSimulation(self.config, 1)
        self.observation_space, self.action_space = token_budget_spaces(self.config)
        self._row = np.zeros(1, np.int64)
        self._running = False
        self._episode_cost = self._episode_reward = 0.0
        self._trace: list[tuple[int, float]] = []  # tokens and reported quality, for the picture

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode.

        Raises:
            ConfigError: an option is given; there are none.
        """
        super().reset(seed=seed)
        check_options(options, ())
        observations = self.simulation.observations()
        self.simulation.start(self._row, [self.np_random], observations)
        self._running = True
        self._episode_cost = self._episode_reward = 0.0
        state = self.simulation.state
        self._trace = [(int(state.ledger.spent[0]), 0.0)]
        info: dict[str, Any] = {"cost": 0.0, "run_id": self.simulation.run_id(0), **self._mask()}
        budget, minimum = int(state.ledger.budget[0]), int(state.minimum_budget(self._row)[0])
        if budget < minimum:
            info["warning"] = suggestion(budget, minimum, int(state.seen[0]))
            info["suggested_minimum"] = minimum
        return observations[0], info

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Carry out a decision.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            gymnasium.error.ResetNeeded: the episode is over.
        """
        if not self._running:
            raise gym.error.ResetNeeded("the episode is over; call reset() before step()")
        simulation, observations = self.simulation, self.simulation.observations()
        if self.config.action == "continuous":
            simulation.step(continuous_actions(action, 1), observations)
        else:
            simulation.step(check_actions(action, np.array([NUM_ACTIONS]), 1)[:, 0], observations)
        terms = simulation.terms[0].tolist()
        reward, cost = sum(terms), float(simulation.costs()[0])
        self._episode_cost += cost
        self._episode_reward += reward
        state = simulation.state
        self._trace.append((int(state.ledger.spent[0]), float(state.progress.score[0])))
        over, truncated = bool(state.over[0]), bool(simulation.truncated()[0])
        info: dict[str, Any] = {
            "cost": cost,
            "rewards": dict(zip(TERMS, terms, strict=True)),
            "event": simulation.event(0),
            "cutoff_reason": REASONS[int(state.reason[0])],
            **self._mask(),
        }
        if over:
            self._running = False
            info |= {
                "episode_cost": self._episode_cost,
                "episode_reward": self._episode_reward,
                **simulation.summary(0),
            }
        return observations[0], reward, over and not truncated, truncated, info

    def _mask(self) -> dict[str, Any]:
        if self.config.action == "continuous":
            return {}
        return {"action_mask": self.simulation.state.mask[0].astype(np.int8)}

    # Information for policies

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the actions that are open, (16,), as MaskablePPO takes them."""
        mask: NDArray[np.bool_] = self.simulation.state.mask[0].copy()
        return mask

    def context(self) -> TokenBudgetContext:
        """Return the input of a policy, arrays with a first axis of 1."""
        return self.simulation.contexts(self._row)

    def token_budget_spec(self) -> TokenBudgetSpec:
        """Return the facts of the run that a policy is reset with."""
        return self.simulation.spec()

    def render(self) -> Any:
        """Return the team: a table ("ansi") or a picture, (540, 960, 3) uint8 ("rgb_array")."""
        if self.render_mode != "rgb_array":
            return None if self.render_mode is None else self.simulation.table(0)
        from inframind_gym.envs.token_budget.rendering import draw_frame

        return draw_frame(self.simulation, self._trace, self._episode_reward, self._episode_cost)
