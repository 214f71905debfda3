"""A run on Weights & Biases: its board as tables and numbers, and its report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from inframind_gym.benchmark.report.page import write_report
from inframind_gym.benchmark.results import Results
from inframind_gym.benchmark.tables import leaderboard_sheets
from inframind_gym.errors import require
from inframind_gym.progress import say

PROJECT: Final = "inframind"
REPORT: Final = "report.html"  # in the results folder


def log_to_wandb(results: Results, board: Mapping[str, Any]) -> None:
    """Log a leaderboard and a report; offline, unless the variable WANDB_MODE says otherwise.

    The run's summary has POLICY/METRIC, means over cells. Tables are those of the leaderboard, and
    the report is a page and a file of the run.

    Args:
        results: The run.
        board: Its leaderboard.

    Raises:
        ConfigError: The package wandb is not installed.
    """
    wandb = require("wandb", "--wandb", "track")
    page = results.folder / REPORT
    write_report([results.folder], page)
    header, metrics = results.header, results.layout.measured(results.family.metrics)
    run = wandb.init(
        project=PROJECT,
        name=header["suite"]["name"],
        dir=str(results.folder),
        config={"suite": header["suite"], "settings": header["settings"]},
        mode=os.environ.get("WANDB_MODE", "offline"),
    )
    for row in board["ranking"]:
        for name in metrics:
            run.summary[f"{row['policy']}/{name}"] = row[name]
    tables = {
        sheet.title: wandb.Table(
            columns=[heading.replace("\n", " ") or "#" for heading in sheet.headings],
            data=[list(row) for row in sheet.rows],
        )
        for sheet in leaderboard_sheets(dict(board))
    }
    run.log({**tables, "report": wandb.Html(page.read_text(encoding="utf-8"), inject=False)})
    run.save(str(page), base_path=str(results.folder), policy="now")
    run.finish()
    say(f"W&B: {run.name} of the project {PROJECT}; report: {page}")
