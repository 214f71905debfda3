"""InfraMind-TokenBudget-v0: which agent may still spend tokens, and when to stop."""

from __future__ import annotations

from typing import Any, Literal

from inframind_gym.envs.teams import TeamEnv, arguments_of
from inframind_gym.envs.token_budget.reward import TERMS
from inframind_gym.envs.token_budget.simulation import TokenBudgetSimulation
from inframind_gym.teams.token_budget.state import REASONS, suggestion


class TokenBudgetEnv(TeamEnv):
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

    simulation: TokenBudgetSimulation

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
        simulation = TokenBudgetSimulation.of(arguments_of(locals()), 1)
        self._set_up(simulation, render_mode)
        self._trace: list[tuple[int, float]] = []  # tokens and reported quality, for the picture

    def _reset_info(self) -> dict[str, Any]:
        state = self.simulation.state
        self._trace = [(int(state.ledger.spent[0]), 0.0)]
        info: dict[str, Any] = {"run_id": self.simulation.run_id(0)}
        budget, minimum = int(state.ledger.budget[0]), int(state.minimum_budget(self._row)[0])
        if budget < minimum:
            info["warning"] = suggestion(budget, minimum, int(state.seen[0]))
            info["suggested_minimum"] = minimum
        return info

    def _step_info(self, action: Any) -> dict[str, Any]:
        simulation, state = self.simulation, self.simulation.state
        self._trace.append((int(state.ledger.spent[0]), float(state.progress.score[0])))
        return {
            "rewards": dict(zip(TERMS, simulation.terms[0].tolist(), strict=True)),
            "event": simulation.event(0),
            "cutoff_reason": REASONS[int(state.reason[0])],
        }

    def render(self) -> Any:
        """Return the team: a table ("ansi") or a picture, (540, 960, 3) uint8 ("rgb_array")."""
        if self.render_mode != "rgb_array":
            return None if self.render_mode is None else self.simulation.table(0)
        from inframind_gym.envs.token_budget.rendering import draw_frame

        return draw_frame(self.simulation, self._trace, self._episode_reward, self._episode_cost)
