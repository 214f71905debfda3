"""MasRouter's training (ACL 2025): REINFORCE on single queries at idle load.

    loss = CE(task) + mean(-log p * (solved - cost_rate * dollars)) + 0.001 * VAE

One update routes a batch of 16 queries with the present weights, carries them out on the surrogate,
and takes one step of Adam. Everything random is a function of (seed, update, row): a training that
was stopped goes on from its last checkpoint to the same weights. The router that is kept is the one
with the best utility on queries of the validation split.

    python -m agents.train --config masrouter --seed 0 --out runs/masrouter/seed0
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field

from agents.config import EnvChoice
from agents.masrouter.idle_queries import Choices, IdleQueries, Outcome
from agents.masrouter.net import ROUTED_DRAWS, MasRouterNet, Routed
from agents.planner.inference import PLAN_DRAWS, NumpyModelRouter, pick_all
from agents.planner.net import weights_of
from agents.resume import check_resume
from agents.tracking import Tracker
from inframind_gym.configs import NonNegative, Positive, PositiveInt, StrictModel
from inframind_gym.policies import checkpoint
from inframind_gym.simulator import SIMULATOR_VERSION
from inframind_gym.simulator.workflow.topology import TOPOLOGIES

LAST: Final = "last"  # folders of checkpoints: where to go on from, and what to use
BEST: Final = "best"
_OPTIMIZER: Final = "optimizer."  # prefix of Adam's state in `last`
_MOMENTS: Final = ("exp_avg", "exp_avg_sq", "step")
_DECISIVE: Final = (
    "models",
    "seed",
    "training",
    "simulator_version",
)  # facts that decide a training's result
_TRAINING, _VALIDATION, _NOISE = 0, 1, 2  # what a seed is for


class MasRouterConfig(StrictModel):
    """What a training is made from.

    Attributes:
        algorithm: names this file for `agents.train`.
        env: the world; its load and budgets do not matter.
        updates: steps of the optimiser.
        batch_size: queries an update.
        learning_rate: of Adam.
        cost_rate: solved queries that a dollar is worth; 5, 10 and 15 in the measured runs.
        vae_weight: of the encoders' loss.
        usd_per_million_tokens: price of each model, by its alias.
        validate_every: updates between two validations, each followed by a checkpoint.
        validation_queries: queries of the validation split, the same every time.
    """

    algorithm: Literal["masrouter"] = "masrouter"
    env: EnvChoice = EnvChoice()
    updates: PositiveInt = 1500
    batch_size: PositiveInt = 16
    learning_rate: Positive = 0.01
    cost_rate: NonNegative = 10.0
    vae_weight: NonNegative = 0.001
    usd_per_million_tokens: Annotated[dict[str, NonNegative], Field(min_length=1)]
    validate_every: PositiveInt = 50
    validation_queries: PositiveInt = 1024


class Training:
    """One training: the network, its optimiser and the queries.

    Args:
        config: what to train.
        seed: of everything random.
    """

    def __init__(self, config: MasRouterConfig, seed: int) -> None:
        self.config, self.seed = config, seed
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
        """Route one batch of queries and learn from it.

        Returns:
            Metrics of the batch.
        """
        config = self.config
        keys = [(self.seed, _TRAINING, self.updates, row) for row in range(config.batch_size)]
        tasks, domains = self.queries.begin(keys)
        uniforms = torch.tensor(self.queries.uniforms(ROUTED_DRAWS), dtype=torch.float32)
        self.noise.manual_seed(_seed_of(self.seed, _NOISE, self.updates))
        domain = torch.tensor(domains)
        routed = self.net(self.embeddings[tasks], domain, uniforms, self.noise)
        outcome = self.queries.finish(choices_of(routed))
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
        weights = weights_of(self.net)
        if self.best_updates == self.updates:
            checkpoint.save(out / BEST, weights, self.facts())
        state = self.optimizer.state
        moments = {
            f"{_OPTIMIZER}{moment}.{name}": np.atleast_1d(state[parameter][moment].numpy())
            for name, parameter in self.net.named_parameters()
            for moment in _MOMENTS
            if parameter in state
        }
        checkpoint.save(out / LAST, {**weights, **moments}, self.facts())

    def restore(self, out: Path, *, resume: bool) -> None:
        """Go on from the last checkpoint of this training in `out`, if there is one.

        Raises:
            ConfigError: there is one and `resume` is false, or it belongs to another training, or
                to other code and `changed_code` is false.
        """
        if not checkpoint.exists(out / LAST):
            return
        tensors, facts = checkpoint.load(out / LAST)
        own = self.facts()
        check_resume(out, facts, {key: own[key] for key in _DECISIVE}, resume=resume)
        names = self.net.state_dict()
        self.net.load_state_dict({name: torch.tensor(tensors[name]) for name in names})
        for name, parameter in self.net.named_parameters():
            self.optimizer.state[parameter] = {
                moment: torch.tensor(
                    tensors[f"{_OPTIMIZER}{moment}.{name}"].reshape(
                        () if moment == "step" else parameter.shape
                    )
                )
                for moment in _MOMENTS
            }
        self.updates = int(facts["updates"])
        self.best_updates = int(facts["best_updates"])
        self.best_utility = float(facts["best_utility"])

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of itself, JSON values."""
        return {
            "algorithm": self.config.algorithm,
            "models": list(self.queries.models),
            "seed": self.seed,
            "updates": self.updates,
            "best_updates": self.best_updates,
            "best_utility": self.best_utility,
            "training": self.config.model_dump(mode="json"),
            "simulator_version": SIMULATOR_VERSION,
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
            configuration, seed or version.
    """
    torch.set_num_threads(1)
    training = Training(config, seed)
    training.restore(out, resume=resume)
    run = {"config": config.model_dump(mode="json"), "seed": seed}
    with Tracker(out, run, wandb=wandb, tensorboard=tensorboard) as tracker:
        tracker.rewind(training.updates if training.updates else -1)
        for metrics in _rounds(training):
            tracker.log(training.updates, metrics)
            tracker.flush()
            training.save(out)
            print(_progress(training, metrics), file=sys.stderr, flush=True)
    return training.facts()


def _rounds(training: Training) -> Iterator[dict[str, float]]:
    """Train up to one validation after another; yields the metrics between them."""
    config = training.config
    while training.updates < config.updates:
        start_s = time.perf_counter()
        steps = min(config.validate_every, config.updates - training.updates)
        history = [training.update() for _ in range(steps)]
        elapsed_s = time.perf_counter() - start_s
        yield {
            "charts/queries": float(training.updates * config.batch_size),
            **{key: float(np.mean([h[key] for h in history])) for key in history[0]},
            **training.validate(),
            "charts/SPS": steps * config.batch_size / elapsed_s,
        }


def route(
    router: NumpyModelRouter,
    embeddings: NDArray[np.float32],
    domains: NDArray[np.int64],
    draw: Callable[[int], NDArray[np.float64]],
) -> Choices:
    """Choices for R queries as a shipped router makes them.

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


def choices_of(routed: Routed) -> Choices:
    """The network's choices as arrays."""
    plan = routed.plan
    return Choices(
        plan.topology.numpy(), plan.num_agents.numpy(), plan.roles.numpy(), routed.models.numpy()
    )


def shares_of(choices: Choices, models: tuple[str, ...]) -> dict[str, float]:
    """Share of each topology among queries and of each model among agents; the mean count."""
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


def _seed_of(*key: int) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _progress(training: Training, metrics: dict[str, float]) -> str:
    return (
        f"masrouter {training.updates}/{training.config.updates}: "
        f"utility {metrics['charts/utility']:.3f}, "
        f"validation {metrics['val/utility']:.3f} (solved {metrics['val/solved']:.3f}, "
        f"${1000 * metrics['val/usd_per_query']:.2f} a thousand queries, "
        f"{metrics['shares/num_agents']:.1f} agents), {metrics['charts/SPS']:.0f} queries/s"
    )
