"""`inframind workload fit`: a workload from a table of outcomes.

What one call's outcomes show is fitted: abilities, the spread of difficulty, lengths. What they
cannot show (the gains of strategies, roles and several agents, a router's mixes) is taken from a
shipped workload of the same domain, and the file says so.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
import yaml
from rich.console import Console
from rich.table import Table

from inframind_gym.calibration.outcomes import (
    COLUMNS,
    DOMAINS,
    LEAST_QUESTIONS,
    HeldOut,
    Lengths,
    Outcomes,
    Rasch,
    fit_lengths,
    fit_rasch,
    hold_out,
    read_outcomes,
)
from inframind_gym.errors import ConfigError, friendly, require_within, unknown
from inframind_gym.files import replace_text
from inframind_gym.simulator.item_response import accuracy
from inframind_gym.simulator.workload import Domain, TaskProfile, load_workload
from inframind_gym.tasks import DOMAINS as TASK_DOMAINS
from inframind_gym.tasks import load_tasks

app = typer.Typer(help="Workloads of your own.", no_args_is_help=True)

# Shipped workloads from which that is taken which a table of single calls does not show.
LIKE: Final[Mapping[Domain, str]] = {"Math": "math", "Code": "mbpp", "Commonsense": "mmlu_pro"}
_TAKEN: Final = ("planner", "strategy_mix", "prompt", "agents")


@app.callback()
def _group() -> None:
    """Workloads of your own."""


@dataclass(frozen=True)
class DomainFit:
    """Abilities and answer lengths of M models, fitted to the outcomes of one domain."""

    domain: Domain
    outcomes: Outcomes
    rasch: Rasch
    lengths: Lengths
    checked: HeldOut

    @property
    def asked(self) -> Any:
        """Outcomes of each model, (M,)."""
        return (~np.isnan(self.outcomes.right)).sum(axis=1)


def fit_domain(domain: Domain, outcomes: Outcomes, holdout: float) -> DomainFit:
    """Fit the outcomes of one domain, and check on a share of them that is held out.

    Raises:
        ConfigError: There are too few questions, or a model has no length.
    """
    if len(outcomes.questions) < LEAST_QUESTIONS:
        raise ConfigError(
            f"{domain}: {len(outcomes.questions)} questions are too few; at least "
            f"{LEAST_QUESTIONS} are needed."
        )
    rasch = fit_rasch(outcomes)
    lengths = fit_lengths(outcomes, rasch)
    for model, median in zip(outcomes.models, lengths.median, strict=True):
        if not math.isfinite(median):
            raise ConfigError(f"{domain}: model {model!r} has no answer with a length.")
    return DomainFit(domain, outcomes, rasch, lengths, hold_out(outcomes, holdout))


def workload_yaml(
    fit: DomainFit, source: str, name: str, dataset: str, aliases: Mapping[str, str]
) -> str:
    """Return a workload as YAML, with the origin and the errors of its numbers in comments.

    Args:
        fit: Of one domain.
        source: What was fitted, for the comment.
        name: Of the workload.
        dataset: Of the questions.
        aliases: Alias -> name in the table, of the models to write.
    """
    like = load_workload(LIKE[fit.domain]).profile
    index = [fit.outcomes.models.index(model) for model in aliases.values()]
    rasch, lengths, asked = fit.rasch, fit.lengths, fit.asked
    models = []
    for alias, m in zip(aliases, index, strict=True):
        key = json.dumps(alias, ensure_ascii=False)
        median, ability = f"{lengths.median[m]:.4g}", f"{rasch.ability[m]:.3f}"
        models.append(
            f"  {key}: {{output_tokens_median: {median}, ability: {ability}}}"
            f"  # ± {lengths.median_error[m]:.2g}, ± {rasch.ability_error[m]:.2f}; "
            f"{asked[m]} outcomes"
        )
    taken = like.model_dump(include=set(_TAKEN))
    taken["agents"]["visible_tests"] = 0.0
    taken["prompt"]["overhead_tokens"] = _overhead(fit, like)
    output = {
        "sigma_query": round(lengths.sigma_query, 3),
        "sigma_call": round(lengths.sigma_call, 3),
        "difficulty_slope": round(lengths.slope_pooled, 4),
        "strategy_factor": like.output.strategy_factor,
        "final_factor": like.output.final_factor,
    }
    quality = {
        **like.quality.model_dump(mode="json"),
        "discrimination": 1.0,
        "difficulty_sd": round(rasch.difficulty_sd, 4),
    }
    chars = "; tokens are characters / 4 (an estimate)" if fit.outcomes.unit != "tokens" else ""
    prompts = fit.outcomes.prompt_tokens
    overhead = "the table's mean prompt less the built-in tasks' own" if prompts else "as there"
    head = {"name": name, "description": f"Fitted to {source}", "num_queries": 500}
    return "\n".join(
        [
            f"# Fitted by `inframind workload fit` to {source}:",
            f"# {len(fit.outcomes.models)} models, {len(fit.outcomes.questions)} questions, "
            f"{asked.sum()} outcomes.",
            _plain(head | {"dataset": dataset, "domain": fit.domain}),
            f"# Assumed, as the shipped workload {like.name} has it: a table of single calls does "
            "not show it.",
            f"# overhead_tokens: {overhead}. visible_tests: none.",
            _plain(taken),
            "# Fitted: median answer length and ability (Rasch model), each with its standard "
            f"error{chars}.",
            f"# Add a model without outcomes by its score (percent right) on {dataset}:",
            f"#   my-model: {{output_tokens_median: 300, ability_from: {{{dataset}: 52.1}}}}",
            "models:",
            *models,
            "",
            "# Fitted: sigma_query, sigma_call, difficulty_slope (log length). Assumed: "
            "strategy_factor, final_factor.",
            _plain({"output": output}),
            f"# Fitted: difficulty_sd, ± {rasch.difficulty_sd_error:.2g}. Assumed: the gains and "
            "the other numbers.",
            _plain({"quality": quality}),
        ]
    )


def _plain(sections: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(sections), sort_keys=False, allow_unicode=True, width=100)


def _overhead(fit: DomainFit, like: TaskProfile) -> int:
    """Return the tokens of a prompt beyond the task's own text."""
    if fit.outcomes.prompt_tokens is None:
        return like.prompt.overhead_tokens
    tasks = load_tasks("builtin", split="all")
    own = tasks.prompt_tokens[tasks.domain == TASK_DOMAINS.index(fit.domain)].mean()
    return max(0, round(fit.outcomes.prompt_tokens - float(own)))


def figures(fit: DomainFit) -> dict[str, Any]:
    """Return the figures of a fit, as JSON; shares are fractions, spreads those of log length."""
    rasch, lengths, checked = fit.rasch, fit.lengths, fit.checked
    measured = np.nanmean(fit.outcomes.right, axis=1)
    columns = {
        "outcomes": fit.asked,
        "accuracy": measured,
        "accuracy_fitted": accuracy(rasch.ability, rasch.difficulty_sd),
        "ability": rasch.ability,
        "ability_error": rasch.ability_error,
        "tokens_median": lengths.median,
        "tokens_median_error": lengths.median_error,
        "length_spread": lengths.spread,
        "length_slope": lengths.slope,
        "held_out": checked.count,
        "held_out_measured": checked.measured,
        "held_out_predicted": checked.predicted,
        "held_out_chance_sd": checked.chance_sd,
    }
    rows = [
        {"model": model, **{name: _number(values[m]) for name, values in columns.items()}}
        for m, model in enumerate(fit.outcomes.models)
    ]
    error = 100.0 * np.abs(checked.predicted - checked.measured)[checked.count > 0]
    chance = 100.0 * checked.chance_sd[checked.count > 0]
    return {
        "domain": fit.domain,
        "questions": len(fit.outcomes.questions),
        "difficulty_sd": rasch.difficulty_sd,
        "difficulty_sd_error": rasch.difficulty_sd_error,
        "output": {
            "sigma_query": lengths.sigma_query,
            "sigma_call": lengths.sigma_call,
            "difficulty_slope": lengths.slope_pooled,
        },
        "held_out_points": {
            "mean_abs": _mean(error),
            "rms": math.sqrt(_mean(error**2)),
            "rms_by_chance": math.sqrt(_mean(chance**2)),
            "worst": float(error.max(initial=0.0)),
            "within_2": int((error <= 2.0).sum()),
            "models": len(error),
        },
        "models": rows,
    }


def _number(value: Any) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _mean(values: Any) -> float:
    return float(values.mean()) if len(values) else 0.0


def fit_table(of: Mapping[str, Any]) -> Table:
    """Make the table of `figures`."""
    points = of["held_out_points"]
    table = Table(
        title=f"{of['domain']}: {of['questions']} questions; difficulty spread "
        f"{of['difficulty_sd']:.2f} ± {of['difficulty_sd_error']:.2f} logits",
        caption=f"Held out: predicted share of right answers - measured, in points, ± what chance "
        f"makes of it. Mean absolute error {points['mean_abs']:.1f}, root mean square "
        f"{points['rms']:.1f} (by chance {points['rms_by_chance']:.1f}), worst "
        f"{points['worst']:.1f}; {points['within_2']} of {points['models']} models within 2. "
        "Right %: as measured. Slope: log length for each standard deviation of difficulty.",
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("model", overflow="ellipsis", no_wrap=True)
    columns = ("asked", "right %", "ability", "±", "tokens", "±", "slope", "held out", "±")
    for column in columns:
        table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True, min_width=4)
    for row in sorted(of["models"], key=lambda row: -row["ability"]):
        checked = ("", "")
        if row["held_out"]:
            error = 100.0 * (row["held_out_predicted"] - row["held_out_measured"])
            checked = f"{error:+.1f}", f"{100.0 * (row['held_out_chance_sd'] or 0.0):.1f}"
        table.add_row(
            row["model"],
            f"{row['outcomes']:.0f}",
            f"{100.0 * row['accuracy']:.1f}",
            f"{row['ability']:+.2f}",
            f"{row['ability_error']:.2f}",
            f"{row['tokens_median']:.0f}",
            f"{row['tokens_median_error']:.1f}",
            f"{row['length_slope']:+.2f}",
            *checked,
        )
    return table


@app.command()
def fit(
    outcomes: Annotated[
        Path,
        typer.Argument(
            metavar="OUTCOMES.csv[.gz]",
            help="A row for each model and query: query (id or text), model, correct (0 or 1), "
            "completion_tokens (or output_chars), and optionally domain and prompt_tokens.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Workload to write, YAML.")],
    domain: Annotated[
        str | None,
        typer.Option(help="Math, Code or Commonsense, of a table without such a column."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Name of the questions: of a published benchmark (mmlu_pro), or of those in the "
            "folder that `bench run --tasks` takes. Default: the table's file name."
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Models to write, ALIAS=NAME-IN-THE-TABLE or NAME, commas between; the aliases "
            "are those of the pool. All are fitted. Default: all."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Name of a column, MEANING=NAME; meanings: {', '.join(COLUMNS)}. Default: the "
            "usual names."
        ),
    ] = None,
    holdout: Annotated[
        float, typer.Option(help="Share of the outcomes that checks the fit, 0.01 to 0.9.")
    ] = 0.5,
    report: Annotated[Path | None, typer.Option(help="Figures to write, JSON.")] = None,
) -> None:
    """Fit a workload to a table of outcomes: abilities, difficulty, answer lengths.

    The file is fitted to all outcomes. For the check a share is held out: the report compares the
    share of right answers that the others predict with the measured one. A table with several
    domains becomes a workload a domain, and OUT mixes them.
    """
    with friendly():
        require_within(holdout, 0.01, 0.9, "--holdout")
        if domain is not None and domain.lower() not in DOMAINS:
            raise ConfigError(f"--domain: {unknown('domain', domain, DOMAINS.values())}")
        one_domain = None if domain is None else DOMAINS[domain.lower()]
        tables = read_outcomes(outcomes, _columns(column or []), one_domain)
        stem = dataset or re.sub(r"\.csv(\.gz)?$", "", outcomes.name)
        found = [fit_domain(of, table, holdout) for of, table in tables.items()]
        several = len(found) > 1
        texts, mix = {}, {}
        for one in found:
            aliases = _aliases(models, one.outcomes.models)
            ending = f"-{one.domain.lower()}" if several else ""
            path = out.with_name(f"{out.stem}{ending}.yaml") if several else out
            asks = f"{stem}_{one.domain.lower()}" if several else stem
            texts[path] = workload_yaml(one, outcomes.name, out.stem + ending, asks, aliases)
            mix[_relative(path)] = len(one.outcomes.questions)
        for path, text in texts.items():
            replace_text(path, text)
            load_workload(path)
        if several:
            whole = {"name": out.stem, "description": f"Fitted to {outcomes.name}", "mix": mix}
            head = "# Fitted by `inframind workload fit`; weights: questions. Paths start at the "
            replace_text(out, f"{head}working folder.\n{_plain(whole)}")
        shown = [figures(one) for one in found]
        if report is not None:
            content = {"outcomes": outcomes.name, "holdout": holdout, "domains": shown}
            replace_text(report, json.dumps(content, indent=1) + "\n")
    for part in shown:
        Console().print(fit_table(part))
    typer.echo(f"workload: {', '.join(map(str, [*texts, *([out] if several else [])]))}")
    if report is not None:
        typer.echo(f"report: {report}")
    typer.echo(f"play it: inframind bench run --suite starter --pool POOL.yaml --workload {out}")


def _relative(path: Path) -> str:
    return str(path) if path.parent != Path() else f"./{path}"


def _columns(given: Sequence[str]) -> dict[str, str]:
    columns = {}
    for item in given:
        meaning, equals, name = item.partition("=")
        if not equals or not name:
            raise ConfigError(f"--column {item}: write MEANING=NAME, for example model=llm.")
        if meaning not in COLUMNS:
            raise ConfigError(f"--column {item}: {unknown('meaning', meaning, COLUMNS)}")
        columns[meaning] = name
    return columns


def _aliases(option: str | None, models: Sequence[str]) -> dict[str, str]:
    """Return alias -> name in the table, of the models to write."""
    if option is None:
        return {model: model for model in models}
    aliases = {}
    for item in option.split(","):
        alias, _, name = item.strip().partition("=")
        if (name or alias) not in models:
            raise ConfigError(f"--models: {unknown('model', name or alias, models)}")
        if alias in aliases:
            raise ConfigError(f"--models: {alias!r} is given twice. Keep one.")
        aliases[alias] = name or alias
    return aliases
