"""The page docs/results/paper.md, from the figures of `benchmarks/paper.py`.

Every claim of the paper is a row: texts are in `paper.yaml`, numbers and verdicts are made here. A
claim has checks, each a difference for each training seed that the claim says is positive. A check
holds where the 95 % interval over the seeds (Student's t) is above 0. A claim holds if all of its
checks do, in part if some do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.pages import NONE, RULE, refresh, save_all, table
from benchmarks.paper import (
    ABLATIONS,
    DRAWS,
    MASROUTERS,
    MODELS,
    RATES,
    RIVALS,
    SEEDS,
    STRATEGIES,
    WORKLOADS,
    Job,
    jobs,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXTS: Final = Path(__file__).with_name("paper.yaml")
PUBLISHED: Final = Path(__file__).with_name("published.yaml")
DEEPSEEK, LLAMA_3B = MODELS.index("deepseek-32b"), MODELS.index("llama-3b")
LLAMAS: Final = slice(3, 5)
MODES: Final = ("likeliest", "sample")
TITLES: Final = {"masrouter": "five agents", "masrouter_one": "one agent"}
VERDICTS: Final = ("does not hold here", "holds in part", "holds")
CANNOT, FEW = "cannot be asked here", "too few seeds played"
Values = NDArray[np.float64]
Cell = Mapping[str, Any]
# Columns of the headline: title -> arguments of `Page.values`.
COLUMNS: Final[dict[str, dict[str, Any]]] = {
    title: {"policy": policy, "world": world, "mode": mode, "scheduler": scheduler}
    for title, policy, world, mode, scheduler in (
        ("`inframind`, likeliest", "inframind", "all", "likeliest", "edf"),
        ("`inframind`, sampled", "inframind", "all", "sample", "edf"),
        ("`inframind_v2`", "inframind_v2", "all", "likeliest", "edf"),
        ("`masrouter`", "masrouter", "all", "as shipped", "fcfs"),
        ("`masrouter`, one agent", "masrouter_one", "all", "as shipped", "fcfs"),
        *((f"`{name}`", name, "", "as shipped", "fcfs") for name in RIVALS),
    )
}


class Check(NamedTuple):
    """A part of a claim.

    Attributes:
        label: What is compared; "" where the claim says it.
        ours: Figures as they are shown.
        differences: (seeds,) that the claim says are positive.
    """

    label: str
    ours: str
    differences: Values


def half_width(values: Values) -> float:
    """Return half of the 95 % interval of a mean over seeds; infinite of fewer than two."""
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return np.inf
    return float(t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n))


def interval(values: Values, scale: float = 100.0, digits: int = 1, sign: bool = True) -> str:
    """Return the mean of values with half of its 95 % interval."""
    if not len(values):
        return NONE
    half = half_width(values) * scale
    text = f"{values.mean() * scale:{'+' if sign else ''}.{digits}f}"
    return f"{text} ± {half:.{digits}f}" if np.isfinite(half) else f"{text} (one seed)"


class Page:
    """Figures of all jobs that are done, and what the page says of them."""

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self.figures = figures

    # Figures by seed

    def trainings(self, policy: str, world: str = "math") -> dict[int, Mapping[str, Any]]:
        """Return the figures of finished trainings by seed."""
        keys = {seed: Job("training", policy, world, seed).key for seed in range(SEEDS)}
        return {seed: self.figures[key] for seed, key in keys.items() if key in self.figures}

    def plays(self, policy: str, world: str, *given: str) -> dict[int, list[Cell]]:
        """Return the cells of plays by seed of the training; `given` ends the job."""
        seeds = range(SEEDS if world else 1)
        keys = {s: Job("play", policy, world, s, *given).key for s in seeds}
        return {s: self.figures[key]["cells"] for s, key in keys.items() if key in self.figures}

    def values(
        self,
        figure: Callable[[Cell], float] | str,
        policy: str = "inframind",
        mode: str = "likeliest",
        where: Callable[[Cell], bool] | None = None,
        *,
        world: str = "math",
        workloads: Sequence[str] = ("math",),
        scheduler: str = "edf",
        budgets: str = "",
    ) -> dict[int, float]:
        """Return the mean of a figure over cells and workloads, by seed."""
        get = figure if callable(figure) else lambda cell: cell[figure]
        if policy in RIVALS:
            world, mode = "", "as shipped"
        of = [
            self.plays(policy, world, workload, mode, scheduler, budgets) for workload in workloads
        ]
        found = {}
        for seed in set.intersection(*(set(one) for one in of)):
            means = [
                [get(cell) for cell in one[seed] if where is None or where(cell)]  # by workload
                for one in of
            ]
            if all(means):
                found[seed] = float(np.mean([np.mean(values) for values in means]))
        return found

    # Claims

    def claims(self) -> dict[str, list[Check]]:
        """Return the checks of every claim, by the claims' names in `paper.yaml`."""
        checks = {
            "load_by_batch": self._batches("inframind"),
            "load_by_rate": self._loads(at(rate=200), at(rate=10)),
            "load_by_cell": self._loads(lambda c: c["cost"] > 1, lambda c: c["cost"] <= 1),
            "lambda": self._lambda(),
            "constraint": self._constraint(),
            "imbalance": self._problem("imbalance", 1.0, 2),
            "queueing": self._problem("avoidable", 1.0, 1),
            "wasted": self._problem("wasted"),
            "idle": [
                *self._between("accuracy", at(rate=10), at(rate=100), "solved, "),
                *self._between(strategy(2), at(rate=10), at(rate=100), "DeepThink, "),
            ],
            "tier_10": self._between(joint(LLAMA_3B, 0), at(budget=10), at(budget=1000)),
            "tier_30": [
                *self._between(share(LLAMAS), at(budget=30), at(budget=1000), "30 s, "),
                *self._between(share(LLAMAS), at(budget=50), at(budget=1000), "50 s, "),
            ],
            "tier_100": self._level(share(DEEPSEEK), 0.05, at(budget=100), -1),
            "tier_200": self._between(
                share(DEEPSEEK), at(budget=200, rate=10), at(budget=200, rate=200)
            ),
            "tier_300": self._between(share(DEEPSEEK), at(budget=300), at(budget=30)),
            "tier_600": self._level("slo_own", 0.95, at(budget=600, rate=200)),
            "tier_1000": self._between("accuracy", at(budget=1000), at(budget=30)),
            "joint_deepthink": self._level(deepthink_gap, 0.0),
            "telemetry": [*self._ablation("no_telemetry"), self._shedding()],
            "predictors": self._ablation("predicted_latency"),
            "pathways": self._ablation("single_pathway"),
            "joint_head": self._ablation("factored_head"),
            "warm_up": self._ablation("warm_up"),
            "tiers": self._ablation("log_uniform"),
            "pressure": self._pressure(),
            "edf": [self._edf(mode) for mode in MODES],
            "accuracy": [
                *self._headline("accuracy", 10),
                *(self._headline("accuracy", 10, name)[0] for name in WORKLOADS),
            ],
            "latency": self._latency(),
            "slo": [*self._headline("slo_100", 100), self._below_half()],
            "planner": [],
        }
        return checks

    def _batches(self, policy: str) -> list[Check]:
        trainings = [f for f in self.trainings(policy).values() if f["dear"] and f["cheap"]]
        cheap, dear = (np.array([f[key] for f in trainings]) for key in ("cheap", "dear"))
        out = []
        for name, model, sign in (("DeepSeek", DEEPSEEK, -1), ("Llama-3B", LLAMA_3B, 1)):
            if not len(trainings):
                out.append(Check(name, NONE, np.zeros(0)))
                continue
            out.append(arrow(name, cheap[:, model], dear[:, model], sign))
        return out

    def _loads(
        self,
        high: Callable[[Cell], bool],
        low: Callable[[Cell], bool],
        policy: str = "inframind",
    ) -> list[Check]:
        out = []
        for mode in MODES:
            for name, model, sign in (("DeepSeek", DEEPSEEK, -1), ("Llama-3B", LLAMA_3B, 1)):
                a, b = paired(
                    *(self.values(share(model), policy, mode, where) for where in (low, high))
                )
                out.append(arrow(f"{name}, {shown(mode)}", a, b, sign))
        return out

    def _between(self, figure: Any, high: Any, low: Any, name: str = "") -> list[Check]:
        """Compare a figure of `inframind` in two groups of cells: the first is to be larger."""
        out = []
        for mode in MODES:
            a, b = paired(*(self.values(figure, mode=mode, where=w) for w in (low, high)))
            out.append(arrow(name + shown(mode), a, b, 1))
        return out

    def _level(self, figure: Any, level: float, where: Any = None, sign: int = 1) -> list[Check]:
        """Compare a figure of `inframind` with a number: it is to be above (sign 1) or below."""
        out = []
        for mode in MODES:
            found = np.array(list(self.values(figure, mode=mode, where=where).values()))
            out.append(Check(shown(mode), interval(found, sign=level == 0), sign * (found - level)))
        return out

    def _lambda(self) -> list[Check]:
        paths = [np.array(f["lambda"]) for f in self.trainings("inframind").values()]
        fourth, twelfth, last = (np.array([path[i] for path in paths]) for i in (3, 11, -1))
        return [
            Check("after four sweeps", interval(fourth, 1, 3, False), fourth - 0.2),
            Check(
                "falls from sweep 12 on",
                f"by {interval(twelfth - last, 1, 3, False)}",
                twelfth - last,
            ),
            Check("ends below .10", f"at {interval(last, 1, 3, False)}", 0.10 - last),
        ]

    def _constraint(self) -> list[Check]:
        cost = np.array([f["cost"] for f in self.trainings("inframind").values()])
        out = [Check("training", interval(cost, 1, 2, False), 1.0 - cost)]
        for rate in (10, 100, 200):
            found = self.values("cost", mode="sample", where=at(rate=rate))
            mean = np.array(list(found.values()))
            out.append(Check(f"{rate}/min, sampled", interval(mean, 1, 2, False), 1.0 - mean))
        return out

    def _problem(self, figure: str, scale: float = 100.0, digits: int = 1) -> list[Check]:
        """Compare with MasRouter at 100/min, over all workloads: ours is to be smaller."""
        given: dict[str, Any] = {"world": "all", "workloads": WORKLOADS, "where": at(rate=100)}
        out = []
        for rival in MASROUTERS:
            theirs = self.values(figure, rival, "as shipped", scheduler="fcfs", **given)
            for mode in MODES:
                a, b = paired(theirs, self.values(figure, mode=mode, **given))
                name = f"against {TITLES[rival]}, {shown(mode)}"
                out.append(arrow(name, a, b, -1, scale, digits))
        return out

    def _headline(self, figure: str, rate: float, *workloads: str) -> list[Check]:
        of = workloads or WORKLOADS
        given: dict[str, Any] = {"world": "all", "workloads": of, "where": at(rate=rate)}
        out = []
        for rival in (*MASROUTERS, *(RIVALS if figure == "slo_100" else ())):
            theirs = self.values(figure, rival, "as shipped", scheduler="fcfs", **given)
            for mode in MODES:
                ours = self.values(figure, mode=mode, **given)
                single = dict.fromkeys(ours, theirs[0]) if rival in RIVALS and theirs else theirs
                a, b = paired(single, ours)
                name = ", ".join((*workloads, f"against {TITLES.get(rival, rival)}", shown(mode)))
                out.append(arrow(name, a, b, 1))
        return out

    def _below_half(self) -> Check:
        given: dict[str, Any] = {"world": "all", "workloads": WORKLOADS, "where": at(rate=100)}
        routed, *others = (
            self.values("slo_100", rival, "as shipped", scheduler="fcfs", **given).values()
            for rival in ("masrouter", *RIVALS)
        )
        best = np.array([max([value, *chain(*others)]) for value in routed])
        return Check("best of the published below 50 %", interval(best, sign=False), 0.5 - best)

    def _latency(self) -> list[Check]:
        out = []
        for rate, rival, mode in product((10, 100), MASROUTERS, MODES):
            given: dict[str, Any] = {"world": "all", "workloads": WORKLOADS, "where": at(rate=rate)}
            theirs = self.values("latency", rival, "as shipped", scheduler="fcfs", **given)
            a, b = paired(theirs, self.values("latency", mode=mode, **given))
            ratio = np.log(a / b) if len(a) else a
            half, mean = half_width(ratio), ratio.mean() if len(ratio) else np.nan
            least, middle, most = np.exp([mean - half, mean, mean + half])
            name = f"{rate}/min, {TITLES[rival]}, {shown(mode)}"
            out.append(Check(name, f"{middle:.1f} ({least:.1f} to {most:.1f})", ratio))
        return out

    def _ablation(self, name: str) -> list[Check]:
        out = []
        for mode in MODES:
            a, b = paired(self.values("goodput", name, mode), self.values("goodput", mode=mode))
            out.append(Check(shown(mode), f"{interval(b - a)} points", b - a))
        return out

    def _shedding(self) -> Check:
        """Compare how far drawn actions move from DeepSeek with the rate, without telemetry."""

        def change(policy: str) -> dict[int, float]:
            of = [
                self.values(share(DEEPSEEK), policy, "sample", at(rate=rate)) for rate in (10, 200)
            ]
            return {seed: of[1][seed] - of[0][seed] for seed in of[0].keys() & of[1].keys()}

        a, b = paired(change("no_telemetry"), change("inframind"))
        return arrow("DeepSeek's change, sampled, without → with", a, b, -1)

    def _pressure(self) -> list[Check]:
        """Compare what dear batches change with a λ that moves and one that does not."""

        def gaps(policy: str) -> dict[int, float]:
            found = self.trainings(policy).items()
            of = DEEPSEEK
            return {s: f["dear"][of] - f["cheap"][of] for s, f in found if f["dear"] and f["cheap"]}

        a, b = paired(gaps("fixed_lambda"), gaps("inframind"))
        return [arrow("DeepSeek's change, λ fixed → learned", a, b, -1)]

    def _edf(self, mode: str) -> Check:
        given: dict[str, Any] = {"mode": mode, "budgets": "tiers"}
        a, b = paired(*(self.values("slo_own", scheduler=s, **given) for s in ("fcfs", "edf")))
        return arrow(f"in their own budget, {shown(mode)}", a, b, 1)

    # Tables

    def claims_table(self) -> str:
        """Tabulate every claim with the published figure, ours, the verdict and the reason."""
        texts = yaml.safe_load(TEXTS.read_text("utf-8"))["claims"]
        body: list[list[str]] = []
        for name, checks in self.claims().items():
            of, verdict = texts[name], verdict_of(checks)
            ours = "; ".join(f"{c.label}: {c.ours}" if c.label else c.ours for c in checks) or NONE
            why = "Not played yet." if verdict == FEW else "Not explained yet."
            why = of["why"] if of["verdict"] == verdict else why
            body.append(
                [str(len(body) + 1), of["claim"], of["published"], ours, f"**{verdict}**", why]
            )
        return table(["", "claim", "published", "here", "verdict", "why"], body, left=6)

    def load_table(self) -> str:
        """Tabulate the change of two models' shares with the load, in how many seeds it is so."""
        named, body = self.claims(), list[list[str]]()
        rows = {
            "training batches, C̄ ≤ 1 → > 1": named["load_by_batch"],
            "10 → 200/min": named["load_by_rate"],
            "cells, C ≤ 1 → > 1": named["load_by_cell"],
            "`inframind_v2`, 10 → 200/min": self._loads(at(rate=200), at(rate=10), "inframind_v2"),
        }
        for title, checks in rows.items():
            for check in checks:
                d = check.differences
                body.append([title, check.label, check.ours, f"{(d > 0).sum()} of {len(d)}"])
        return table(["", "", "share %", "seeds in the claimed direction"], body, left=2)

    def lambda_table(self) -> str:
        """Tabulate λ at the ends of sweeps."""
        body: list[list[str]] = []
        for policy, world in (
            ("inframind", "math"),
            ("inframind", "all"),
            ("inframind_v2", "math"),
        ):
            paths = [np.array(f["lambda"]) for f in self.trainings(policy, world).values()]
            row = []
            for sweep in LAMBDA_SWEEPS:
                found = np.array([path[sweep - 1] for path in paths if len(path) >= sweep])
                row.append(interval(found, 1, 3, False))
            body.append([f"`{policy}` on {world}", *row])
        published = [".228", ".259", ".265", ".266", *[NONE] * (len(LAMBDA_SWEEPS) - 4)]
        body.append(["published, MATH; ends at .04 to .10", *published])
        return table(["λ after sweep", *map(str, LAMBDA_SWEEPS)], body)

    def tiers_table(self) -> str:
        """Tabulate models and strategies by budget, means over rates and seeds, MATH."""
        measured = yaml.safe_load(TEXTS.read_text("utf-8"))["math_tiers"]
        figures: list[Any] = [*map(share, range(5)), *map(strategy, range(3)), "slo_own"]
        body: list[list[str]] = []
        for budget, there in measured.items():
            for mode in MODES:
                row = []
                for figure in figures:
                    found = list(self.values(figure, mode=mode, where=at(budget=budget)).values())
                    row.append(f"{100 * np.mean(found):.0f}" if found else NONE)
                body.append([f"{budget} s, {shown(mode)}", *row])
            body.append([f"{budget} s, measured elsewhere", *map(str, there), NONE])
        heads = [*MODELS, *STRATEGIES, "in time"]
        return table(["% of decisions", *heads], body)

    def problems_table(self) -> str:
        """Tabulate what the paper calls its four problems, means over the workloads."""
        body: list[list[str]] = []
        for title, column in COLUMNS.items():
            for rate in (10, 100):
                row = []
                for name, scale, digits in PROBLEMS:
                    found = self.values(name, where=at(rate=rate), workloads=WORKLOADS, **column)
                    mean = scale * np.mean(list(found.values())) if found else np.nan
                    row.append(f"{mean:.{digits}f}" if found else NONE)
                body.append([f"{title}, {rate}/min", *row])
        heads = ["imbalance", "waiting calls", "while a server is empty", "tokens wasted %"]
        return table(["", *heads, "slots in use %", "servers empty %"], body)

    def headline_table(self) -> str:
        """Tabulate solved %, mean latency and share within 100 s by workload and rate."""
        systems = yaml.safe_load(PUBLISHED.read_text("utf-8"))["systems"]
        body: list[list[str]] = []
        for workload in WORKLOADS:
            for rate in RATES:
                row = [_published(systems[of][workload].get(int(rate))) for of in systems]
                for column in COLUMNS.values():
                    given = {"where": at(rate=rate), "workloads": (workload,), **column}
                    found = [
                        list(self.values(name, **given).values())
                        for name in ("accuracy", "latency", "slo_100")
                    ]
                    means = [float(np.mean(of)) if of else np.nan for of in found]
                    solved, latency, within = means
                    text = f"{100 * solved:.1f} / {latency:.0f} / {100 * within:.1f}"
                    row.append(text if found[0] else NONE)
                body.append([f"{workload}, {rate:g}/min", *row])
        heads = [f"{name}, measured elsewhere" for name in systems]
        return table(["", *heads, *COLUMNS], body)

    def ablations_table(self) -> str:
        """Tabulate each variant on MATH less the published method, paired by seed."""
        body: list[list[str]] = []
        for name in (name for name in ABLATIONS if not name.startswith("v2")):
            row = [f"`{name}`", str(len(self.trainings(name)))]
            for figure, mode in ((f, m) for f in ("goodput", "accuracy") for m in MODES):
                a, b = paired(self.values(figure, mode=mode), self.values(figure, name, mode))
                row.append(interval(b - a))
            found = self.trainings(name).values()
            gaps = np.array([f["dear"][0] - f["cheap"][0] for f in found if f["dear"]])
            body.append([*row, interval(gaps)])
        row = ["played first come, first served", str(SEEDS)]
        for figure, mode in ((f, m) for f in ("goodput", "accuracy") for m in MODES):
            given: dict[str, Any] = {"mode": mode, "budgets": "tiers"}
            a, b = paired(*(self.values(figure, scheduler=s, **given) for s in ("edf", "fcfs")))
            row.append(interval(b - a))
        body.append([*row, NONE])
        heads = [f"{f}, {shown(m)}" for f in ("goodput", "solved") for m in MODES]
        return table(
            ["less `inframind`", "seeds", *heads, "DeepSeek in dear batches, absolute"], body
        )

    def v2_table(self) -> str:
        """Tabulate goodput of `inframind` and `inframind_v2` on MATH by rate, and on all five."""
        rows = (
            ("`inframind`, likeliest", "inframind", "likeliest"),
            ("`inframind`, sampled", "inframind", "sample"),
            ("`inframind`, one agent, likeliest", "one_agent", "likeliest"),
            ("`inframind_v2`", "inframind_v2", "likeliest"),
            ("`inframind_v2`, sampled", "inframind_v2", "sample"),
            ("q counts late answers", "v2_solved", "as shipped"),
            ("epoch chosen as in `inframind`", "v2_selection", "as shipped"),
            ("three agents", "v2_three", "as shipped"),
        )
        body: list[list[str]] = []
        for title, policy, mode in rows:
            found = [self.values("goodput", policy, mode, at(rate=rate)) for rate in RATES]
            every = self.values("goodput", policy, mode)
            whole = self.values("goodput", policy, mode, world="all", workloads=WORKLOADS)
            found += [every, whole]
            cells = [interval(np.array(list(one.values())), sign=False) for one in found]
            body.append([title, str(len(every)), *cells])
        heads = [f"{rate:g}/min" for rate in RATES]
        return table(["goodput %, MATH", "seeds", *heads, "all rates", "five datasets"], body)

    def posterior_table(self) -> str:
        """Tabulate figures over posterior draws of quality, and how often each is first."""
        rows = {title: of for title, of in COLUMNS.items() if of["mode"] != "sample"}
        draws = [(f"math#{draw}", f"mbpp#{draw}") for draw in range(DRAWS)]
        body: list[list[str]] = []
        ranks: dict[tuple[str, float], Values] = {}
        for figure, rate in product(("accuracy", "goodput"), (10.0, 100.0)):
            played = (
                self.values(figure, where=at(rate=rate), workloads=draw, **column).get(0, np.nan)
                for column, draw in product(rows.values(), draws)
            )
            found = np.array(list(played)).reshape(len(rows), DRAWS)
            ranks[figure, rate] = found[:, ~np.isnan(found).any(axis=0)]
        for i, title in enumerate(rows):
            cells = []
            for found in ranks.values():
                if not found.shape[1]:
                    cells += [NONE, NONE]
                    continue
                low, high = 100 * np.quantile(found[i], [0.05, 0.95])
                first = (found.argmax(axis=0) == i).sum()
                cells += [f"{low:.0f} to {high:.0f}", f"{first} of {found.shape[1]}"]
            body.append([title, *cells])
        heads = []
        for figure, rate in ranks:
            name = "solved" if figure == "accuracy" else figure
            heads += [f"{name} %, {rate:g}/min", "first"]
        return table(["", *heads], body)

    def played(self) -> str:
        """Say how much of the page has been played."""
        known = [job.key for job in jobs()]
        missing = [key for key in known if key not in self.figures]
        kinds = {k: sum(key in self.figures for key in known if k in key) for k in KINDS}
        first = f": `{missing[0]}` and what follows it" if missing else ""
        return (
            f"{kinds['trainings/']} trainings and {kinds['plays/']} plays are done, "
            f"{len(missing)} of {len(known)} to go{first}. "
            "`python -m benchmarks paper` goes on with them."
        )

    def blocks(self) -> dict[str, str]:
        """Return the tables of the page by name."""
        return {
            "claims": self.claims_table(),
            "load": self.load_table(),
            "lambda": self.lambda_table(),
            "tiers": self.tiers_table(),
            "problems": self.problems_table(),
            "headline": self.headline_table(),
            "ablations": self.ablations_table(),
            "v2": self.v2_table(),
            "posterior": self.posterior_table(),
            "played": self.played(),
        }

    def draw(self) -> Figure:
        """Draw goodput and share within 100 s over the rate, means over the workloads."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10.4, 3.8), layout="constrained")
        panels = figure.subplots(1, 2)
        titles = (("goodput", "Solved in their own budget, %"), ("slo_100", "Within 100 s, %"))
        for panel, (name, title) in zip(panels, titles, strict=True):
            for label, column in COLUMNS.items():
                given = {"workloads": WORKLOADS, **column}
                found = [
                    np.array(list(self.values(name, where=at(rate=rate), **given).values()))
                    for rate in RATES
                ]
                if not all(len(one) for one in found):
                    continue
                halves = [100 * half_width(one) if len(one) > 1 else 0.0 for one in found]
                means = [100 * one.mean() for one in found]
                label = label.replace("`", "")
                panel.errorbar(RATES, means, halves, marker="o", ms=4, lw=1.5, label=label)
            panel.set(title=title, xlabel="queries/min", ylim=(0, 102))
            panel.grid(color=RULE, linewidth=0.6)
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside right upper", frameon=False, fontsize=8)
        return figure


KINDS: Final = ("trainings/", "plays/")
LAMBDA_SWEEPS: Final = (1, 2, 3, 4, 6, 12, 18, 36, 54)
PROBLEMS: Final = (
    *(("imbalance", 1.0, 2), ("waiting", 1.0, 1), ("avoidable", 1.0, 1), ("wasted", 100.0, 1)),
    *(("busy", 100.0, 1), ("empty", 100.0, 1)),
)


def refresh_page(figures: Mapping[str, Any], docs: Path, *, check: bool = False) -> list[Path]:
    """Refresh the page and its figure; return the page if it was stale."""
    page, shown_page = docs / "results" / "paper.md", Page(figures)
    fresh = refresh(page, shown_page.blocks(), check=check)
    if not check:
        save_all({"paper": shown_page.draw}, page.parent)
    return [] if fresh else [page]


# Parts of cells


def at(rate: float | None = None, budget: float | None = None) -> Callable[[Cell], bool]:
    """Return whether a cell is at a rate and a budget; None: at any."""
    return lambda cell: rate in (None, cell["rate"]) and budget in (None, cell["budget"])


def share(models: int | slice) -> Callable[[Cell], float]:
    """Return the share of a model, or of several, of the decisions."""
    return lambda cell: float(np.sum(cell["joint"][models]))


def strategy(index: int) -> Callable[[Cell], float]:
    """Return a strategy's share of the decisions."""
    return lambda cell: float(sum(row[index] for row in cell["joint"]))


def joint(model: int, index: int) -> Callable[[Cell], float]:
    """Return the share of a model with a strategy."""
    return lambda cell: float(cell["joint"][model][index])


def deepthink_gap(cell: Cell) -> float:
    """Return DeepThink's share of the two largest models' decisions less of the smallest's."""
    large = np.sum(cell["joint"][:2], axis=0)
    small = np.sum(cell["joint"][3:], axis=0)
    of = [row[2] / row.sum() if row.sum() else 0.0 for row in (large, small)]
    return float(of[0] - of[1])


# Texts


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[Values, Values]:
    """Return the values of the seeds that both have."""
    seeds = sorted(first.keys() & second.keys())
    return np.array([first[s] for s in seeds]), np.array([second[s] for s in seeds])


def arrow(
    label: str, a: Values, b: Values, sign: int, scale: float = 100.0, digits: int = 1
) -> Check:
    """Return the check that b is larger than a (sign 1), or smaller (-1)."""
    if not len(a):
        return Check(label, NONE, np.zeros(0))
    text = f"{scale * a.mean():.{digits}f} → {scale * b.mean():.{digits}f}"
    return Check(label, f"{text} ({interval(b - a, scale, digits)})", sign * (b - a))


def shown(mode: str) -> str:
    """Return the name of a way to play."""
    return "sampled" if mode == "sample" else mode


def verdict_of(checks: Iterable[Check]) -> str:
    """Return the verdict on a claim."""
    found = [check.differences for check in checks]
    if not found:
        return CANNOT
    if any(len(differences) < 3 for differences in found):
        return FEW
    held = [d.mean() > half_width(d) for d in found]
    return VERDICTS[2 if all(held) else 1 if any(held) else 0]


def _published(cell: Mapping[str, float] | None) -> str:
    if cell is None:
        return NONE
    within = format(cell["slo_100s"], ".1f") if "slo_100s" in cell else NONE
    return f"{cell['accuracy']:.1f} / {cell['latency_mean_s']:.0f} / {within}"
