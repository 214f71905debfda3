"""Results folders as arrays, and their leaderboards: as JSON content, and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.cells import Cell, Place, in_order
from inframind_gym.evaluation.metrics import Layout
from inframind_gym.evaluation.stats import (
    CONFIDENCE,
    NUM_RESAMPLES,
    SEED,
    Episode,
    Estimate,
    interval,
)
from inframind_gym.evaluation.store import read_cells, read_header
from inframind_gym.evaluation.suite import Suite, family_of
from inframind_gym.evaluation.tables import Table, matrix, metrics_table, of_planned

MIN_SEEDS: Final = 5

Strata = dict[Place, dict[int, tuple[Episode, ...]]]  # by place and seed, one of each training


@dataclass(frozen=True, slots=True)
class Results:
    """A results folder."""

    folder: Path  # where it is
    header: dict[str, Any]  # content of ``run.json``
    family: type[Suite]  # family of its cells
    layout: Layout  # of the sums
    # The finished cells, but for those of policies that were left out
    episodes: dict[Cell, Episode]
    missing: dict[str, list[str]]  # coordinates of planned cells without a result, by policy
    damaged: int = 0  # files of records that cannot be read
    others: int = 0  # finished cells of the folder that `of` left away
    # Whether episodes have the values from which the tail metric follows
    has_tails: bool = True

    @property
    def kind(self) -> str:
        """Name of the family in suite files."""
        return str(self.header["suite"].get("kind", "routing"))

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the metrics that follow from the episodes."""
        names = self.family.metrics
        return tuple(name for name in names if self.has_tails or name != self.layout.tail)

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies with results, in the order of the run."""
        present = {cell.policy for cell in self.episodes}
        return tuple(name for name in self.header["policies"] if name in present)

    @property
    def planned(self) -> int:
        """Number of cells of a complete folder."""
        return len(self.episodes) + sum(map(len, self.missing.values()))

    def notes(self) -> list[str]:
        """Return notes on left-out policies, estimated constants and unfinished cells."""
        left_out = self.header.get("left_out", {})
        notes = [f"{policy} was left out: {why}" for policy, why in left_out.items()]
        if self.others:
            ranked = f"inframind bench leaderboard {self.folder} ranks all"
            notes.append(f"{self.folder} holds {self.others} more cells, of other runs: {ranked}")
        for texts in self.header.get("estimates", {}).values():
            notes += [text for text in texts if text not in notes]
        if self.missing:
            parts = [
                f"{len(cells)} of {policy} ({'; '.join(cells[:2])}{'; …' if cells[2:] else ''})"
                for policy, cells in self.missing.items()
            ]
            damaged = f" ({self.damaged} damaged files)" if self.damaged else ""
            notes.append(
                f"unfinished, {len(self.episodes)} of {self.planned} cells; missing{damaged}: "
                f"{', '.join(parts)}. The command that made {self.folder} continues it"
            )
        return notes

    def of(self, suite: Suite) -> Results:
        """Return the results in a suite's cells, of its policies and any that played them all."""
        places, wanted = set(suite.places()), {cell.where for cell in suite.cells()}
        every = set(product(places, suite.seed_list))
        found = {c: episode for c, episode in self.episodes.items() if (c.place, c.seed) in every}
        played = {p: {(c.place, c.seed) for c in found if c.policy == p} for p in self.policies}
        ranked = {name for name, own in played.items() if name in suite.policies or own == every}
        here = {cell: episode for cell, episode in found.items() if cell.policy in ranked}
        missing = {
            policy: [where for where in cells if where.partition(", training ")[0] in wanted]
            for policy, cells in self.missing.items()
            if policy in {*ranked, *suite.policies}
        }
        missing = {policy: cells for policy, cells in missing.items() if cells}
        header, others = dict(self.header), len(self.episodes) - len(here)
        left_out = header.get("left_out", {})
        header["left_out"] = {p: why for p, why in left_out.items() if p in suite.policies}
        if "places" in header:
            of_place = {"/".join(map(str, place)) for place in places}
            header["places"] = {k: at for k, at in header["places"].items() if k in of_place}
        return replace(self, header=header, episodes=here, missing=missing, others=others)

    def strata(self, policy: str) -> Strata:
        """Return the episodes of a policy by place and seed, one of each training.

        A seed that not all trainings of the place have finished is left out.
        """
        by_place: dict[Place, dict[int, list[Episode]]] = {}
        for cell, episode in sorted(self.episodes.items(), key=lambda item: item[0].sort_key):
            if cell.policy == policy:
                by_place.setdefault(cell.place, {}).setdefault(cell.seed, []).append(episode)
        strata = {}
        for place, by_seed in by_place.items():
            most = max(map(len, by_seed.values()))
            strata[place] = {s: tuple(each) for s, each in by_seed.items() if len(each) == most}
        return strata


def load_results(folder: Path) -> Results:
    """Read the finished cells of a folder.

    Raises:
        InfraMindError: It is no results folder, or holds no finished cell that can be read.
    """
    header = read_header(folder)
    family = family_of(header["suite"])
    try:
        layout = family.layout(header)
        _ = layout.sums  # which depend on the header
    except (KeyError, TypeError):
        raise ConfigError(
            f"{folder}: run.json was written by another version of the benchmark."
        ) from None
    planned, left_out = header.get("planned", {}), header.get("left_out", {})
    missing = {name: dict(cells) for name, cells in planned.items() if name not in left_out}
    episodes: dict[Cell, Episode] = {}
    damaged = 0
    for one in read_cells(folder):
        if one is None:
            damaged += 1
        elif one.cell.policy not in left_out and (
            not planned or one.cell_id in planned.get(one.cell.policy, {})
        ):
            missing.get(one.cell.policy, {}).pop(one.cell_id, None)
            episodes[one.cell] = Episode.of(layout, one.columns)
    if not episodes:
        torn = f" ({damaged} damaged files)" if damaged else ""
        raise ConfigError(
            f"{folder} holds no finished cell yet{torn}. Run the command that made it again."
        )
    lacking = {policy: list(cells.values()) for policy, cells in missing.items() if cells}
    return Results(folder, header, family, layout, episodes, lacking, damaged)


def leaderboard(results: Results, *, num_resamples: int = NUM_RESAMPLES) -> dict[str, Any]:
    """Compute a leaderboard as JSON content.

    A row pools the queries of all seeds of one policy and place (for routing a workload, rate and
    budget). Averages give each place the same weight, over the places that every policy has
    finished, so that policies stay comparable while a run goes on.

    Args:
        results: A results folder.
        num_resamples: Resamples of the bootstrap.

    Returns:
        ``rows``; ``ranking`` and one table for each axis, for routing ``by_workload``, ``by_rate``
        and ``by_budget`` (averages, best score first); ``notes`` for the reader; numbers of
        ``cells`` and of ``planned`` ones, with those that are ``missing`` by policy, and reasons of
        policies ``left_out``; and the method of the intervals. Every metric has its interval under
        ``<metric>_ci95``. Policies that cannot be beaten (``bound`` is true) are listed without a
        rank; ``of_bound`` is the share of the best bound's score that the others reach, ``regret``
        what they lose to `Suite.regret`.
    """
    family, header = results.family, results.header
    bounds = set(header.get("bounds", ()))
    strata = {policy: results.strata(policy) for policy in results.policies}
    first, *others = strata.values()
    common = [place for place in first if all(place in other for other in others)]
    rows: list[dict[str, Any]] = []
    scored: dict[str, dict[Place, Estimate]] = {policy: {} for policy in strata}
    # Table -> value on its axis -> policy -> average over the places with that value
    averages: dict[str, dict[Any, dict[str, Estimate]]] = {
        table: {} for table in ("ranking", *(axis.table for axis in family.axes))
    }
    for policy, by_place in strata.items():
        for place, episodes in by_place.items():
            estimate = Estimate.of(
                results.measured, results.layout, policy, episodes.values(), place, num_resamples
            )
            row = {"policy": policy, "bound": policy in bounds, **family.describe(place)}
            rows.append({**row, "seeds": sorted(episodes), **estimate.to_json()})
            if place not in common:
                continue
            scored[policy][place] = estimate.only(family.score)
            for of_table, value in zip(averages.values(), ("", *place), strict=True):
                peers = of_table.setdefault(value, {})
                peers[policy] = peers[policy] + estimate if policy in peers else estimate
    score, tables = family.metrics[family.score], dict[str, list[dict[str, Any]]]()
    for (table, of_table), axis in zip(averages.items(), (None, *family.axes), strict=True):
        tables[table] = []
        for value in sorted(of_table, key=lambda value: in_order((value,))):
            peers = of_table[value]
            ranked = [
                {
                    "policy": policy,
                    "bound": policy in bounds,
                    **({axis.name: value} if axis else {}),
                    "cells": one.strata,
                    "missing": len(results.missing.get(policy, ())),
                    **one.to_json(),
                    **_to_bound(one, peers, bounds, family),
                }
                for policy, one in peers.items()
            ]
            tables[table] += sorted(
                ranked, key=lambda row: (-score.signed(row[score.name]), row["policy"])
            )
    return {
        "folder": str(results.folder),
        "suite": header["suite"]["name"],
        "kind": results.kind,
        **{key: header["suite"][key] for key in family.shown if key in header["suite"]},
        "cells": len(results.episodes),
        "planned": results.planned,
        "missing": results.missing,
        "damaged": results.damaged,
        "left_out": dict(header.get("left_out", {})),
        "records": sum(episode.records for episode in results.episodes.values()),
        "intervals": {
            "method": "stratified bootstrap over episodes, expanded percentile interval",
            "confidence": CONFIDENCE,
            "num_resamples": num_resamples,
            "seed": SEED,
        },
        "notes": results.notes() + _notes(list(strata.values()), common),
        "rows": rows,
        **tables,
        **family.scores(header, scored),
    }


def leaderboard_tables(board: Mapping[str, Any]) -> list[Table]:
    """Make the tables of a leaderboard; none if no cell has been finished by every policy.

    A ranking, and along each axis that has a title and several values, or is a load, tables of the
    metrics at each value or one of the score by value; the family adds its own.
    """
    ranking, family = board["ranking"], family_of(board)
    if not ranking:
        return []
    score, beside = family.metrics[family.score], family.metrics.get(family.beside)
    main = [family.metrics[name] for name in family.main]
    policies = [row["policy"] for row in ranking]
    records = of_planned(board, family.unit, len(policies) if family.regret else 1)
    title = family.title.format(suite=board["suite"], records=records, about=family.about(board))
    cells = "1 cell" if ranking[0]["cells"] == 1 else f"{ranking[0]['cells']} cells"
    caption = family.caption.format(cells=cells)
    if "regret" in ranking[0]:
        caption += f" regret: what {family.regret} earns more, on the same episodes."
    if bounds := [row["policy"] for row in ranking if row.get("bound")]:
        who = "it knows" if len(bounds) == 1 else "they know"
        caption += f" Not ranked, because {who} what contestants cannot: {', '.join(bounds)}."
    tables = [metrics_table(title, ranking, main, caption)]
    for axis in family.axes:
        rows = board[axis.table]
        values = list(dict.fromkeys(row[axis.name] for row in rows))
        if not axis.title or (len(values) == 1 and axis.read is not float):
            continue
        if "{}" in axis.title:
            for value in values:
                there = [row for row in rows if row[axis.name] == value]
                tables.append(metrics_table(axis.title.format(axis.text(value)), there, main))
        else:
            title = axis.title.format(score=score.label)
            tables.append(matrix(title, rows, axis.name, policies, score, beside, axis.text))
    return family.tables(board, tables)


def _to_bound(
    average: Estimate, peers: Mapping[str, Estimate], bounds: set[str], family: type[Suite]
) -> dict[str, Any]:
    """Return the score over that of the best bound, or the reverse where less is better.

    For a family with `regret`, return how much better the bound of that name is.
    """
    score = family.metrics[family.score]
    above = [peers[name] for name in peers if name in bounds and family.regret in ("", name)]
    if not above:
        return {}
    i = average.names.index(score.name)
    best = max(above, key=lambda bound: score.signed(bound.values[i]))
    if family.regret:
        name, value = "regret", score.signed(float(best.values[i] - average.values[i]))
        draws = score.signed(1.0) * (best.draws[:, i] - average.draws[:, i])
        by_training = average.by_training[:, i]
    else:
        over, under = (average, best) if score.better == "higher" else (best, average)
        if not under.values[i]:
            return {}
        name, value = "of_bound", float(over.values[i] / under.values[i])
        top, bottom = over.draws[:, i], under.draws[:, i]
        draws = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
        by_training = over.by_training[:, i] / np.maximum(under.by_training[:, i], 1e-12)
    ends = interval(draws, np.asarray(average.units), by_training=[by_training])
    return {name: value, f"{name}_ci95": ends.tolist()}


def _notes(strata: Sequence[Strata], common: Sequence[Place]) -> list[str]:
    """Return notes on cells that not all policies have finished, and on few seeds."""
    notes = []
    every = {place for by_place in strata for place in by_place}
    if len(common) < len(every):
        notes.append(
            f"averages are over the {len(common)} of {len(every)} cells that every policy has "
            "finished"
        )
    fewest = min(len(seeds) for by_place in strata for seeds in by_place.values())
    if fewest == 1:
        notes.append(
            "some cells have one seed: their intervals come from stretches of that one episode"
        )
    elif fewest < MIN_SEEDS:
        notes.append(
            f"some cells have {fewest} seeds: intervals from fewer than {MIN_SEEDS} are rough"
        )
    return notes
