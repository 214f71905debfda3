"""The page docs/results/paper.md, from the figures of `benchmarks/paper.py`.

Every claim of the paper is a row: its text and its comparisons are in `paper.yaml`, numbers and
verdicts are made here. A claim has checks: differences, one for each training seed, that should be
positive. A check holds if the 95 % interval over the seeds (Student's t) is above 0. A claim holds
if all of its checks do, in part if some do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.pages import NONE, RULE, refresh, table
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
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXTS: Final = Path(__file__).with_name("paper.yaml")
PUBLISHED: Final = Path(__file__).with_name("published.yaml")
DEEPSEEK: Final = MODELS.index("deepseek-32b")
MODES: Final = ("likeliest", "sample")
TITLES: Final = {"masrouter": "five agents", "masrouter_one": "one agent"}
NAMES: Final = {"accuracy": "solved", "goodput": "goodput"}  # of figures on the page
SHEDDING: Final = (("DeepSeek", "deepseek-32b", -1), ("Llama-3B", "llama-3b", 1))  # under load
# As other methods play.
AS_SHIPPED: Final[dict[str, Any]] = {"mode": "as shipped", "scheduler": "fcfs"}
FCFS: Final = {"scheduler": "fcfs", "budgets": "tiers"}
EDF: Final = {"scheduler": "edf", "budgets": "tiers"}
BUSY: Final = {"rate": 200}
IDLE: Final = {"rate": 10}
LAMBDA_SWEEPS: Final = (1, 2, 3, 4, 6, 12, 18, 36, 54)
PROBLEMS: Final = {  # figure of a play -> heading, scale and digits
    "imbalance": ("imbalance", 1.0, 2),
    "waiting": ("waiting calls", 1.0, 1),
    "avoidable": ("while a server is empty", 1.0, 1),
    "wasted": ("tokens wasted %", 100.0, 1),
    "busy": ("slots in use %", 100.0, 1),
    "empty": ("servers empty %", 100.0, 1),
}
VERDICTS: Final = ("does not hold here", "holds in part", "holds")
CANNOT: Final = "cannot be asked here"
Values = NDArray[np.float64]
Cell = Mapping[str, Any]  # the figures of a play at a rate and a budget
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
    """A part of a claim."""

    label: str  # what is compared; "" if the claim says it
    ours: str  # our figures, formatted
    differences: Values  # (seeds,) that are positive if the claim holds


def half_width(values: Values) -> float:
    """Return half of the 95 % interval of a mean over seeds."""
    from scipy.stats import t

    n = len(values)
    return float(t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n))


def interval(values: Values, scale: float = 100.0, digits: int = 1, sign: bool = True) -> str:
    """Return the mean of values with half of its 95 % interval."""
    if not len(values):
        return NONE
    text = f"{values.mean() * scale:{'+' if sign else ''}.{digits}f}"
    return f"{text} ± {half_width(values) * scale:.{digits}f}"


class Page:
    """The figures of all jobs, and the page's tables and plot of them."""

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self.figures, self.texts = figures, yaml.safe_load(TEXTS.read_text("utf-8"))
        self.plays = {
            key: list(map(with_shares, of["cells"])) for key, of in figures.items() if "cells" in of
        }

    # Figures by seed

    def trainings(self, policy: str, world: str = "math") -> list[Mapping[str, Any]]:
        """Return the figures of trainings."""
        keys = (Job("training", policy, world, seed).key for seed in range(SEEDS))
        return [self.figures[key] for key in keys]

    def dear_gap(self, policy: str) -> Values:
        """Return DeepSeek's share in dear training batches less that in cheap ones."""
        found = self.trainings(policy)
        return np.array([f["dear"][DEEPSEEK] - f["cheap"][DEEPSEEK] for f in found])

    def values(
        self,
        figure: str,
        policy: str = "inframind",
        mode: str = "likeliest",
        *,
        world: str = "math",
        workloads: Sequence[str] = ("math",),
        scheduler: str = "edf",
        budgets: str = "",
        **where: float,
    ) -> Values:
        """Return the mean of a figure over cells and workloads, for every seed, (seeds,).

        `where` selects cells, by rate, budget or whether they are late. RIVALS, which are not
        trained, have one value.
        """
        if policy in RIVALS:
            world, mode = "", "as shipped"
        found = []
        for seed in range(SEEDS if world else 1):
            job = Job("play", policy, world, seed, "", mode, scheduler, budgets)
            plays = [self.plays.get(job._replace(workload=name).key) for name in workloads]
            of = [[c[figure] for c in play if where.items() <= c.items()] for play in plays if play]
            if len(of) == len(workloads):
                found.append(np.mean([np.mean(values) for values in of]))
        return np.array(found)

    def compare(
        self,
        figure: str,
        less: Cell,
        more: Cell,
        label: str = "",
        sign: int = 1,
        scale: float = 100.0,
        digits: int = 1,
        modes: Sequence[str] = MODES,
        **both: Any,
    ) -> list[Check]:
        """Return the `arrow` of a figure from one setting of `values` to another, by mode."""
        out = []
        for mode in modes:
            a, b = (self.values(figure, **{"mode": mode, **both, **of}) for of in (less, more))
            out.append(arrow(label + shown(mode), a, b, sign, scale, digits))
        return out

    # Claims

    def claims(self) -> dict[str, list[Check]]:
        """Return the checks of every claim, by the claims' names in `paper.yaml`."""
        kinds: dict[str, Callable[..., list[Check]]]
        kinds = {"compare": self.compare, "level": self._level, "ablation": self._ablation}
        found = {
            name: [
                check
                for kind, checks in kinds.items()
                for arguments in of.get(kind, ())
                for check in checks(**arguments)
            ]
            for name, of in self.texts["claims"].items()
        }
        found["load_by_batch"] = self._batches()
        found["load_by_rate"] = self._loads(IDLE, BUSY)
        found["load_by_cell"] = self._loads({"late": False}, {"late": True})
        found["lambda"] = self._lambda()
        found["constraint"] = self._constraint()
        found["imbalance"] = self._against("imbalance", 100, sign=-1, scale=1.0, digits=2)
        found["queueing"] = self._against("avoidable", 100, sign=-1, scale=1.0)
        found["wasted"] = self._against("wasted", 100, sign=-1)
        found["telemetry"].append(self._shedding())
        found["pressure"] = self._pressure()
        found["accuracy"] = self._against("accuracy", 10)
        found["accuracy"] += [self._against("accuracy", 10, name)[0] for name in WORKLOADS]
        found["latency"] = self._latency()
        found["slo"] = self._against("slo_100", 100, rivals=(*MASROUTERS, *RIVALS))
        found["slo"].append(self._below_half())
        return found

    def _batches(self) -> list[Check]:
        trainings = self.trainings("inframind")
        cheap, dear = (np.array([f[key] for f in trainings]) for key in ("cheap", "dear"))
        indices = [(name, MODELS.index(model), sign) for name, model, sign in SHEDDING]
        return [arrow(name, cheap[:, of], dear[:, of], sign) for name, of, sign in indices]

    def _loads(self, less: Cell, more: Cell, **both: Any) -> list[Check]:
        """Compare the shares of two models: of DeepSeek less under load, of Llama-3B more."""
        out = []
        for mode, (name, model, sign) in product(MODES, SHEDDING):
            out += self.compare(model, less, more, f"{name}, ", sign, modes=[mode], **both)
        return out

    def _level(self, figure: str, level: float, sign: int = 1, **where: Any) -> list[Check]:
        """Compare a figure of `inframind` with a number: it is to be above (sign 1) or below."""
        out = []
        for mode in MODES:
            found = self.values(figure, mode=mode, **where)
            out.append(Check(shown(mode), interval(found, sign=level == 0), sign * (found - level)))
        return out

    def _lambda(self) -> list[Check]:
        paths = [np.array(f["lambda"]) for f in self.trainings("inframind")]
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
        cost = np.array([f["cost"] for f in self.trainings("inframind")])
        out = [Check("training", interval(cost, 1, 2, False), 1.0 - cost)]
        for rate in (10, 100, 200):
            mean = self.values("cost", mode="sample", rate=rate)
            out.append(Check(f"{rate}/min, sampled", interval(mean, 1, 2, False), 1.0 - mean))
        return out

    def _against(
        self,
        figure: str,
        rate: float,
        *workloads: str,
        rivals: Sequence[str] = MASROUTERS,
        **form: Any,
    ) -> list[Check]:
        """Compare with other methods at a rate, over workloads."""
        out, given = [], {**everywhere(rate, workloads or WORKLOADS), **form}
        for rival in rivals:
            name = ", ".join((*workloads, f"against {TITLES.get(rival, rival)}", ""))
            out += self.compare(figure, {"policy": rival, **AS_SHIPPED}, {}, name, **given)
        return out

    def _below_half(self) -> Check:
        routed, *others = (
            self.values("slo_100", policy=rival, **AS_SHIPPED, **everywhere(100))
            for rival in ("masrouter", *RIVALS)
        )
        best = np.array([max([value, *chain(*others)]) for value in routed])
        return Check("best of the published below 50 %", interval(best, sign=False), 0.5 - best)

    def _latency(self) -> list[Check]:
        out = []
        for rate, rival, mode in product((10, 100), MASROUTERS, MODES):
            given: dict[str, Any] = {"policy": rival, **AS_SHIPPED, **everywhere(rate)}
            ours = self.values("latency", mode=mode, **everywhere(rate))
            ratio = np.log(self.values("latency", **given) / ours)
            least, middle, most = np.exp(ratio.mean() + half_width(ratio) * np.array([-1, 0, 1]))
            name = f"{rate}/min, {TITLES[rival]}, {shown(mode)}"
            out.append(Check(name, f"{middle:.1f} ({least:.1f} to {most:.1f})", ratio))
        return out

    def _ablation(self, policy: str) -> list[Check]:
        gains = {m: self._less("goodput", {"policy": policy}, {}, mode=m) for m in MODES}
        return [Check(shown(m), f"{interval(gain)} points", gain) for m, gain in gains.items()]

    def _less(self, figure: str, a: Cell, b: Cell, **both: Any) -> Values:
        """Return a figure in a setting b of `values` less that in a setting a."""
        return self.values(figure, **both, **b) - self.values(figure, **both, **a)

    def _shedding(self) -> Check:
        """Compare how far drawn actions move from DeepSeek with the rate, without telemetry."""
        without, having = (
            self._less("deepseek-32b", IDLE, BUSY, policy=policy, mode="sample")
            for policy in ("no_telemetry", "inframind")
        )
        return arrow("DeepSeek's change, sampled, without → with", without, having, -1)

    def _pressure(self) -> list[Check]:
        """Compare what dear batches change with a λ that moves and one that does not."""
        fixed, learned = map(self.dear_gap, ("fixed_lambda", "inframind"))
        return [arrow("DeepSeek's change, λ fixed → learned", fixed, learned, -1)]

    # Tables

    def claims_table(self) -> str:
        """Tabulate every claim with the published figure, ours, the verdict and the reason."""
        body: list[list[str]] = []
        for name, checks in self.claims().items():
            of, verdict = self.texts["claims"][name], verdict_of(checks)
            ours = "; ".join(f"{c.label}: {c.ours}" if c.label else c.ours for c in checks) or NONE
            why = of["why"] if of["verdict"] == verdict else "Not explained yet."
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
            "`inframind_v2`, 10 → 200/min": self._loads(IDLE, BUSY, policy="inframind_v2"),
        }
        for title, checks in rows.items():
            for check in checks:
                d = check.differences
                body.append([title, check.label, check.ours, f"{(d > 0).sum()} of {len(d)}"])
        return table(["", "", "share %", "seeds in the claimed direction"], body, left=2)

    def lambda_table(self) -> str:
        """Tabulate λ at the ends of sweeps."""
        body: list[list[str]] = []
        worlds = (("inframind", "math"), ("inframind", "all"), ("inframind_v2", "math"))
        for policy, world in worlds:
            paths = [np.array(f["lambda"]) for f in self.trainings(policy, world)]
            row = [f"`{policy}` on {world}"]
            for sweep in LAMBDA_SWEEPS:
                found = np.array([path[sweep - 1] for path in paths if len(path) >= sweep])
                row.append(interval(found, 1, 3, False))
            body.append(row)
        published = [".228", ".259", ".265", ".266", *[NONE] * (len(LAMBDA_SWEEPS) - 4)]
        body.append(["published, MATH; ends at .04 to .10", *published])
        return table(["λ after sweep", *map(str, LAMBDA_SWEEPS)], body)

    def tiers_table(self) -> str:
        """Tabulate models and strategies by budget, means over rates and seeds, MATH."""
        figures = (*MODELS, *STRATEGIES, "slo_own")
        body: list[list[str]] = []
        for budget, there in self.texts["math_tiers"].items():
            for mode in MODES:
                means = (self.values(name, mode=mode, budget=budget).mean() for name in figures)
                texts = (f"{100 * mean:.0f}" for mean in means)
                body.append([f"{budget} s, {shown(mode)}", *texts])
            body.append([f"{budget} s, measured elsewhere", *map(str, there), NONE])
        return table(["% of decisions", *MODELS, *STRATEGIES, "in time"], body)

    def problems_table(self) -> str:
        """Tabulate what the paper calls its four problems, means over the workloads."""
        body: list[list[str]] = []
        for (title, column), rate in product(COLUMNS.items(), (10, 100)):
            given = {"rate": rate, "workloads": WORKLOADS, **column}
            means = ((self.values(name, **given).mean(), of) for name, of in PROBLEMS.items())
            texts = (f"{scale * mean:.{digits}f}" for mean, (_, scale, digits) in means)
            body.append([f"{title}, {rate}/min", *texts])
        return table(["", *(heading for heading, *_ in PROBLEMS.values())], body)

    def headline_table(self) -> str:
        """Tabulate solved %, mean latency and share within 100 s by workload and rate."""
        systems = yaml.safe_load(PUBLISHED.read_text("utf-8"))["systems"]
        body: list[list[str]] = []
        for workload, rate in product(WORKLOADS, RATES):
            row = [f"{workload}, {rate:g}/min"]
            for of in systems.values():
                cell = of[workload].get(int(rate))
                within = f"{cell['slo_100s']:.1f}" if cell and "slo_100s" in cell else NONE
                figures = cell and f"{cell['accuracy']:.1f} / {cell['latency_mean_s']:.0f}"
                row.append(f"{figures} / {within}" if figures else NONE)
            for column in COLUMNS.values():
                given = {"rate": rate, "workloads": (workload,), **column}
                solved, latency, in_time = (
                    self.values(name, **given).mean() for name in ("accuracy", "latency", "slo_100")
                )
                row.append(f"{100 * solved:.1f} / {latency:.0f} / {100 * in_time:.1f}")
            body.append(row)
        heads = [f"{name}, measured elsewhere" for name in systems]
        return table(["", *heads, *COLUMNS], body)

    def ablations_table(self) -> str:
        """Tabulate each variant on MATH less the published method, paired by seed."""
        body: list[list[str]] = []
        pairs: dict[str, Any] = {
            name: ({}, {"policy": name}) for name in ABLATIONS if not name.startswith("v2")
        }
        for name, settings in (*pairs.items(), ("played first come, first served", (EDF, FCFS))):
            kinds = product(("goodput", "accuracy"), MODES)
            row = [interval(self._less(figure, *settings, mode=mode)) for figure, mode in kinds]
            last = interval(self.dear_gap(name)) if name in ABLATIONS else NONE
            body.append([f"`{name}`" if name in ABLATIONS else name, str(SEEDS), *row, last])
        heads = [f"{f}, {shown(m)}" for f, m in product(("goodput", "solved"), MODES)]
        dear = "DeepSeek in dear batches, absolute"
        return table(["less `inframind`", "seeds", *heads, dear], body)

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
        columns: dict[str, dict[str, Any]] = {f"{rate:g}/min": {"rate": rate} for rate in RATES}
        columns |= {"all rates": {}, "five datasets": {"world": "all", "workloads": WORKLOADS}}
        body: list[list[str]] = []
        for title, policy, mode in rows:
            found = [self.values("goodput", policy, mode, **of) for of in columns.values()]
            body.append([title, str(SEEDS), *(interval(one, sign=False) for one in found)])
        return table(["goodput %, MATH", "seeds", *columns], body)

    def posterior_table(self) -> str:
        """Tabulate figures over posterior draws of quality, and how often each is first."""
        rows = {title: of for title, of in COLUMNS.items() if of["mode"] != "sample"}
        draws = [(f"math#{draw}", f"mbpp#{draw}") for draw in range(DRAWS)]
        heads, body = [""], [[title] for title in rows]
        for (figure, name), rate in product(NAMES.items(), (10.0, 100.0)):
            found = [
                self.values(figure, rate=rate, workloads=draw, **column)
                for column, draw in product(rows.values(), draws)
            ]
            of = np.reshape(found, (len(rows), DRAWS))
            heads += [f"{name} %, {rate:g}/min", "first"]
            for i, line in enumerate(body):
                low, high = 100 * np.quantile(of[i], [0.05, 0.95])
                first = (of.argmax(axis=0) == i).sum()
                line += [f"{low:.0f} to {high:.0f}", f"{first} of {DRAWS}"]
        return table(heads, body)

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
        }

    def draw(self) -> Figure:
        """Draw goodput and share within 100 s over the rate, means over the workloads."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10.4, 3.8), layout="constrained")
        panels = figure.subplots(1, 2)
        titles = {"goodput": "Solved in their own budget, %", "slo_100": "Within 100 s, %"}
        for panel, (name, title) in zip(panels, titles.items(), strict=True):
            for label, column in COLUMNS.items():
                given = {"workloads": WORKLOADS, **column}
                found = [self.values(name, rate=rate, **given) for rate in RATES]
                halves = [100 * half_width(one) if len(one) > 1 else 0.0 for one in found]
                means = [100 * one.mean() for one in found]
                label = label.replace("`", "")
                panel.errorbar(RATES, means, halves, marker="o", ms=4, lw=1.5, label=label)
            panel.set(title=title, xlabel="queries/min", ylim=(0, 102))
            panel.grid(color=RULE, linewidth=0.6)
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside right upper", frameon=False, fontsize=8)
        return figure


def refresh_page(figures: Mapping[str, Any], docs: Path, *, check: bool = False) -> list[Path]:
    """Refresh the page and its figure, from the figures of all jobs; return the page if stale."""
    path, page = docs / "results" / "paper.md", Page(figures)
    return refresh(path, page.blocks(), {path.with_suffix(".svg"): page.draw}, check=check)


def with_shares(cell: Cell) -> Cell:
    """Add whether queries are late in the mean, shares in the decisions, and DeepThink's gap.

    The gap is DeepThink's share of the two largest models' decisions less of the smallest's.
    """
    joint = np.array(cell["joint"])  # (M, S)
    models, strategies = joint.sum(axis=1).tolist(), joint.sum(axis=0).tolist()
    of = [row[2] / row.sum() if row.any() else 0.0 for row in (joint[:2].sum(0), joint[3:].sum(0))]
    shares = dict(zip((*MODELS, *STRATEGIES), models + strategies, strict=True))
    shares |= {"llamas": joint[3:].sum(), "llama-3b, Flash": joint[-1, 0]}
    return {**cell, **shares, "deepthink_gap": of[0] - of[1], "late": cell["cost"] > 1}


def everywhere(rate: float, workloads: Sequence[str] = WORKLOADS) -> dict[str, Any]:
    """Return the arguments of `Page.values` for all workloads at a rate."""
    return {"world": "all", "workloads": workloads, "rate": rate}


# Texts


def arrow(
    label: str, a: Values, b: Values, sign: int = 1, scale: float = 100.0, digits: int = 1
) -> Check:
    """Return the check that b is larger than a (sign 1), or smaller (-1)."""
    text = f"{scale * a.mean():.{digits}f} → {scale * b.mean():.{digits}f}"
    return Check(label, f"{text} ({interval(b - a, scale, digits)})", sign * (b - a))


def shown(mode: str) -> str:
    """Return the name of a way to play."""
    return "sampled" if mode == "sample" else mode


def verdict_of(checks: Iterable[Check]) -> str:
    """Return the verdict on a claim."""
    held = [check.differences.mean() > half_width(check.differences) for check in checks]
    return VERDICTS[2 if all(held) else 1 if any(held) else 0] if held else CANNOT
