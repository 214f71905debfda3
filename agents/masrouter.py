"""MasRouter (ACL 2025): REINFORCE on single queries, planned and routed by their text alone.

    inframind train masrouter --seed 0 --out runs/masrouter/seed0

    loss = CE(task) + mean(-log p * (u - mean u)) + 0.001 * VAE,  u = solved - cost_rate * dollars

Every row of the batch is one query that has all servers for itself, so neither load nor budget
matters; MasRouter observes neither. One update routes a batch of 16 queries with the policy that is
shipped, and takes one step of Adam. The router with the best utility on queries of the validation
split is kept. A training that was stopped goes on from its last checkpoint to the same weights.

The agent count has no policy gradient in MasRouter's code and is five in its measured runs: here it
stays at `agents`. With `draw_count` it is learned. MasRouter has no baseline (`baseline: false`).

MasRouter's cost is what an API charges for the tokens of all calls of a query. The servers here are
one's own: `usd_per_million_tokens` names a price for each model (`agents/configs/masrouter.yaml`),
the same for prompt and output tokens. The calls are recorded, so that every token is charged to the
model that read or wrote it, those of second calls and of the final call included.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from agents.planner_network import Candidates, PlannerNet, plan_of, present, text_embeddings
from agents.runs import BEST, EnvChoice, Run, episodes, load_state, seed_of, state_of, weights_of
from inframind_gym.configs import NonNegative, Positive, PositiveInt, StrictModel
from inframind_gym.envs.core import Floats
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policies import Policy, checkpoint
from inframind_gym.policies.networks import TextRouter
from inframind_gym.progress import ProgressReport
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES

MILLION: Final = 1e6
TRAINING, VALIDATION, NOISE, WEIGHTS = range(4)  # uses of a seed


class MasRouterConfig(StrictModel):
    """MasRouter's configuration, `agents/configs/masrouter.yaml`."""

    algorithm: Literal["masrouter"] = "masrouter"
    env: EnvChoice = EnvChoice()  # the world; its load and budgets do not matter
    steps: PositiveInt = 1500  # of the optimiser
    batch_size: PositiveInt = 16  # queries an update
    learning_rate: Positive = 0.01  # of Adam
    # solved queries that a dollar is worth; 5, 10 and 15 in the measured runs
    cost_rate: NonNegative = 10.0
    vae_weight: NonNegative = 0.001  # of the encoders' loss
    baseline: bool = True  # REINFORCE learns from what a query earns over the mean of its batch
    agents: Annotated[int, Field(ge=1, le=MAX_AGENTS)] = 5  # likeliest agent count at the start
    draw_count: bool = False  # True draws the agent count, which then has a policy gradient
    # price of each model, by its alias
    usd_per_million_tokens: Annotated[dict[str, NonNegative], Field(min_length=1)]
    # updates between two validations, each followed by a checkpoint
    validate_every: PositiveInt = 50
    validation_queries: PositiveInt = 1024  # queries of the validation split, the same every time


class Answers(NamedTuple):
    """Results of R queries."""

    records: NDArray[Any]  # (R,) COMPLETED
    usd: Floats  # (R,)


class IdleQueries:
    """R queries side by side, each alone on its servers.

    Args:
        environment: arguments of the environment: pool, workload, tasks, split, ...
        rows: R.
        usd_per_million_tokens: price of each of the pool's models, by its alias.

    Raises:
        ConfigError: a model has no price, or an argument is wrong.
    """

    def __init__(
        self, environment: Mapping[str, Any], rows: int, usd_per_million_tokens: Mapping[str, float]
    ) -> None:
        alone = {"num_queries": 1, "level": "joint", "observation": "index", "record_calls": True}
        alone["budget_s"] = 1000.0  # which does not matter
        self.env = StreamVectorEnv(rows, **{**environment, **alone})
        self.spec = self.env.policy_spec()
        for alias in self.spec.models:
            if alias not in usd_per_million_tokens:
                problem = unknown("model", alias, usd_per_million_tokens)
                raise ConfigError(f"usd_per_million_tokens: {problem} Add its price.")
        self.prices = np.array([usd_per_million_tokens[alias] for alias in self.spec.models])

    def play(self, policy: Policy, seeds: Sequence[int]) -> Answers:
        """Let a policy answer a new query in every row; its draws are functions of its seed."""
        _, records = episodes(self.env, policy, seeds, np.ones(len(seeds)))  # of one query each
        usd = np.zeros(len(seeds))
        for row in range(len(seeds)):
            calls = self.env.calls(row)
            tokens = calls["prompt_tokens"].astype(np.float64) + calls["output_tokens"]
            usd[row] = tokens @ self.prices[calls["model"]] / MILLION
        return Answers(records, usd)


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
        self, query: Tensor, records: NDArray[Any], noise: torch.Generator, *, of_count: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Judge how B queries of embeddings (B, 384) were answered, by COMPLETED (B,).

        Returns:
            Log-probabilities (B,) of plans, with `of_count` of drawn counts, and models; logits
            (B, 3) of the domain; and the encoders' loss ().
        """
        plan = plan_of(records)
        out = self.planner(query, torch.from_numpy(records["domain"].astype(np.int64)), noise)
        candidates, loss = self.llm_router.encode(noise)
        parts = [out.query, out.modes[plan.topology], self.planner.mean_role(out, plan)]
        context = self.llm_router.context(torch.cat(parts, dim=-1))
        log_probs = torch.log_softmax(self.llm_router.scores(context, candidates), dim=-1)
        has_agent = present(plan.num_agents)
        models = torch.from_numpy(records["model"][:, :MAX_AGENTS].astype(np.int64))
        of_models = log_probs.gather(-1, models.clamp(min=0)).masked_fill(~has_agent, 0.0)
        log_prob = self.planner.log_prob(out, plan, of_count=of_count) + of_models.sum(dim=-1)
        return log_prob, out.task_logits, out.vae_loss + loss


class Learner:
    """The network, its optimiser and the queries."""

    def __init__(self, config: MasRouterConfig, seed: int) -> None:
        self.config, self.seed, self.updates = config, seed, 0
        prices = config.usd_per_million_tokens
        train, val = config.env.arguments("train"), config.env.arguments("val")
        self.queries = IdleQueries(train, config.batch_size, prices)
        self.validation = IdleQueries(val, config.validation_queries, prices)
        self.models = self.queries.spec.models
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed_of(seed, WEIGHTS))
            self.net = MasRouterNet(self.models)
        self.net.planner.start_with(config.agents)
        parameters = self.net.parameters()
        self.optimizer = torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)

    def update(self) -> dict[str, float]:
        """Route one batch of queries and learn from it; return metrics of the batch."""
        config = self.config
        policy = TextRouter(weights_of(self.net), self.models, draw_count=config.draw_count)
        seeds = [seed_of(self.seed, TRAINING, self.updates, r) for r in range(config.batch_size)]
        records, usd = self.queries.play(policy, seeds)
        utility = records["solved"] - config.cost_rate * usd
        query = torch.from_numpy(self.queries.spec.task_embeddings[records["task"]])
        domain = torch.from_numpy(records["domain"].astype(np.int64))
        noise = torch.Generator().manual_seed(seed_of(self.seed, NOISE, self.updates))
        log_prob, task_logits, vae_loss = self.net(
            query, records, noise, of_count=config.draw_count
        )

        advantage = utility - utility.mean() if config.baseline else utility
        policy_loss = -(log_prob * torch.tensor(advantage, dtype=torch.float32)).mean()
        task_loss = F.cross_entropy(task_logits, domain)
        loss = task_loss + policy_loss + config.vae_weight * vae_loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        return {
            **{f"charts/{name}": value for name, value in measures(records, usd, utility).items()},
            "charts/task_accuracy": float((task_logits.argmax(dim=-1) == domain).float().mean()),
            "losses/policy": policy_loss.item(),
            "losses/task": task_loss.item(),
            "losses/vae": vae_loss.item(),
        }

    def validate(self) -> dict[str, float]:
        """Let the present router, as it is shipped, answer the validation queries."""
        policy = TextRouter(weights_of(self.net), self.models)
        seeds = [seed_of(self.seed, VALIDATION, r) for r in range(self.config.validation_queries)]
        records, usd = self.validation.play(policy, seeds)
        found = measures(records, usd, records["solved"] - self.config.cost_rate * usd)
        agents = records["model"][:, :MAX_AGENTS]
        used = agents[np.arange(MAX_AGENTS) < records["num_agents"][:, None]]
        shares = {n: float((records["topology"] == t).mean()) for t, n in enumerate(TOPOLOGIES)}
        shares |= {name: float((used == m).mean()) for m, name in enumerate(self.models)}
        return {f"val/{name}": value for name, value in found.items()} | {
            f"shares/{name}": value for name, value in shares.items()
        }


def measures(records: NDArray[Any], usd: Floats, utility: Floats) -> dict[str, float]:
    """Return means over queries."""
    return {
        "utility": float(utility.mean()),
        "solved": float(records["solved"].mean()),
        "usd_per_query": float(usd.mean()),
        "latency_s": float(records["latency_s"].mean()),
        "num_agents": float(records["num_agents"].mean()),
    }


def train(config: MasRouterConfig, run: Run) -> dict[str, Any]:
    """Train a router: the best one is in `run.out/best`.

    Returns:
        Updates made, and which of them had the best validation.

    Raises:
        ConfigError: see `Run.begin`.
    """
    saved, learner = run.begin(config), Learner(config, run.seed)
    done: dict[str, Any] = {"updates": 0, "best_updates": 0, "best_utility": -np.inf}
    if saved is not None:
        load_state(learner.net, learner.optimizer, saved[0])
        done = saved[1]
        learner.updates = done["updates"]
    report = ProgressReport(config.steps, learner.updates, "masrouter", "updates")
    with run.tracker(learner.updates or -1) as tracker, report:
        while learner.updates < config.steps:
            began = time.perf_counter()
            count = min(config.validate_every, config.steps - learner.updates)
            history = [learner.update() for _ in range(count)]
            speed = count * config.batch_size / (time.perf_counter() - began)
            metrics = {
                "charts/queries": float(learner.updates * config.batch_size),
                **{key: float(np.mean([h[key] for h in history])) for key in history[0]},
                **learner.validate(),
                "charts/SPS": speed,
            }
            tracker.log(learner.updates, metrics)
            tracker.flush()
            done["updates"] = learner.updates
            if metrics["val/utility"] > done["best_utility"]:
                done |= {"best_updates": learner.updates, "best_utility": metrics["val/utility"]}
                facts = {"algorithm": config.algorithm, "models": list(learner.models)}
                weights = weights_of(learner.net)
                checkpoint.save(run.out / BEST, weights, {**facts, **done, **run.facts})
            run.save(state_of(learner.net, learner.optimizer), done)
            report.advance(
                count,
                f"validation: utility {metrics['val/utility']:.3f}, solved "
                f"{metrics['val/solved']:.3f}, {metrics['val/num_agents']:.1f} agents",
            )
    return done
