"""InfraMind-Coordination-v0: what a supervisor of five agents does next before a deadline."""

from __future__ import annotations

from typing import Any, Literal

from inframind_gym.envs.coordination.simulation import CoordinationSimulation
from inframind_gym.envs.teams import TeamEnv, arguments_of
from inframind_gym.teams.coordination.rules import FALLBACK, NAMES, NOTHING, TERMS, milliseconds
from inframind_gym.teams.coordination.state import REASONS


class CoordinationEnv(TeamEnv):
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

    simulation: CoordinationSimulation

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
        simulation = CoordinationSimulation.of(arguments_of(locals()), 1)
        self._set_up(simulation, render_mode)
        self._trace: list[tuple[str, int, int]] = []  # what was done, from when to when in ms

    def _reset_info(self) -> dict[str, Any]:
        self._trace = []
        return {}

    def _step_info(self, action: Any) -> dict[str, Any]:
        simulation, state = self.simulation, self.simulation.state
        done, end = int(simulation.action[0]), int(state.elapsed_ms[0])
        began = self._trace[-1][2] if self._trace else 0
        if done == FALLBACK and done != action:  # forced, while something else was done
            lost_ms = end - int(milliseconds(simulation.settings.fallback_s))
            self._trace.append((NAMES[int(action)], began, lost_ms))
            began = lost_ms
        carried_out = "" if done == NOTHING else NAMES[done]
        self._trace.append((carried_out, began, end))
        return {
            "rewards": dict(zip(TERMS, simulation.terms[0].tolist(), strict=True)),
            "carried_out": carried_out,
            "reason": REASONS[int(state.reason[0])],
        }

    def render(self) -> Any:
        """Return the question: lines ("ansi") or a picture, (540, 960, 3) uint8 ("rgb_array")."""
        if self.render_mode is None:
            return None
        from inframind_gym.envs.coordination import rendering

        if self.render_mode == "ansi":
            return rendering.text(self.simulation, self._trace)
        sums = self._episode_reward, self._episode_cost
        return rendering.draw_frame(self.simulation, self._trace, *sums)
