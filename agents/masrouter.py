"""MasRouter (ACL 2025): REINFORCE on single queries, planned and routed by their text alone.

    python -m agents.train --config masrouter --seed 0 --out runs/masrouter/seed0

    loss = CE(task) + mean(-log p * (solved - cost_rate * dollars)) + 0.001 * VAE

Every row of the batch is one query that has all servers for itself, so neither load nor budget
matters, as for a router that knows of neither. One update routes a batch of 16 queries with the
present weights, carries them out on the surrogate, and takes one step of Adam. Everything random is
a function of (seed, update, row): a training that was stopped goes on from its last checkpoint to
the same weights. The router that is kept is the one with the best utility on queries of the
validation split.

MasRouter's cost is what an API charges for the tokens of all calls of a query. The servers here are
one's own: `usd_per_million_tokens` names a price for each model (`agents/configs/masrouter.yaml`),
the same for prompt and output tokens. The calls are recorded, so that every token is charged to the
model that read or wrote it, those of second calls and of the final call included.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from agents.config import EnvChoice
from agents.planner_network import (
    Candidates,
    Plan,
    PlannerNet,
    PlannerOutput,
    pick,
    present,
    text_embeddings,
)
from agents.runs import (
    Tracker,
    check_resume,
    load_state,
    run_of,
    seed_of,
    state_of,
    use_one_thread,
    weights_of,
)
from inframind_gym.configs import NonNegative, Positive, PositiveInt, StrictModel
from inframind_gym.envs.routing.config import env_config
from inframind_gym.envs.routing.simulation import DECISION, Simulation
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policies import checkpoint
from inframind_gym.policies.masrouter import NumpyModelRouter, agent_of, pick_all
from inframind_gym.policies.planner_network import PLAN_DRAWS
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import CONTEXT
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, TOPOLOGIES

ROUTED_DRAWS: Final = PLAN_DRAWS + MAX_AGENTS  # uniform numbers for a plan and its models
LAST, BEST = "last", "best"  # folders of checkpoints: where to go on from, and what to use
MILLION: Final = 1e6
_TRAINING, _VALIDATION, _NOISE = 0, 1, 2  # uses of a seed
_ANY_RATE_PER_MIN: Final = 1.0  # there is one query, which arrives when it does
_ANY_BUDGET_S: Final = 1000.0


class MasRouterConfig(StrictModel):
    """MasRouter's configuration, `agents/configs/masrouter.yaml`."""

    algorithm: Literal["masrouter"] = "masrouter"
    env: EnvChoice = EnvChoice()  # the world; its load and budgets do not matter
    updates: PositiveInt = 1500  # steps of the optimiser
    batch_size: PositiveInt = 16  # queries an update
    learning_rate: Positive = 0.01  # of Adam
    # solved queries that a dollar is worth; 5, 10 and 15 in the measured runs
    cost_rate: NonNegative = 10.0
    vae_weight: NonNegative = 0.001  # of the encoders' loss
    # price of each model, by its alias
    usd_per_million_tokens: Annotated[dict[str, NonNegative], Field(min_length=1)]
    # updates between two validations, each followed by a checkpoint
    validate_every: PositiveInt = 50
    validation_queries: PositiveInt = 1024  # queries of the validation split, the same every time


class Choices(NamedTuple):
    """Decisions of a router for R queries, from their texts."""

    topology: NDArray[np.int64]  # (R,)
    num_agents: NDArray[np.int64]  # (R,) 1..6
    roles: NDArray[np.int64]  # (R, 6) within the domain
    models: NDArray[np.int64]  # (R, 6) of each agent


class Outcome(NamedTuple):
    """Ends of R queries."""

    solved: NDArray[np.float64]  # (R,) 0 or 1
    usd: NDArray[np.float64]  # (R,)
    latency_s: NDArray[np.float64]  # (R,)


class IdleQueries:
    """R queries side by side, each alone on its servers.

    Args:
        environment: arguments of the environment: pool, workload, tasks, split, ...
        rows: R.
        usd_per_million_tokens: price of each of the pool's models, by its alias.

    Attributes:
        embeddings: (T, 384) of the tasks.

    Raises:
        ConfigError: a model has no price, or an argument is wrong.
    """

    def __init__(
        self,
        environment: Mapping[str, Any],
        rows: int,
        usd_per_million_tokens: Mapping[str, float],
    ) -> None:
        arguments = {
            **environment,
            "num_queries": 1,
            "level": "joint",
            "observation": "index",
            "record_calls": True,
        }
        self.simulation = Simulation(env_config(arguments), rows, one_query=False)
        self.models = self.simulation.pool.aliases
        self.prices = np.zeros(len(self.models))
        for m, alias in enumerate(self.models):
            if alias not in usd_per_million_tokens:
                raise ConfigError(
                    "usd_per_million_tokens: "
                    f"{unknown('model', alias, usd_per_million_tokens)} Add its price."
                )
            self.prices[m] = usd_per_million_tokens[alias]
        self.embeddings = self.simulation.tasks.embeddings
        share = self.simulation.policy_spec().strategy_share
        self._strategy_edges = share.cumsum()[:-1]
        self._num_strategies = len(share)
        self._rows = np.arange(rows)
        self._generators: list[np.random.Generator] = []
        self._observations, _ = self.simulation.buffers()
        self._contexts: NDArray[Any] = np.zeros(rows, CONTEXT)

    def begin(self, seeds: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Let a new query arrive in every row.

        Args:
            seeds: R keys; a row's query and all its luck are functions of its key.

        Returns:
            Tasks (R,), indices into `embeddings`, and their domains (R,).
        """
        rows = len(self._rows)
        self._generators = [np.random.default_rng(key) for key in seeds]
        self.simulation.start(
            self._rows,
            self._generators,
            np.full(rows, _ANY_RATE_PER_MIN),
            np.full(rows, _ANY_BUDGET_S),
            self._observations,
            self._contexts,
        )
        return self._contexts["task"].astype(np.int64), self._contexts["domain"].astype(np.int64)

    def uniforms(self, columns: int) -> NDArray[np.float64]:
        """Return numbers (R, columns) in (0, 1) for draws, from each row's generator."""
        return np.stack([g.random(columns) for g in self._generators])

    def finish(self, choices: Choices) -> Outcome:
        """Carry out the choices; strategies are drawn from the workload's measured mix.

        MasRouter has no prompt strategies.
        """
        simulation, rows = self.simulation, len(self._rows)
        actions = np.zeros((rows, PLAN_ACTIONS + 1), np.int64)
        plan = (choices.topology, choices.num_agents - 1, choices.roles)
        actions[:, :PLAN_ACTIONS] = np.column_stack(plan)
        strategies = np.searchsorted(self._strategy_edges, self.uniforms(MAX_NODES))
        rewards, costs = np.empty(rows), np.empty(rows)
        status = np.full(rows, DECISION)
        while (status == DECISION).any():
            status = simulation.step(actions, self._observations, self._contexts, rewards, costs)
            node = self._contexts["node"].astype(np.int64)
            agent = agent_of(node, choices.num_agents)
            model = choices.models[self._rows, agent]
            actions[:, -1] = model * self._num_strategies + strategies[self._rows, node]
        ended = simulation.state.completed[:, 0]
        return Outcome(
            ended["solved"].astype(np.float64), self._usd(), ended["latency_s"].astype(np.float64)
        )

    def _usd(self) -> NDArray[np.float64]:
        """Return dollars (R,) for the tokens of every call."""
        recorded = self.simulation.state.stream["recorded_calls"]
        calls = self.simulation.state.call[:, : int(recorded.max())]
        tokens = calls["prompt_tokens"].astype(np.float64) + calls["output_tokens"]
        was_made = np.arange(calls.shape[1]) < recorded[:, None]
        usd: NDArray[np.float64] = (tokens * self.prices[calls["model"]] * was_made).sum(axis=1)
        return usd / MILLION


class Routed(NamedTuple):
    """A plan and the models of its agents, for B queries."""

    output: PlannerOutput
    plan: Plan
    models: Tensor  # (B, 6) int64, index into the pool; the first `num_agents` of a row are used
    log_prob: Tensor  # (B,) of the plan and the models
    vae_loss: Tensor  # () of all encoders


class MasRouterNet(nn.Module):
    """Planner, and the router of models: one softmax(cosine) over the pool for all agents.

    In a checkpoint the weights are `planner.*`, which InfraMind's planner starts from, and
    `llm_router.*`, which it drops.

    Args:
        models: aliases of the pool's models, in the order of its actions.

    Raises:
        ConfigError: a model has no text (`agents/data/planner_texts.yaml`).
    """

    def __init__(self, models: Sequence[str]) -> None:
        super().__init__()
        self.planner = PlannerNet()
        self.llm_router = Candidates(text_embeddings(models), context=3)

    def forward(
        self,
        query: Tensor,
        domain: Tensor,
        uniforms: Tensor,
        generator: torch.Generator | None = None,
    ) -> Routed:
        """Plan and route B queries.

        Args:
            query: (B, 384) embeddings.
            domain: (B,) their domains.
            uniforms: (B, 14) numbers in (0, 1): eight for the plan, six for the models.
            generator: of the latents' noise; None: no noise.
        """
        output = self.planner(query, domain, generator)
        plan = self.planner.choose(output, uniforms[:, :PLAN_DRAWS])
        candidates, loss = self.llm_router.encode(generator)
        logits = self.model_logits(output, plan, candidates)
        draws = uniforms[:, PLAN_DRAWS:].T
        models = torch.stack([pick(logits, draws[k]) for k in range(MAX_AGENTS)], dim=-1)
        each = torch.log_softmax(logits, dim=-1).gather(-1, models)
        of_models = each.masked_fill(~present(plan.num_agents), 0.0).sum(dim=-1)
        log_prob = self.planner.log_prob(output, plan) + of_models
        return Routed(output, plan, models, log_prob, output.vae_loss + loss)

    def model_logits(self, output: PlannerOutput, plan: Plan, candidates: Tensor) -> Tensor:
        """Return logits (B, M) of an agent's model, the same for all agents of a query."""
        parts = [output.query, output.modes[plan.topology], self.planner.mean_role(output, plan)]
        return self.llm_router.scores(self.llm_router.context(torch.cat(parts, dim=-1)), candidates)


class Training:
    """One training: the network, its optimiser and the queries.

    Args:
        config: what to train.
        seed: of everything random.
    """

    def __init__(self, config: MasRouterConfig, seed: int) -> None:
        self.config, self.seed = config, seed
        self.run = run_of(config, seed)
        prices = config.usd_per_million_tokens
        train, val = config.env.arguments("train"), config.env.arguments("val")
        self.queries = IdleQueries(train, config.batch_size, prices)
        self.validation = IdleQueries(val, config.validation_queries, prices)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.net = MasRouterNet(self.queries.models)
        parameters = self.net.parameters()
        self.optimizer = torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
        self.embeddings = torch.tensor(self.queries.embeddings)
        self.noise = torch.Generator()
        self.updates = 0
        self.best_updates, self.best_utility = 0, -np.inf

    def update(self) -> dict[str, float]:
        """Route one batch of queries and learn from it; return metrics of the batch."""
        config = self.config
        keys = [(self.seed, _TRAINING, self.updates, row) for row in range(config.batch_size)]
        tasks, domains = self.queries.begin(keys)
        uniforms = torch.tensor(self.queries.uniforms(ROUTED_DRAWS), dtype=torch.float32)
        self.noise.manual_seed(seed_of(self.seed, _NOISE, self.updates))
        domain = torch.tensor(domains)
        routed = self.net(self.embeddings[tasks], domain, uniforms, self.noise)
        chosen = (part.numpy() for part in (*routed.plan, routed.models))
        outcome = self.queries.finish(Choices(*chosen))
        utility = outcome.solved - config.cost_rate * outcome.usd

        policy_loss = -(routed.log_prob * torch.tensor(utility, dtype=torch.float32)).mean()
        task_loss = F.cross_entropy(routed.output.task_logits, domain)
        loss = task_loss + policy_loss + config.vae_weight * routed.vae_loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        found = routed.output.task_logits.argmax(dim=-1) == domain
        return {
            **_returns(outcome, utility),
            "charts/task_accuracy": float(found.float().mean()),
            "charts/num_agents": float(routed.plan.num_agents.float().mean()),
            "losses/policy": float(policy_loss.detach()),
            "losses/task": float(task_loss.detach()),
            "losses/vae": float(routed.vae_loss.detach()),
        }

    def validate(self) -> dict[str, float]:
        """Let the present router, as it is shipped, answer the validation queries."""
        queries = self.validation
        rows = range(self.config.validation_queries)
        tasks, domains = queries.begin([(_VALIDATION, row) for row in rows])
        router = NumpyModelRouter(weights_of(self.net))
        choices = route(router, queries.embeddings[tasks], domains, queries.uniforms)
        outcome = queries.finish(choices)
        utility = outcome.solved - self.config.cost_rate * outcome.usd
        shares = shares_of(choices, queries.models)
        self.best_updates, self.best_utility = max(
            (self.best_updates, self.best_utility),
            (self.updates, float(utility.mean())),
            key=lambda found: found[1],
        )
        return {f"val/{k.split('/')[-1]}": v for k, v in _returns(outcome, utility).items()} | {
            f"shares/{name}": share for name, share in shares.items()
        }

    def save(self, out: Path) -> None:
        """Write the checkpoint to go on from, and the router that was best in a validation."""
        if self.best_updates == self.updates:
            checkpoint.save(out / BEST, weights_of(self.net), self.facts())
        checkpoint.save(out / LAST, state_of(self.net, self.optimizer), self.facts())

    def restore(self, out: Path, *, resume: bool) -> None:
        """Go on from the last checkpoint of this training in `out`, if there is one.

        Raises:
            ConfigError: there is one and `resume` is false, or it belongs to another training.
        """
        if not checkpoint.exists(out / LAST):
            return
        tensors, facts = checkpoint.load(out / LAST)
        check_resume(out, facts, self.run, resume=resume)
        load_state(self.net, self.optimizer, tensors)
        self.updates = int(facts["updates"])
        self.best_updates = int(facts["best_updates"])
        self.best_utility = float(facts["best_utility"])

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint says of itself, JSON values."""
        return {
            "algorithm": self.config.algorithm,
            "models": list(self.queries.models),
            "updates": self.updates,
            "best_updates": self.best_updates,
            "best_utility": self.best_utility,
            **self.run,
        }


def train(
    config: MasRouterConfig,
    *,
    seed: int,
    out: Path,
    resume: bool = False,
    wandb: bool = False,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Train a router: the best one is in `out/best`, the metrics in `out/metrics.jsonl`.

    Args:
        config: what to train.
        seed: same seed, same result.
        out: folder of the training.
        resume: go on from the last validation in `out`.
        wandb: see `Tracker`, as for `tensorboard`.

    Returns:
        The facts of the training, as its checkpoints hold them.

    Raises:
        ConfigError: `out` holds a training and `resume` is not set, or one of another
            configuration, seed or simulator version.
    """
    use_one_thread()
    training = Training(config, seed)
    training.restore(out, resume=resume)
    with Tracker(out, training.run, wandb=wandb, tensorboard=tensorboard) as tracker:
        tracker.rewind(training.updates if training.updates else -1)
        while training.updates < config.updates:
            start_s = time.perf_counter()
            steps = min(config.validate_every, config.updates - training.updates)
            history = [training.update() for _ in range(steps)]
            speed = steps * config.batch_size / (time.perf_counter() - start_s)
            metrics = {
                "charts/queries": float(training.updates * config.batch_size),
                **{key: float(np.mean([h[key] for h in history])) for key in history[0]},
                **training.validate(),
                "charts/SPS": speed,
            }
            tracker.log(training.updates, metrics)
            tracker.flush()
            training.save(out)
            print(_progress(training, metrics), file=sys.stderr, flush=True)
    return training.facts()


def route(
    router: NumpyModelRouter,
    embeddings: NDArray[np.float32],
    domains: NDArray[np.int64],
    draw: Callable[[int], NDArray[np.float64]],
) -> Choices:
    """Return choices for R queries as a shipped router makes them.

    Mode, roles and models are drawn; the agent count is the most likely one, as in MasRouter.

    Args:
        router: the weights.
        embeddings: (R, 384).
        domains: (R,).
        draw: gives (R, k) uniform numbers for k.
    """
    uniforms = draw(ROUTED_DRAWS)
    latent = router.planner.encode(embeddings)
    plan = router.planner.plan(latent, domains, uniforms[:, :PLAN_DRAWS], draw_count=False)
    probabilities = router.probabilities(latent, domains, *plan)
    return Choices(*plan, pick_all(probabilities, uniforms[:, PLAN_DRAWS:]))


def shares_of(choices: Choices, models: tuple[str, ...]) -> dict[str, float]:
    """Return shares of topologies among queries and models among agents, and the mean count."""
    present = np.arange(choices.models.shape[1]) < choices.num_agents[:, None]
    used = choices.models[present]
    return {
        **{name: float((choices.topology == t).mean()) for t, name in enumerate(TOPOLOGIES)},
        **{name: float((used == m).mean()) for m, name in enumerate(models)},
        "num_agents": float(choices.num_agents.mean()),
    }


def _returns(outcome: Outcome, utility: NDArray[np.float64]) -> dict[str, float]:
    return {
        "charts/utility": float(utility.mean()),
        "charts/solved": float(outcome.solved.mean()),
        "charts/usd_per_query": float(outcome.usd.mean()),
        "charts/latency_s": float(outcome.latency_s.mean()),
    }


def _progress(training: Training, metrics: dict[str, float]) -> str:
    return (
        f"masrouter {training.updates}/{training.config.updates}: "
        f"utility {metrics['charts/utility']:.3f}, "
        f"validation {metrics['val/utility']:.3f} (solved {metrics['val/solved']:.3f}, "
        f"${1000 * metrics['val/usd_per_query']:.2f} a thousand queries, "
        f"{metrics['shares/num_agents']:.1f} agents), {metrics['charts/SPS']:.0f} queries/s"
    )
