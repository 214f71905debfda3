"""Cards fitted to a pool: to simulated servers whose cards are known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from typer.testing import CliRunner

from inframind_gym.calibration import live_pool
from inframind_gym.calibration.live_pool import (
    LEAST_CALLS,
    fit_pool,
    mismatch_of,
    read_calls,
    served,
)
from inframind_gym.cli import app
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.state import CALL

TRUTH = load_pool("b200-2gpu")


def answered(count: int, per_s: float = 1.0) -> NDArray[Any]:
    """Return calls that the servers of TRUTH have answered."""
    rng, calls = np.random.default_rng(4), np.zeros(count, CALL)
    calls["model"] = np.arange(count) % len(TRUTH.models)
    calls["submit_s"] = np.cumsum(rng.exponential(1.0 / per_s, count))
    calls["prompt_tokens"] = rng.integers(40, 900, count)
    calls["output_tokens"] = rng.integers(50, 400, count)
    calls["priority"] = rng.integers(9, size=count)
    again = served(cards(TRUTH), calls)
    calls["first_token_s"], calls["finish_s"] = again["first_token_s"], again["finish_s"]
    return calls


def other_cards() -> PoolConfig:
    """Return TRUTH with step costs that are off by a factor of 2 to 3, and no slowdown."""
    models = []
    for m, model in enumerate(TRUTH.models):
        step = model.server.step
        step = step.model_copy(update={"base_s": step.base_s * (3.0 if m % 2 else 0.4)})
        server = model.server.model_copy(update={"step": step})
        models.append(model.model_copy(update={"server": server}))
    gpus = tuple(gpu.model_copy(update={"colocation_slowdown": 0.0}) for gpu in TRUTH.gpus)
    return TRUTH.model_copy(update={"models": tuple(models), "gpus": gpus})


def test_true_cards_have_no_mismatch_and_too_few_calls_are_refused() -> None:
    calls = answered(60)
    assert mismatch_of(TRUTH, calls) < 1e-12 < 0.3 < mismatch_of(other_cards(), calls)
    with np.errstate(all="raise"):  # of models that were not asked nothing is divided
        assert np.isfinite(mismatch_of(TRUTH, calls[calls["model"] > 1]))
    with pytest.raises(InfraMindError, match="let there be more of them"):
        fit_pool(TRUTH, calls[: LEAST_CALLS - 1])


@pytest.mark.parametrize(
    "wrong", [{"sent_ts": math.nan}, {"output_toks": "nan"}, {"speed": 0.0}, {"end_ts": "x"}]
)
def test_a_log_with_what_is_no_number_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    line = {"model": TRUTH.aliases[0], "status": "ok", "sent_ts": 1.0, "end_ts": 2.0}
    line |= {"input_toks": 9, "output_toks": 9, "speed": None}
    (tmp_path / "log.jsonl").write_text(json.dumps(line))
    assert len(read_calls(tmp_path / "log.jsonl", TRUTH)) == 1
    (tmp_path / "log.jsonl").write_text(json.dumps(line | wrong))
    with pytest.raises(ConfigError, match=r"line 1: (a time or a count is no number|speed: )"):
        read_calls(tmp_path / "log.jsonl", TRUTH)


def test_a_gateways_log_fits_its_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At speed 2; every other answer was whole, one model has few calls, one was refused."""
    monkeypatch.setattr(live_pool, "EVALUATIONS", 800)
    calls = answered(400)
    rare = np.flatnonzero(calls["model"] == 4)[3:]
    lines: list[dict[str, Any]] = [{"request_id": "x", "model": None, "status": "refused"}]
    for k, call in enumerate(np.delete(calls, rare)):
        times = {name: 1e3 + float(call[f"{name}_s"]) / 2 for name in ("submit", "finish")}
        line = {"model": TRUTH.aliases[call["model"]], "sent_ts": times["submit"]}
        line |= {"input_toks": int(call["prompt_tokens"]), "end_ts": times["finish"]}
        line |= {"output_toks": int(call["output_tokens"]), "priority": float(call["priority"])}
        first = {} if k % 2 else {"first_token_ts": 1e3 + float(call["first_token_s"]) / 2}
        lines.append(line | first | {"speed": 2.0} | {"status": "whole" if k % 2 else "ok"})
    (tmp_path / "access.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = read_calls(tmp_path / "access.jsonl", TRUTH)
    assert read["finish_s"][0] == pytest.approx((calls["finish_s"] - calls["submit_s"])[0])
    wrong = other_cards().model_dump(mode="json", exclude_none=True)
    wrong |= {"name": "x" * 62, "description": "Estimated: five models"}
    for entry in wrong["models"]:
        entry["server"]["evidence"] = {"sequences": [1, 2], "new_tokens": [1, 2]}
    exact = wrong["models"][4]["server"]["step"]["base_s"] = 0.012345678
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    out, report = tmp_path / "fitted.yaml", tmp_path / "report.json"
    arguments = ["calibrate", str(tmp_path / "access.jsonl"), "--out", str(out)]
    with_pool = [*arguments, "--pool", str(tmp_path / "wrong.yaml"), "--report", str(report)]
    result = CliRunner().invoke(app, with_pool)
    assert result.exit_code == 0, result.output
    figures = json.loads(report.read_text())
    assert figures["kept"] == [TRUTH.aliases[4]]
    assert figures["checked"]["fitted"] < 0.7 * figures["checked"]["before"]
    fitted = load_pool(out)
    assert fitted.name == "x" * 57 + "-fitted" and fitted.description == "Fitted: five models"
    evidence = [model.server.evidence is None for model in fitted.models]
    assert evidence == [True] * 4 + [False] and fitted.models[4].server.step.base_s == exact
    for more, message in (
        (with_pool, "--force"),  # nothing is overwritten without it
        ([*with_pool, "--force", "--max-num-seqs", "4"], "give no option of one"),
        ([*arguments, "--force"], "or --pool"),
    ):
        result = CliRunner().invoke(app, more)
        assert result.exit_code == 2 and message in " ".join(result.output.split())
