"""Submissions: what is complete and true is accepted, everything else refused with the reason."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inframind_gym import configs
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.evaluation.board import leaderboard, load_results
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.store import HEADER
from inframind_gym.evaluation.submission import (
    CELLS,
    MANIFEST,
    check,
    digests,
    joined,
    prepare,
    verify,
)
from inframind_gym.evaluation.suite import family_of, load_suite
from inframind_gym.policies.checkpoint import SHIPPED

TINY = """
name: tiny
description: Six episodes
pool: b200-2gpu
policies: [round_robin]
workloads: [math]
rates_per_min: [20, 200]
budgets_s: [100]
seeds: 3
num_queries: 12
"""


@pytest.fixture(scope="module", autouse=True)
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small suite among the shipped ones."""
    root = tmp_path_factory.mktemp("configs")
    (root / "suites").mkdir()
    (root / "suites" / "tiny.yaml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configs, "_ROOTS", (*configs._ROOTS, root))
        yield


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory for every test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def play(*policies: str) -> None:
    run(load_suite("tiny", {"policies": policies}).resolve(), Path("results"))


def submitted(name: str = "mine", **options: Any) -> Path:
    return prepare(Path("results"), Path("submissions"), name=name, authors="A. Uthor", **options)


@pytest.fixture(scope="module")
def honest(shipped: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        play("round_robin", "random")
        return submitted(policy="round_robin", training_queries=0).resolve()


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "tiny" / "mine"
    shutil.copytree(honest, folder)
    return folder


def reseal(folder: Path, **changes: Any) -> None:
    """Edit a manifest and forge its checksums."""
    content = json.loads((folder / MANIFEST).read_text()) | changes
    content["files"] = digests(folder)
    (folder / MANIFEST).write_text(json.dumps(content))


def forge_lines(folder: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Edit the cells and forge all checksums."""
    raw = gzip.decompress((folder / CELLS).read_bytes())
    lines = change([json.loads(line) for line in raw.splitlines()])
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / CELLS).write_bytes(gzip.compress(text.encode()))
    reseal(folder)


def test_a_submission_is_verified_and_has_the_board_of_its_run(honest: Path) -> None:
    assert "6 cells, complete; 2 played again, all equal (choice 1)" in verify(honest, seed=1)
    assert "6 played again" in verify(honest, full=True)
    board = leaderboard(joined(honest.parent))
    own = leaderboard(load_results(honest.parents[2] / "results"))
    (row,) = board["ranking"]
    (of_run,) = (row for row in own["ranking"] if row["policy"] == "round_robin")
    assert "latency_p95_s" not in row  # no values of tails are submitted
    for metric in family_of({}).metrics:
        if metric in row:
            for key in (metric, f"{metric}_ci95"):
                assert row[key] == of_run[key], key


def test_nothing_of_the_machine_is_published_but_its_kind(honest: Path) -> None:
    for path in honest.iterdir():
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert str(honest.parents[2]).encode() not in raw
    assert json.loads((honest / HEADER).read_text())["runs"][0]["command"][-1] == "round_robin"


def flipped(name: str, place: float) -> Callable[[Path], None]:
    """Flip a bit of a file."""

    def change(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[int(place * len(raw))] ^= 1
        (folder / name).write_bytes(raw)

    return change


def first(**changes: Any) -> Callable[[Path], None]:
    """Forge the first cell."""
    return lambda folder: forge_lines(folder, lambda all: [{**all[0], **changes}, *all[1:]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (flipped(name, place), f"{name}.*is not what was submitted")
            for name in (HEADER, CELLS)
            for place in (0.02, 0.5, 0.98)
        ),
        (lambda folder: (folder / "more.json").touch(), r"more\.json is not what was submitted"),
        (lambda folder: (folder / HEADER).unlink(), r"run\.json is missing"),
        *(
            (lambda folder, name=name: (folder / name).touch(), f"{name}: has no place in a")
            for name in ("weights.pkl", "requirements.txt", "module.so", "my_router.py")
        ),
        (
            lambda folder: forge_lines(folder, lambda lines: lines[1:]),
            r"5 of the 6 cells .* every seed.*missing: math, 20/min",
        ),
        (lambda folder: forge_lines(folder, lambda lines: [*lines, lines[0]]), "twice"),
        (first(id="x"), "its suite does not plan it"),
        (first(sums=[["x"]]), "sums"),
        *((first(sums=[[0.0] * width]), "cannot be read") for width in (3, 99)),
        (first(digest="x"), "digest"),
        (lambda folder: reseal(folder, suite="../tiny"), "is no name"),
        (lambda folder: reseal(folder, policy="my_router:Mine"), "is no policy of this package"),
        (lambda folder: reseal(folder, policy="round_robin:../x"), "outside of the submission"),
    ],
)
def test_what_is_false_is_refused(change: Callable[[Path], Any], message: str, copy: Path) -> None:
    Path("my_router.py").write_text("raise SystemExit('imported')")
    change(copy)
    with pytest.raises(InfraMindError, match=message):
        check(copy)
    assert "my_router" not in sys.modules


def swapped(lines: list[dict[str, Any]], *kept: str) -> list[dict[str, Any]]:
    """Exchange what the first two cells have, but for their coordinates and some keys."""
    first, second, *others = lines
    keys = {"id", "seed", "policy", "workload", "rate_per_min", "budget_s"} | {*kept}
    pairs = ((first, second), (second, first))
    return [{**b, **{key: a[key] for key in keys if key in a}} for a, b in pairs] + others


@pytest.mark.parametrize("kept", [(), ("digest",)])
def test_forged_records_are_refused_when_they_are_played(kept: tuple[str, ...], copy: Path) -> None:
    """Every checksum holds: nothing shows it but the replay."""
    forge_lines(copy, lambda lines: swapped(lines, *kept))
    check(copy)
    with pytest.raises(ConfigError, match="2 of 6 cells have other records"):
        verify(copy, full=True)


def test_a_checkpoint_lies_where_the_policy_expects_it(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED / "bid_price" / "math", "runs/best")
    play("bid_price:runs/best")
    folder = submitted()
    assert (folder / "runs" / "best" / "model.safetensors").is_file()
    shutil.rmtree("runs")
    assert "2 played again" in verify(folder, seed=0, workers=2)


def test_the_board_shows_all_that_can_be_checked(
    honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(honest.parent, tmp_path / "submissions" / "tiny")
    play("random")
    submitted("other")
    submitted("third")
    (tmp_path / "submissions" / "tiny" / "third" / HEADER).write_text("{}")
    board = leaderboard(joined(Path("submissions/tiny")))
    assert {row["policy"] for row in board["ranking"]} == {"mine", "other"}
    assert "tiny/third is left out" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no submission that can be shown"):
        joined(Path("nowhere"))


def test_the_repository_has_a_board(capsys: pytest.CaptureFixture[str]) -> None:
    """Where this fails, episodes have changed: renew the submissions (docs/submissions.md)."""
    results = joined(Path(__file__).parents[2] / "benchmarks" / "submissions" / "starter")
    assert results.policies == ("bid_price", "least_loaded")
    assert "left out" not in capsys.readouterr().err
