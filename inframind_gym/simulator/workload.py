"""Workloads: which tasks arrive, who works on them, how long and how good the answers are.

Read from YAML (`envs_configs/workloads/`). A workload either profiles one dataset, or mixes other
workloads; in a mix every task uses the profile of its own dataset's workload.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from inframind_gym.configs import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Number,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
    validate,
    within,
)
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.item_response import ability_of
from inframind_gym.simulator.posterior import split_draw, with_draw
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, STRATEGIES, STRUCTURES, TOPOLOGIES

Domain = Literal["Math", "Code", "Commonsense"]
Execution = Literal["parallel", "sequential"]
AgentCount = Annotated[int, Field(ge=1, le=MAX_AGENTS)]

# Arrival rates and latency budgets of the published training (InfraMind, arXiv 2606.11440).
RATES_PER_MIN: Final = (10.0, 30.0, 50.0, 100.0, 150.0, 200.0)  # queries per minute
BUDGET_TIERS_S: Final = (10.0, 30.0, 50.0, 100.0, 200.0, 300.0, 600.0, 1000.0)  # seconds

_SHARE_TOLERANCE = 0.02  # published shares are rounded
KeyT = TypeVar("KeyT")


def _one_of(kind: str, known: tuple[str, ...]) -> AfterValidator:
    """Return a validator of names; the static type stays `str`, so any name can look up a share."""

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(unknown(kind, name, known))
        return name

    return AfterValidator(check)


Topology = Annotated[str, _one_of("topology", TOPOLOGIES)]
Strategy = Annotated[str, _one_of("strategy", STRATEGIES)]
Structure = Annotated[str, _one_of("structure", STRUCTURES)]


def _normalised(shares: dict[KeyT, float]) -> dict[KeyT, float]:
    """Return shares scaled to sum to 1; it is an error if they are off by more than rounding."""
    total = math.fsum(shares.values())
    if abs(total - 1.0) > _SHARE_TOLERANCE:
        raise ValueError(
            f"the shares must sum to 1 (within {_SHARE_TOLERANCE}), they sum to {total:.4g}"
        )
    if abs(total - 1.0) < 1e-12:
        return shares  # a second reading changes no bit
    return {key: share / total for key, share in shares.items()}


def _zero_default(names: tuple[str, ...]) -> Callable[[dict[str, float]], dict[str, float]]:
    """Return a validator that gives 0 to the names that a file leaves out."""
    return lambda numbers: {name: numbers.get(name, 0.0) for name in names}


def _require_strategies(table: dict[str, float]) -> dict[str, float]:
    missing = [strategy for strategy in STRATEGIES if strategy not in table]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}: give a number for every strategy")
    return table


class PlannerMix(StrictModel):
    """The planner of the oblivious router: how often it picks each topology and agent count."""

    # A count instead of shares: every query has this number of agents
    num_agents: Annotated[
        dict[AgentCount, Fraction],
        BeforeValidator(lambda value: {value: 1.0} if type(value) is int else value),
        AfterValidator(_normalised),
    ]
    topologies: Annotated[dict[Topology, Fraction], AfterValidator(_normalised)]


class ModelProfile(StrictModel):
    """One model on this workload's tasks."""

    share: Fraction  # of the calls that the oblivious router sends to it
    output_tokens_median: Positive  # of a call with the neutral strategy (factor 1), before the cut
    ability: Number  # logits: 0 solves a task of average difficulty half of the time


Percent = Annotated[float, within(1.0, 99.5)]


class ModelEntry(StrictModel):
    """One model in a workload's file: a `ModelProfile`, or what it is estimated from."""

    share: Fraction  # 1 / number of models if the file gives none
    output_tokens_median: Positive
    # Fields that are not set are not dumped, so they do not change the hash of a workload.
    ability: Number | None = Field(default=None, exclude_if=lambda ability: ability is None)
    # Estimate of the ability: the workload's dataset -> published share of right answers, percent
    ability_from: Annotated[dict[str, Percent], Field(min_length=1, max_length=1)] | None = Field(
        default=None, exclude_if=lambda scores: scores is None
    )

    @model_validator(mode="after")
    def _check(self) -> ModelEntry:
        if (self.ability is None) == (self.ability_from is None):
            raise ValueError(
                "give one of ability (logits) and ability_from (published scores in percent, "
                "{mmlu_pro: 52.1})"
            )
        return self


def _default_shares(models: Any) -> Any:
    """Give all models the same share, if the file gives none."""
    entries = models.values() if isinstance(models, dict) else [None]
    if any(not isinstance(entry, dict) or "share" in entry for entry in entries):
        return models
    return {alias: {**entry, "share": 1.0 / len(entries)} for alias, entry in models.items()}


def _normalised_models(models: dict[str, ModelEntry]) -> dict[str, ModelEntry]:
    shares = _normalised({alias: model.share for alias, model in models.items()})
    return {a: model.model_copy(update={"share": shares[a]}) for a, model in models.items()}


class OutputProfile(StrictModel):
    """Spread of the output lengths: log-normal around median x strategy factor."""

    sigma_query: NonNegative  # sd of log length between queries, shared by all calls of a query
    sigma_call: NonNegative  # sd of log length between calls of one query
    difficulty_slope: Number  # log length for each standard deviation of difficulty
    # length relative to the neutral prompt
    strategy_factor: Annotated[dict[Strategy, Positive], AfterValidator(_require_strategies)]
    final_factor: Positive = 1.0  # length of the deciding call relative to an agent's

    def mean_factor(self) -> float:
        """Return the mean length (before the cut) over the median, of the neutral strategy."""
        return math.exp(0.5 * (self.sigma_query**2 + self.sigma_call**2 + self.difficulty_slope**2))


class PromptProfile(StrictModel):
    """Prompt lengths beyond the task's own text."""

    overhead_tokens: Annotated[int, Field(ge=0)] = 150  # role, strategy and format instructions
    message_frac: NonNegative = 1.0  # share of a predecessor's output that enters the next prompt
    # What the deciding call reads at most of an agent's answer; None: all of it
    final_message_tokens: PositiveInt | None = None


class AgentProfile(StrictModel):
    """Rules of the agents beyond their graph; the first two are MasRouter's (ACL 2025)."""

    role_calls: bool = False  # a node makes as many calls as its role says (`workflow/roles.py`)
    visible_tests: Fraction = 0.0  # of the tasks: agents see their tests and hand on proven code
    # The answer of an agent that works alone is the query's: no further call decides
    single_call: bool = Field(default=False, exclude_if=lambda single_call: not single_call)


class QualityProfile(StrictModel):
    """Item-response model of solving; gains are logits added to a model's ability."""

    discrimination: Positive  # slope of the response curve
    difficulty_sd: NonNegative  # logits: spread of the queries' difficulty
    strategy_gain: Annotated[dict[Strategy, Number], AfterValidator(_require_strategies)]
    # of a workflow's structure, to the call that decides, beyond the gain of the answers it reads
    structure_gain: Annotated[
        dict[Structure, Number], AfterValidator(_zero_default(STRUCTURES))
    ] = Field(default_factory=dict, validate_default=True)
    role_gain: Number  # of a role that suits the domain
    info_gain: Number  # of predecessors' messages to a node
    final_info_gain: Number  # of the nodes' answers to the final decision call
    reflection_gain: Number  # of a node's second call
    latent_correlation: Fraction  # of the latent noise of two calls of one model on one query
    truncated_right_frac: Fraction  # P(right) of an answer cut at max_output_tokens, over uncut


# A strategy that the file leaves out is never chosen
StrategyMix = Annotated[
    dict[Strategy, Fraction], AfterValidator(_normalised), AfterValidator(_zero_default(STRATEGIES))
]
ModelTable = Annotated[
    dict[str, ModelEntry], BeforeValidator(_default_shares), AfterValidator(_normalised_models)
]


class TaskProfile(StrictModel):
    """Everything that a workload says about the tasks of one dataset."""

    name: str  # of the workload
    dataset: str
    domain: Domain
    planner: PlannerMix
    strategy_mix: StrategyMix
    models: dict[str, ModelProfile]
    output: OutputProfile
    prompt: PromptProfile
    agents: AgentProfile
    quality: QualityProfile

    def require_models(self, aliases: Collection[str]) -> None:
        """Check that every model of a pool is profiled.

        Raises:
            ConfigError: If one is not; names it and the nearest profiled one.
        """
        for alias in aliases:
            if alias not in self.models:
                raise ConfigError(
                    f"workload {self.name!r} has no profile of one of the pool's models: "
                    f"{unknown('model', alias, self.models)} Fit a workload to outcomes of the "
                    "pool's models (`inframind workload fit OUTCOMES.csv --out workload.yaml`) and "
                    "play it (`inframind bench run --pool POOL --workload workload.yaml`); or add "
                    f"under `models` of a copy of this one `{alias}: {{output_tokens_median: 300, "
                    f"ability_from: {{{self.dataset}: 52.1}}}}`, with a published score."
                )


_PROFILE_KEYS = ("dataset", "domain", "planner", "strategy_mix", "models", "output", "quality")


class WorkloadConfig(StrictModel):
    """One workload. Either the profile sections are given, or `mix` is."""

    name: str = Field(min_length=1)
    description: str = ""
    num_queries: PositiveInt = 500  # in one stream
    execution: Execution = "parallel"
    budget_tiers_s: tuple[Positive, ...] = Field(default=BUDGET_TIERS_S, min_length=1)
    rates_per_min: tuple[Positive, ...] = Field(default=RATES_PER_MIN, min_length=1)
    dataset: str | None = Field(default=None, min_length=1)
    domain: Domain | None = None
    planner: PlannerMix | None = None
    strategy_mix: StrategyMix | None = None
    models: ModelTable | None = None
    output: OutputProfile | None = None
    prompt: PromptProfile = PromptProfile()
    agents: AgentProfile = AgentProfile()
    quality: QualityProfile | None = None
    mix: dict[str, Positive] | None = Field(default=None, min_length=1)  # other workload: weight
    # Weights at the far end of a drift: from `mix` to these and back in `drift_queries` queries
    mix_to: dict[str, Positive] | None = Field(default=None, exclude_if=lambda to: to is None)
    drift_queries: PositiveInt | None = Field(default=None, exclude_if=lambda n: n is None)
    # Posterior draw of its quality values; set by `load_workload`, not in a file
    draw: NonNegativeInt | None = Field(default=None, exclude_if=lambda draw: draw is None)

    @model_validator(mode="after")
    def _check(self) -> WorkloadConfig:
        if self.draw is not None:
            raise ValueError(
                f"draw: is given with the name, {self.name}#{self.draw}, not in a file"
            )
        sections = [key for key in _PROFILE_KEYS if getattr(self, key) is not None]
        if self.mix is None and len(sections) < len(_PROFILE_KEYS):
            missing = ", ".join(key for key in _PROFILE_KEYS if key not in sections)
            raise ValueError(f"{missing}: required. Add them, or name other workloads under `mix`")
        sections += ["prompt"] * (self.prompt != PromptProfile())
        sections += ["agents"] * (self.agents != AgentProfile())
        if self.mix is not None and sections:
            raise ValueError(
                f"{', '.join(sections)}: not valid beside `mix`, every task uses its own "
                "workload's profile"
            )
        drifts = self.drift_queries is not None and self.mix_to is not None
        if (self.mix_to or self.drift_queries) and not (
            drifts and (self.mix_to or {}).keys() == (self.mix or {}).keys()
        ):
            raise ValueError(
                "mix_to and drift_queries: give both, or neither; mix_to weighs all workloads of "
                "`mix` and no other"
            )
        return self

    @property
    def profile(self) -> TaskProfile:
        """Profile of the one dataset.

        Raises:
            ConfigError: If this workload is a mix; `load_profiles` takes both kinds.
        """
        if self.mix is not None:
            raise ConfigError(f"workload {self.name!r} is a mix, it has no profile of its own.")
        models = {}
        for alias, entry in (self.models or {}).items():
            ability, quality = entry.ability, cast(QualityProfile, self.quality)
            if ability is None:  # at which the item-response model has the published accuracy
                score = (entry.ability_from or {}).get(str(self.dataset))
                if score is None:
                    benchmark = next(iter(entry.ability_from or ()))
                    raise ConfigError(
                        f"models.{alias}.ability_from: "
                        f"{unknown('benchmark', benchmark, (str(self.dataset),))}"
                    )
                slope = quality.discrimination
                ability = ability_of(score / 100.0, slope * quality.difficulty_sd) / slope
            models[alias] = ModelProfile(
                share=entry.share, output_tokens_median=entry.output_tokens_median, ability=ability
            )
        sections = {key: getattr(self, key) for key in ("name", *_PROFILE_KEYS, "prompt", "agents")}
        return TaskProfile.model_validate({**sections, "models": models})


class WeightedProfile(NamedTuple):
    """A profile and the share of the queries that use it, over a whole drift if there is one."""

    weight: float  # weights of a workload's profiles sum to 1
    profile: TaskProfile


def load_workload(name_or_path: str | Path) -> WorkloadConfig:
    """Read a workload: the name of a shipped one, or the path of a YAML file.

    ``math#7`` is `math` with draw 7 of the posterior of its quality (`posterior.csv`); a mix takes
    the draw of all its parts.

    Raises:
        ConfigError: If there is no such workload or draw, its file is not valid, or its `mix` names
            a workload that does not exist, is a mix itself, or profiles a dataset twice.
    """
    name, draw = name_or_path, None
    if not Path(name_or_path).is_file():
        name, draw = split_draw(str(name_or_path))
    path = find_config("workloads", name)
    workload = _read(path, draw)
    try:
        load_profiles(workload)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return workload


def _read(path: Path, draw: int | None) -> WorkloadConfig:
    """Read the file of a workload, with the values of a draw; a mix only hands the draw on."""
    workload = load_yaml_model(path, WorkloadConfig)
    if draw is None:
        return workload
    if workload.mix is None:
        drawn = with_draw(path, workload.model_dump(), draw)
        workload = validate(drawn, WorkloadConfig, source=f"{path}, draw {draw}")
    return workload.model_copy(update={"draw": draw})


class Drift(NamedTuple):
    """A mix whose weights go back and forth, linearly, while queries arrive."""

    ends: NDArray[np.float64]  # (2, P) weights at both ends; each row sums to 1
    queries: int  # from one end to the other and back

    def weights(self, ordinal: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights (n, P) of queries by their place in the stream (n,)."""
        phase = ordinal % self.queries / self.queries
        far = 1.0 - np.abs(1.0 - 2.0 * phase)
        mixed: NDArray[np.float64] = np.stack([1.0 - far, far], axis=1) @ self.ends
        return mixed


def drift_of(workload: WorkloadConfig) -> Drift | None:
    """Return the drift of a mix, its parts in the order of `load_profiles`; None: it has none."""
    if workload.mix is None or workload.mix_to is None or workload.drift_queries is None:
        return None
    ends = np.array(
        [[end[name] for name in workload.mix] for end in (workload.mix, workload.mix_to)]
    )
    return Drift(ends / ends.sum(axis=1, keepdims=True), workload.drift_queries)


def load_profiles(workload: WorkloadConfig) -> dict[str, WeightedProfile]:
    """Return the profiles that a workload's tasks use.

    Args:
        workload: A workload of either kind. The names under `mix` are shipped workloads or paths.

    Returns:
        Dataset -> weight and profile, in the file's order.

    Raises:
        ConfigError: If the mix cannot be resolved.
    """
    if workload.mix is None:
        profile = workload.profile
        return {profile.dataset: WeightedProfile(1.0, profile)}
    total, drift = math.fsum(workload.mix.values()), drift_of(workload)
    weights = {name: weight / total for name, weight in workload.mix.items()}
    if drift is not None:
        weights = dict(zip(workload.mix, drift.ends.mean(axis=0).tolist(), strict=True))
    profiles: dict[str, WeightedProfile] = {}
    for name, part in _parts_of_mix(workload).items():
        if part.mix is not None:
            raise ConfigError(f"mix.{name}: is a mix itself. Name the workloads that it mixes.")
        profile = part.profile
        if profile.dataset in profiles:
            raise ConfigError(
                f"mix.{name}: profiles dataset {profile.dataset!r} a second time. Keep one."
            )
        profiles[profile.dataset] = WeightedProfile(weights[name], profile)
    return profiles


def estimates(workload: WorkloadConfig) -> list[str]:
    """Return a text for each estimated ability of a workload, or of those that it mixes."""
    return [
        f"ability of {alias} on {part.dataset}: estimate from published "
        + "".join(f"{dataset} {score:g} %" for dataset, score in entry.ability_from.items())
        for part in (workload, *_parts_of_mix(workload).values())
        for alias, entry in (part.models or {}).items()
        if entry.ability_from is not None
    ]


def _parts_of_mix(workload: WorkloadConfig) -> dict[str, WorkloadConfig]:
    """Return the workloads that one mixes, by the names under `mix`.

    Raises:
        ConfigError: One cannot be read.
    """
    parts = {}
    for name in workload.mix or ():
        try:
            parts[name] = _read(find_config("workloads", name), workload.draw)
        except ConfigError as error:
            raise ConfigError(f"mix.{name}: {error}") from None
    return parts
