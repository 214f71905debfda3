"""Training of Headway: survey the recipes, learn what load does, search the prices.

1. *Survey*. Recipes are played at idle servers, at random; those that no circumstances call for are
   dropped, and the rest is surveyed again, so that what is known of the last ones is known well.
2. *Load*. The recipes that are left are played at all rates and under random prices, and what load
   does to the time of calls is fitted.
3. *Search*. CMA-ES looks, at every rate, for the prices under which whole sweeps, at all budgets
   and also when queries come in bursts, do best: what a call costs everybody else is in them, which
   no reward of single queries can tell.

Nothing is known but the records of queries that the agent has played itself. All random numbers are
functions of the seed and the place: a training that is stopped goes on from its last finished stage
or step of the search, to the same result, on any number of workers.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from agents.headway.config import HeadwayConfig
from agents.headway.jobs import MEASURES, worth
from agents.headway.lessons import (
    Lessons,
    from_tensors,
    load_lessons,
    save_lessons,
    to_tensors,
)
from agents.headway.marks import Marks, marks_from
from agents.headway.recipes import RecipeBook, book_from_tensors
from agents.headway.search import PriceSearch, prices_of
from agents.headway.stages import Trainer
from agents.resume import check_resume
from agents.tracking import Tracker
from inframind_gym.benchmark.cluster.fleet import Fleet
from inframind_gym.policies import checkpoint
from inframind_gym.simulator import SIMULATOR_VERSION

BEST: Final = "best"  # folder of the trained agent within that of the training
FINISHED: Final = "finished"
CHARTS: Final = tuple(f"charts/{name}" for name in MEASURES)
BURST_CHARTS: Final = tuple(f"bursts/{name}" for name in MEASURES)
DECISIONS: Final = MEASURES.index("decisions")
STATE: Final = "state"  # folder of what a training that was stopped goes on from


def train(
    config: HeadwayConfig,
    *,
    seed: int,
    out: Path,
    workers: int = 1,
    ray_address: str | None = None,
    resume: bool = False,
    wandb: bool = False,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Train Headway on one workload.

    Args:
        config: of the training.
        seed: of all random numbers.
        out: folder of the training; the agent is written to `out/best`.
        workers: processes that play.
        ray_address: a Ray cluster that plays instead.
        resume: go on where the training in `out` ended.
        wandb: log to W&B too.
        tensorboard: log for TensorBoard too.

    Returns:
        What the agent reaches on the validation split, and where it is.

    Raises:
        ConfigError: `out` holds another training, or one while `resume` is
            off.
    """
    about: dict[str, Any] = {"config": config.model_dump(mode="json"), "seed": seed}
    about["simulator_version"] = SIMULATOR_VERSION
    state = _open_state(out, about, resume=resume)
    if state[1].get("stage") == FINISHED:
        return {**state[1]["validation"], "checkpoint": str(out / BEST)}
    tracker = Tracker(out, about["config"], wandb=wandb, tensorboard=tensorboard)
    players = Fleet("agents.headway.jobs:Player", [{}] * workers, workers, ray_address)
    with players as fleet, tracker:
        training = _Training(Trainer(config, seed, fleet), out, about, tracker)
        return training.run(state)


class _Training:
    """Carries a training from stage to stage, and keeps what is finished."""

    def __init__(
        self, trainer: Trainer, out: Path, about: dict[str, Any], tracker: Tracker
    ) -> None:
        self._trainer = trainer
        self._config = trainer.config
        self._out = out
        self._about = about
        self._tracker = tracker
        self._decisions = 0.0
        self._began = time.monotonic()

    def run(self, state: tuple[dict[str, NDArray[Any]], dict[str, Any]]) -> dict[str, Any]:
        tensors, progress = state
        trainer, spec = self._trainer, self._trainer.spec
        rounds = len(self._config.survey)
        stage = int(progress.get("stage", 0))
        book = trainer.first_book()
        if 0 < stage < rounds:
            book = book_from_tensors(tensors, spec.num_strategies)
        for number in range(stage, rounds - 1):
            book = self._survey(book, number)
        search = PriceSearch(self._config, trainer.num_models, trainer.seed)
        if stage < rounds:
            lessons, marks, idle_s = trainer.learn(book)
            lessons = trainer.study_load(lessons, idle_s)
            self._keep(to_tensors(lessons) | marks.to_tensors(), rounds)
            self._log({"study/recipes": len(lessons.book)})
        else:
            lessons = from_tensors(tensors, spec.models, spec.num_strategies)
            marks = marks_from(tensors)
            found = checkpoint.part(tensors, "search.")
            if found:
                search.restore(found)
        return self._search(lessons, marks, search)

    def _survey(self, book: RecipeBook, number: int) -> RecipeBook:
        kept = self._trainer.survey(book, number)
        self._keep(kept.to_tensors(), number + 1)
        self._log({"survey/recipes": len(kept)})
        return kept

    def _search(self, lessons: Lessons, marks: Marks, search: PriceSearch) -> dict[str, Any]:
        config, trainer = self._config, self._trainer
        learned = to_tensors(lessons) | marks.to_tensors()
        self._tracker.rewind(search.at)
        while not search.finished:
            points, rates = search.ask()
            step = search.step
            steady, bursts = trainer.judge(lessons, marks, points, rates, search.at, step)
            values = worth(steady, bursts, config.objective)
            search.tell(values)
            self._keep(learned | checkpoint.prefixed(search.state(), "search."), len(config.survey))
            charts = dict(zip(CHARTS, steady.mean(axis=0), strict=True))
            self._decisions += steady[:, DECISIONS].sum() * step.sweeps * config.search.queries
            if bursts is not None:
                charts |= dict(zip(BURST_CHARTS, bursts.mean(axis=0), strict=True))
                self._decisions += bursts[:, DECISIONS].sum() * step.bursts * config.search.queries
            for k, rate in enumerate(config.rates_per_min):
                charts[f"search/objective_{rate:g}"] = values[rates == k].mean()
            charts |= {"charts/objective": values.mean(), "search/deviation": search.deviation}
            self._log(charts, search.at)
        prices = prices_of(search.found, trainer.num_models)
        return self._finish(lessons.priced(prices, config.rates_per_min))

    def _finish(self, lessons: Lessons) -> dict[str, Any]:
        """Save the agent, play what was saved on the validation split, and note what it reached."""
        best = self._out / BEST
        save_lessons(best, lessons, self._about)
        by_rate = self._trainer.validate(load_lessons(best))
        result = dict(
            zip(MEASURES, (round(float(v), 6) for v in by_rate.mean(axis=0)), strict=True)
        )
        about = {**self._about, "validation": result}
        save_lessons(best, lessons, about)
        self._log({f"validation/{name}": value for name, value in result.items()})
        checkpoint.save(self._out / STATE, {}, {**about, "stage": FINISHED})
        return {**result, "checkpoint": str(best)}

    def _keep(self, tensors: dict[str, NDArray[Any]], stage: int) -> None:
        checkpoint.save(self._out / STATE, tensors, {**self._about, "stage": stage})

    def _log(self, metrics: dict[str, float], step: int = 0) -> None:
        seconds = time.monotonic() - self._began
        rates = {"charts/SPS": self._decisions / seconds} if self._decisions else {}
        self._tracker.log(step, {k: float(v) for k, v in (metrics | rates).items()})
        self._tracker.flush()


def _open_state(
    out: Path, about: dict[str, Any], *, resume: bool
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """What was kept of the training in `out`; nothing if there was none."""
    if not checkpoint.exists(out / STATE):
        return {}, {}
    tensors, progress = checkpoint.load(out / STATE)
    check_resume(out, progress, about, resume=resume)
    return tensors, progress
