"""The tables of a leaderboard of tracks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inframind_gym.benchmark.tables import Sheet, metrics_sheet, of_planned, short
from inframind_gym.benchmark.tracks.metrics import METRICS, PROMISES, SCORE

_SHOWN = (SCORE, "goodput", "worst_goodput", "accuracy", "slo_100s", "latency_mean_s")
_MAIN = tuple(METRICS[name] for name in (*_SHOWN, "work_s_per_query", "unanswered"))


def track_sheets(board: Mapping[str, Any]) -> list[Sheet]:
    """Make the tables: scores by track and training, metrics, cells, frontiers."""
    sheets = [scores_sheet(board)]
    if any("by_training" in row for row in board["tracks"]):
        sheets.append(trainings_sheet(board))
    sheets.append(_metrics_sheet(board))
    if len(board["places"]) > 1:
        sheets.append(_cells_sheet(board))
    sheets.append(promises_sheet(board))
    if board["costs"]:
        sheets.append(costs_sheet(board))
    return sheets


def ranked_policies(board: Mapping[str, Any]) -> list[str]:
    """Return the policies, best mean over the tracks first."""
    found: dict[str, list[float]] = {}
    for row in board["tracks"]:
        found.setdefault(row["policy"], []).append(row[SCORE])
    return sorted(found, key=lambda name: -sum(found[name]) / len(found[name]))


def scores_sheet(board: Mapping[str, Any]) -> Sheet:
    """Make the table of the scores of all policies on all tracks."""
    tracks = list(dict.fromkeys(row["track"] for row in board["tracks"]))
    found = {(row["policy"], row["track"]): row for row in board["tracks"]}
    policies, fits = ranked_policies(board), board["fits"]
    ahead = {name: 0 for name in policies}
    for pair in board["pairs"]:
        ahead[pair["policy"]] += pair["ahead"]
    body, best = [], set()
    for r, policy in enumerate(policies):
        cells = []
        for c, track in enumerate(tracks, start=1):
            row = found.get((policy, track))
            cells.append(_margin(row) if row else "–")
            if row and row[SCORE] >= max(one[SCORE] for (_, t), one in found.items() if t == track):
                best.add((r, c))
        fitted = fits["queries"].get(policy)
        cells += [f"{ahead[policy]} of {len(policies) - 1}"]
        body.append([short(policy), *cells, "" if fitted is None else f"{fitted:,}"])
    budget = fits["budget_queries"]
    caption = (
        "% of the informed bound, interquartile mean over a track's cells ± half of the 95 % "
        "interval. Ahead of: policies below it, by the paired interval, in three of four tracks "
        "or more, and above it in none."
    )
    if budget:
        caption += f" Fitted with: simulated queries for one scenario, of {budget:,} at most."
    stale = sorted({f"{at['track']}/{at['scenario']}" for at in board["places"] if at["stale"]})
    if stale:
        caption += f" Limits of other constants: {', '.join(stale)}; inframind bench limits."
    headings = ["policy", *tracks, "ahead of", "fitted with"]
    if not budget:
        headings, body = headings[:-1], [row[:-1] for row in body]
    title = f"{board['suite']}: {of_planned(board, 'queries')}"
    return Sheet(title + ("" if board["split"] == "test" else f", {board['split']}"), headings,
                 body, caption, best=best)  # fmt: skip


def _margin(row: Mapping[str, Any]) -> str:
    low, high = row[f"{SCORE}_ci95"]
    return f"{100 * row[SCORE]:.1f}±{50 * (high - low):.1f}"


def trainings_sheet(board: Mapping[str, Any]) -> Sheet:
    """Make the table of the scores of every training, of policies that have several."""
    rows = [row for row in board["tracks"] if "by_training" in row]
    most = max((len(row["by_training"]) for row in rows), default=0)
    body = [
        [
            *(row["track"], short(row["policy"]), _margin(row)),
            *(f"{100 * score:.1f}" for score in row["by_training"]),
            *[""] * (most - len(row["by_training"])),
        ]
        for row in rows
    ]
    headings = ["track", "policy", "mean", *(f"training {i}" for i in range(most))]
    caption = "Intervals are over trainings and episodes."
    return Sheet("Trainings, % of the informed bound", headings, body, caption, left=2)


def _metrics_sheet(board: Mapping[str, Any]) -> Sheet:
    return metrics_sheet(
        "Metrics, means over all cells",
        board["ranking"],
        _MAIN,
        "Track score: the goodput that the track counts, by tenants' weights, of the worst budget "
        "or under the cap. Worst group: of the budgets. Unanswered: after the longest budget; "
        "they count as unsolved, with that latency. GPU s: of full steps.",
    )


def _cells_sheet(board: Mapping[str, Any]) -> Sheet:
    """Make the table of the places, with rates, bounds and scores."""
    policies = ranked_policies(board)
    found = {(row["policy"], row["track"], row["scenario"], row["load"]): row
             for row in board["rows"]}  # fmt: skip
    body = []
    for at in board["places"]:
        place = (at["track"], at["scenario"], at["load"])
        informed = at["informed"]
        body.append(
            [
                f"{at['track']}/{at['scenario']}",
                f"{at['load']:g}",
                f"{at['rate_per_min']:.3g}",
                "" if informed is None else f"{100 * informed:.1f}",
                *(_score_text(found.get((policy, *place))) for policy in policies),
            ]
        )
    return Sheet(
        "Track score % by cell",
        ["scenario", "ρ", "/min", "informed", *(short(policy) for policy in policies)],
        body,
        "ρ: share of the capacity, the rate at which the informed bound has fallen to 90 % of that "
        "on idle servers.",
    )


def _score_text(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{100 * row[SCORE]:.1f}"


def promises_sheet(board: Mapping[str, Any]) -> Sheet:
    """Make the table of the best goodput with a promise."""
    tracks = list(dict.fromkeys(row["track"] for row in board["promises"]))
    found = {(row["track"], row["promise"]): row for row in board["promises"]}
    promises: Sequence[float] = (*PROMISES, 0.0)
    heads = [f"{100 * p:g} % in 100 s" if p else "no promise" for p in promises]
    return Sheet(
        "Best goodput % with a promise",
        ["track", *heads],
        [[track, *(_promise_text(found[track, p]) for p in promises)] for track in tracks],
        "Of the policies that answer that share of a track's queries within 100 s.",
    )


def _promise_text(row: Mapping[str, Any]) -> str:
    return "–" if row["policy"] is None else f"{100 * row['goodput']:.1f} {short(row['policy'])}"


def costs_sheet(board: Mapping[str, Any]) -> Sheet:
    """Make the table of cost, goodput and hypervolume on the tracks that cap the cost."""
    rows = sorted(board["costs"], key=lambda row: (row["track"], -row["hypervolume"]))
    work, goodput = METRICS["work_s_per_query"], METRICS["goodput"]
    body = [
        [
            row["track"],
            "all together" if row["policy"] is None else short(row["policy"]),
            "" if row["policy"] is None else work.text(row["work_s_per_query"]),
            "" if row["policy"] is None else goodput.text(row["goodput"]),
            f"{100 * row['hypervolume']:.1f}",
        ]
        for row in rows
    ]
    return Sheet(
        "Cost and goodput",
        ["track", "policy", work.heading, goodput.heading, "hypervolume %"],
        body,
        "Hypervolume: share of the area from no cost to the track's largest cap that a policy's "
        "point dominates; all together: the frontier.",
        left=2,
    )
