"""Submissions: what is complete and true is accepted, everything else refused with the reason."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from inframind_gym import configs
from inframind_gym.benchmark import provenance
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import family_of
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.lines import seal, unseal
from inframind_gym.benchmark.results import load_results
from inframind_gym.benchmark.runner import run
from inframind_gym.benchmark.store import HEADER, PACKED
from inframind_gym.benchmark.submit.board import build
from inframind_gym.benchmark.submit.check import check
from inframind_gym.benchmark.submit.commands import submit
from inframind_gym.benchmark.submit.manifest import MANIFEST, Training, read_manifest
from inframind_gym.benchmark.submit.prepare import prepare
from inframind_gym.benchmark.submit.unseen import require_unseen
from inframind_gym.benchmark.submit.verify import verify
from inframind_gym.benchmark.suite import load_suite
from inframind_gym.errors import InfraMindError
from inframind_gym.policies.checkpoint import SHIPPED, save
from inframind_gym.tasks import load_tasks

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
TRACKS = """
name: tiny_tracks
kind: tracks
tracks: [faults]
scenarios: [faults/deaths]
loads: [0.6]
policies: [fixed_recipe]
num_queries: 10
seeds: 1
"""
REFITS = """
budget_queries: 5000
fits:
  fixed_recipe:
    faults/deaths: {policy: "fixed_recipe:IO:1:llama-3b:Concise", queries: 4321}
  bid_price:
    faults/deaths: {policy: "bid_price:elsewhere", queries: 1}
"""
TEAM = "name: tiny_team\nkind: assignment\npolicies: [random]\nscenarios: {light: {}}\nseeds: 2\n"


@pytest.fixture(scope="module", autouse=True)
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two small suites among the shipped ones."""
    root = tmp_path_factory.mktemp("configs")
    (root / "suites").mkdir()
    (root / "suites" / "tiny.yaml").write_text(TINY)
    (root / "suites" / "tiny_team.yaml").write_text(TEAM)
    (root / "suites" / "tiny_tracks.yaml").write_text(TRACKS)
    fast = TINY.replace("tiny", "tiny_live").replace("[20, 200]", "[1200]").replace("12", "5")
    (root / "suites" / "tiny_live.yaml").write_text(fast.replace("seeds: 3", "seeds: 1"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configs, "_ROOTS", (*configs._ROOTS, root))
        yield


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory for every test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def play(*policies: str, suite: str = "tiny", **changes: Any) -> Path:
    folder = Path("results")
    run(load_suite(suite, {"policies": policies, **changes}).resolve(), folder)
    return folder


def submitted(name: str = "mine", **options: Any) -> Path:
    return prepare(Path("results"), name, "A. Uthor", out=Path("submissions"), **options)


@pytest.fixture(scope="module")
def honest(shipped: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        play("round_robin", "random")
        return submitted(policy="round_robin", training=Training(queries=0)).resolve()


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "tiny" / "mine"
    shutil.copytree(honest, folder)
    return folder


KEYS = {"cell", "seed", "policy", "workload", "rate_per_min", "budget_s"}


def reseal(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit a manifest and forge its checksums."""
    content = unseal((folder / MANIFEST).read_bytes())
    change(content)
    from inframind_gym.benchmark.submit.manifest import digests

    content["files"] = digests(folder)
    (folder / MANIFEST).write_bytes(seal(content, indent=2))


def forge_lines(folder: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Edit the cells and forge all checksums."""
    lines = [
        unseal(raw) for raw in gzip.decompress((folder / PACKED).read_bytes()).splitlines(True)
    ]
    lines = change(lines) or lines
    (folder / PACKED).write_bytes(gzip.compress(b"".join(map(seal, lines)), mtime=0))
    reseal(folder, lambda content: None)


def test_a_submission_is_verified_and_has_the_board_of_its_run(honest: Path) -> None:
    verdict = verify(honest, seed=1)
    assert (verdict.played, len(verdict.checked.cells)) == (2, 6)
    assert verify(honest, full=True).played == 6
    board, own = (leaderboard(load_results(f)) for f in (honest, honest.parents[2] / "results"))
    (row,) = board["ranking"]
    (of_run,) = (row for row in own["ranking"] if row["policy"] == "round_robin")
    for metric in family_of({}).metrics:
        if metric in row:
            for key in (metric, f"{metric}_ci95"):
                assert row[key] == pytest.approx(of_run[key], rel=1e-5), key
    assert not (honest / PACKED).read_bytes().count(b"columns")


def test_nothing_of_the_machine_is_published_but_its_kind(honest: Path) -> None:
    for path in honest.iterdir():
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert str(honest.parents[2]).encode() not in raw
    assert unseal((honest / HEADER).read_bytes())["runs"][0]["command"][-1] == "round_robin"


@pytest.mark.parametrize("name", [MANIFEST, HEADER, PACKED])
@pytest.mark.parametrize("place", [0.02, 0.5, 0.98])
def test_a_changed_byte_is_refused(name: str, place: float, copy: Path) -> None:
    raw = bytearray((copy / name).read_bytes())
    raw[int(place * len(raw))] ^= 1
    (copy / name).write_bytes(raw)
    with pytest.raises(BenchmarkError, match=f"{name}.*(damaged|not what was submitted)"):
        check(copy)


def test_files_that_come_or_go_are_refused(copy: Path) -> None:
    (copy / "extra.json").write_text("{}")
    with pytest.raises(BenchmarkError, match=r"extra\.json is not what was submitted"):
        check(copy)
    (copy / "extra.json").rename(copy / "weights.pkl")
    with pytest.raises(BenchmarkError, match=r"weights\.pkl: has no place in a submission"):
        check(copy)
    (copy / "weights.pkl").unlink()
    (copy / HEADER).unlink()
    with pytest.raises(BenchmarkError, match=r"run\.json is missing"):
        check(copy)


def test_forged_numbers_are_refused(copy: Path) -> None:
    def better(lines: list[dict[str, Any]]) -> None:
        lines[0]["goodput"] = 1.0

    forge_lines(copy, better)
    with pytest.raises(BenchmarkError, match=r"goodput of .* is not that of its records"):
        check(copy)


def test_records_of_another_episode_are_refused_when_they_are_played(copy: Path) -> None:
    def swap(lines: list[dict[str, Any]]) -> None:
        first, second = lines[0], lines[1]
        for key in set(first) - KEYS:
            first[key], second[key] = second[key], first[key]

    forge_lines(copy, swap)
    check(copy)  # nothing shows it but the replay
    with pytest.raises(BenchmarkError, match="2 of 6 cells have other records"):
        verify(copy, full=True)


def test_forged_sums_are_refused_when_they_are_played(copy: Path) -> None:
    """Every checksum holds, that of the records included."""

    def better(lines: list[dict[str, Any]]) -> None:
        lines[0], lines[1] = (
            {**lines[0], "episode": lines[1]["episode"]},
            {**lines[1], "episode": lines[0]["episode"]},
        )
        for key in set(lines[0]) - KEYS - {"records_sha256", "episode"}:
            lines[0][key], lines[1][key] = lines[1][key], lines[0][key]

    forge_lines(copy, better)
    check(copy)
    with pytest.raises(BenchmarkError, match="2 of 6 cells have other records"):
        verify(copy, full=True)


def test_seeds_and_cells_are_not_chosen(copy: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"4 of the 6 cells .* every seed"):
        play("random", seeds=2)
        submitted()
    forge_lines(copy, lambda lines: lines[1:])
    with pytest.raises(BenchmarkError, match=r"5 of the 6 cells .* missing: math, 20/min"):
        check(copy)
    forge_lines(copy, lambda lines: [*lines, lines[0]])
    with pytest.raises(BenchmarkError, match="twice"):
        check(copy)


def test_another_cell_is_refused(copy: Path) -> None:
    def rename(lines: list[dict[str, Any]]) -> None:
        lines[0]["seed"] = 7

    forge_lines(copy, rename)
    with pytest.raises(BenchmarkError, match="seed 7, which its suite does not plan"):
        check(copy)


def test_other_settings_are_refused() -> None:
    play("random", num_queries=5)
    with pytest.raises(BenchmarkError, match=r"not a run of the suite tiny .*num_queries"):
        submitted()


def test_another_simulator_is_refused(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "SIMULATOR_VERSION", 99)
    with pytest.raises(BenchmarkError, match=r"made with simulator version .*, this is version 99"):
        check(honest)


def test_another_version_of_the_policy_is_refused(
    honest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inframind_gym.policies.oblivious import RoundRobinPolicy

    monkeypatch.setattr(RoundRobinPolicy, "version", 99)
    with pytest.raises(BenchmarkError, match=r"policy round_robin: version \(there: 1, now: 99\)"):
        check(honest)


def test_a_folder_goes_by_its_name(copy: Path, tmp_path: Path) -> None:
    copy.rename(tmp_path / "tiny" / "other")
    with pytest.raises(BenchmarkError, match="belongs into a folder tiny/mine"):
        check(tmp_path / "tiny" / "other")


def test_bounds_are_no_policies() -> None:
    play("clairvoyant")
    with pytest.raises(BenchmarkError, match="clairvoyant is a bound"):
        submitted()


OWN = """
import os
import sys
import numpy as np
from inframind_gym.policies import BasePolicy

APART = str(getattr(sys.modules["__main__"], "__file__", "")).endswith("apart.py")

class Honest(BasePolicy):
    name = "honest"

    def reset(self, spec, seeds):
        super().reset(spec, seeds)
        self.seen = np.zeros(len(seeds), np.int64)

    def observe(self, completed, row):
        self.seen[row] += len(completed)

    def act_batch(self, observations, contexts, rows):
        print("this is not an answer")
        return (self.seen[rows] + contexts["query"]) % self.spec.num_actions

class Single(BasePolicy):
    name = "single"

    def act(self, observation, context):
        return int(context["query"]) % 3

class Foresees(Single):
    def foresee(self, simulation):
        self.simulation = simulation

class Peeks(BasePolicy):
    name = "peeks"

    def act_batch(self, observations, contexts, rows):
        frame = sys._getframe()
        while "env" not in frame.f_locals:
            frame = frame.f_back
        hidden = frame.f_locals["env"].simulation.state.arrival_s
        return np.zeros(len(rows), np.int64)

class Patches(Single):
    def reset(self, spec, seeds):
        super().reset(spec, seeds)
        if APART:
            from inframind_gym.benchmark.lines import FinishedCell
            FinishedCell.is_met_by = lambda self, line: True

    def act(self, observation, context):
        return int(APART)

class Leaves(Single):
    def act(self, observation, context):
        if APART:
            os._exit(3)
        return 0
"""


def own(name: str) -> Path:
    """Play a policy of one's own, and submit it."""
    Path("my_router.py").write_text(OWN)
    play(f"my_router:{name}")
    del sys.modules["my_router"]
    return submitted()


@pytest.mark.parametrize("name", ["Honest", "Single"])
def test_own_code_is_run_for_who_trusts_it_alone(name: str) -> None:
    folder = own(name)
    assert read_manifest(folder).code == "files"
    with pytest.raises(BenchmarkError, match=r"own code\. --trust runs it"):
        verify(folder)
    assert verify(folder, trust=True, full=True).played == 6
    assert "my_router" not in sys.modules
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".gz") == [
        "my_router.py",
        "run.json",
        "submission.json",
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Foresees", "has foresee: bounds alone are shown the simulation"),
        ("Peeks", "apart from the environment it fails"),
        ("Patches", "6 of 6 cells have other records"),
        ("Leaves", "its process has ended"),
    ],
)
def test_policies_that_read_what_they_may_not(name: str, reason: str) -> None:
    with pytest.raises(InfraMindError, match=reason):
        verify(own(name), trust=True, full=True)


SHADOW = "open({out!r}, 'a').write(__name__)\n"


def shadows(folder: Path, out: Path) -> None:
    """Put modules beside what plays that Python and the workers look for."""
    for name in ("multiprocessing", "json", "numpy", "_remote_module_non_scriptable"):
        (folder / f"{name}.py").write_text(SHADOW.format(out=str(out)))
    reseal(folder, lambda content: None)


def test_a_policy_of_the_package_brings_no_code(copy: Path, tmp_path: Path) -> None:
    shadows(copy, tmp_path / "ran")
    with pytest.raises(BenchmarkError, match=r"\.py: round_robin is not of the submission's own"):
        verify(copy, full=True, workers=2)
    assert not (tmp_path / "ran").exists()


def test_workers_import_nothing_of_a_submission(tmp_path: Path) -> None:
    folder = own("Single")
    shadows(folder, tmp_path / "ran")
    path = sys.path[:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", ["", *path])  # as in a notebook
        assert verify(folder, trust=True, full=True, workers=2).played == 6
        assert sys.path == ["", *path]
    assert not (tmp_path / "ran").exists()
    assert "PYTHONSAFEPATH" not in os.environ


def test_the_truth_is_shown_to_bounds_alone() -> None:
    Path("my_team.py").write_text(
        "from inframind_gym.policies.assignment.protocol import BaseAssignmentPolicy\n"
        "class Sees(BaseAssignmentPolicy):\n"
        "    name = 'sees'\n    sees_truth = True\n"
        "    def choose(self, contexts, rows):\n        return rows * 0\n"
    )
    play("my_team:Sees", suite="tiny_team")
    with pytest.raises(BenchmarkError, match="has sees_truth"):
        submitted()
    sys.modules.pop("my_team")


def test_a_checkpoint_lies_where_the_policy_expects_it(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED / "bid_price" / "math", "runs/best")
    play("bid_price:runs/best")
    folder = submitted()
    assert (folder / "runs" / "best" / "model.safetensors").is_file()
    assert verify(folder, seed=0).played == 2
    config = folder / "runs" / "best" / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps(content | {"training": {"splits": ["train", "test"]}}))
    reseal(folder, lambda content: None)
    with pytest.raises(InfraMindError):
        check(folder)


@pytest.mark.slow
def test_fits_of_tracks_come_along(tmp_path: Path) -> None:
    Path("fits.yaml").write_text(REFITS)
    play("fixed_recipe", suite="tiny_tracks", refits=str(tmp_path / "fits.yaml"))
    folder = submitted()
    assert read_manifest(folder).training.queries == 4321
    assert "bid_price" not in (folder / "refits.yaml").read_text()
    assert verify(folder).played == 1
    assert "4,321" in build(Path("submissions"), Path("board")).read_text()
    fits = (folder / "refits.yaml").read_text()
    (folder / "refits.yaml").write_text(fits.replace("llama-3b", "llama-8b"))
    reseal(folder, lambda content: None)
    with pytest.raises(BenchmarkError, match="policy fixed_recipe: fits"):
        check(folder)
    (folder / "refits.yaml").write_text(fits.replace("fixed_recipe:IO:1", "os:system:IO:1"))
    reseal(folder, lambda content: None)
    with pytest.raises(BenchmarkError, match="its code is not built-in"):
        check(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plays", "policy", "reason"),
    [
        ("clairvoyant", "fixed_recipe", "clairvoyant is a bound"),
        ("my_router:Single", "my_router:Single", "own code cannot be played with"),
    ],
)
def test_fits_bring_no_bound_and_no_code(
    plays: str, policy: str, reason: str, tmp_path: Path
) -> None:
    Path("my_router.py").write_text(OWN)
    fits = {policy: {"faults/deaths": {"policy": plays, "queries": 1}}}
    Path("fits.yaml").write_text(json.dumps({"budget_queries": 9, "fits": fits}))
    play(policy, suite="tiny_tracks", refits=str(tmp_path / "fits.yaml"))
    sys.modules.pop("my_router", None)
    with pytest.raises(BenchmarkError, match=reason):
        submitted()


def test_a_checkpoint_that_saw_the_test_is_refused(tmp_path: Path) -> None:
    train, test = (load_tasks(split=split).embeddings for split in ("train", "test"))
    weights = np.random.default_rng(0).normal(size=(64, 384)).astype(np.float32)
    save("runs/honest", {"memory": train, "weights": weights}, {"split": "train"})
    require_unseen(tmp_path)
    save("runs/seen", {"memory": np.concatenate([train[:9], 3.0 * test[:2]])}, {})
    with pytest.raises(BenchmarkError, match="memory holds the embeddings of 2 questions"):
        require_unseen(tmp_path)
    save("runs/seen", {"weights": weights}, {"training": {"env": [{"splits": ["val", "test"]}]}})
    with pytest.raises(BenchmarkError, match="the split 'test' was used in training"):
        require_unseen(tmp_path)


def test_a_checkpoint_elsewhere_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED / "bid_price" / "math", "best")
    play(f"bid_price:{tmp_path}/best")
    with pytest.raises(BenchmarkError, match="below the working directory"):
        submitted()


def test_packages_are_pinned() -> None:
    play("tests.benchmark.policies_under_test:Cheapest")
    Path("loose.txt").write_text("my-router>=1\n")
    with pytest.raises(BenchmarkError, match="is not pinned"):
        submitted(requirements=Path("loose.txt"))
    Path("pinned.txt").write_text(f"my-router==1.0 \\\n  --hash=sha256:{'a' * 64}\n")
    folder = submitted(requirements=Path("pinned.txt"))
    assert read_manifest(folder).code == "package"
    assert verify(folder, trust=True).played == 2
    with pytest.raises(BenchmarkError, match=r"there is no .*policies_under_test\.py"):
        submitted()


def test_pins_are_checked_again_and_packages_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = f"my-router==1.0 --hash=sha256:{'a' * 64}\n"
    (tmp_path / "packages" / "my_package").mkdir(parents=True)
    (tmp_path / "packages" / "my_package" / "__init__.py").write_text(OWN)
    (tmp_path / "packages" / "numpy.py").write_text("raise SystemExit(1)\n")
    monkeypatch.setenv("INFRAMIND_APART_PATH", str(tmp_path / "packages"))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "packages"))
        (tmp_path / "packages" / "numpy.py").rename(tmp_path / "numpy.txt")
        play("my_package:Single")
        (tmp_path / "numpy.txt").rename(tmp_path / "packages" / "numpy.py")
    del sys.modules["my_package"]
    Path("pinned.txt").write_text(pinned)
    folder = submitted(requirements=Path("pinned.txt"))
    assert verify(folder, trust=True).played == 2
    assert "my_package" not in sys.modules
    for line in ("--extra-index-url https://example.org\n", "--no-binary :all:\n", "./x.whl\n"):
        (folder / "requirements.txt").write_text(pinned + line)
        reseal(folder, lambda content: None)
        with pytest.raises(BenchmarkError, match="is not pinned"):
            check(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"runs": []},
        {"runs": [{"started": 5}]},
        {"packages": []},
        {"machine": {"cores": ["<b>"]}},
    ],
)
def test_an_origin_that_no_page_can_show_is_refused(change: Any, copy: Path) -> None:
    content = unseal((copy / HEADER).read_bytes()) | change
    (copy / HEADER).write_bytes(seal(content, indent=2))
    reseal(copy, lambda content: None)
    with pytest.raises(InfraMindError, match=next(iter(change))):
        check(copy)
    with pytest.raises(BenchmarkError, match="no submission that can be shown"):
        build(copy.parents[1], Path("board"))


def test_a_file_that_unpacks_without_end_is_refused(copy: Path) -> None:
    (copy / PACKED).write_bytes(gzip.compress(bytes(30_000_000)))
    reseal(copy, lambda content: None)
    with pytest.raises(InfraMindError, match="unpacks to more than 100 times its size"):
        check(copy)


def test_links_are_refused(copy: Path) -> None:
    (copy / "passwords.json").symlink_to("/etc/passwd")
    with pytest.raises(BenchmarkError, match="plain files and no links"):
        check(copy)


def test_names_that_a_forger_gives(copy: Path) -> None:
    for change, reason in (
        ({"suite": "../tiny"}, "is no name"),
        ({"url": "javascript:alert(1)"}, "url"),
        ({"policy": "os:system"}, "its code is not built-in"),
        ({"code": "files"}, "its code is not files"),
        ({"policy": "os:system", "code": "files"}, r"os\.py is not in the submission"),
        ({"policy": "round_robin:../x"}, "outside of the submission"),
    ):
        shutil.copy(copy / MANIFEST, "saved.json")
        reseal(copy, lambda content, change=change: content.update(change))
        with pytest.raises(InfraMindError, match=reason):
            check(copy)
        shutil.copy("saved.json", copy / MANIFEST)


def test_the_board_shows_all_that_can_be_checked(honest: Path, tmp_path: Path) -> None:
    shutil.copytree(honest.parent, tmp_path / "submissions" / "tiny")
    play("random")
    submitted("other", about="<script>alert(1)</script>", url="https://example.org/a?b=1&c=2")
    submitted("third")
    (tmp_path / "submissions" / "tiny" / "third" / HEADER).write_text("{}")
    page = build(Path("submissions"), Path("board"))
    text = page.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert 'href="https://example.org/a?b=1&amp;c=2"' in text
    assert "tiny/third is left out" in text
    report = (page.parent / "tiny.html").read_text()
    assert '"policies":[{"name":"mine"' in report or '"policies":[{"name":"other"' in report
    with pytest.raises(BenchmarkError, match="no submission that can be shown"):
        build(Path("nowhere"), Path("board"))


def test_the_repository_has_a_board() -> None:
    """Where this fails, episodes have changed: renew the submissions (docs/submissions.md)."""
    page = build(Path(__file__).parents[2] / "benchmarks" / "submissions", Path("board"))
    assert all(f'href="{suite}.html"' in page.read_text() for suite in ("standard", "starter"))


def test_commands_end_with_one_line(honest: Path, copy: Path) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(submit, [str(argument) for argument in arguments])
        return result.exit_code, result.stdout, result.stderr

    code, out, _ = call("verify", honest, "--seed", 3, "--workers", 1)
    assert (code, out) == (
        0,
        "tiny/mine: 6 cells, complete; 2 played again, all equal (choice 3)\n",
    )
    (copy / PACKED).write_bytes(b"")
    code, out, err = call("verify", copy)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "cells.jsonl.gz is not what was submitted" in err
    code, _, err = call("prepare", "nowhere", "--name", "x", "--authors", "y")
    assert code == 2 and "does not exist" in err


def test_a_live_run_comes_with_the_log_of_its_calls(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs the extra `live`")
    from tests.benchmark.test_live import servers_of

    with servers_of(tmp_path) as (pool, _):
        live = {"backend": "vllm", "pool": pool, "live": {"health_s": 0.05}}
        play("round_robin", suite="tiny_live", **live)
    folder = submitted()
    assert "live, not replayable" in str(verify(folder, full=True))
    assert "tiny_live-live-" in build(Path("submissions"), Path("board")).read_text()
    (folder / "requests.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    reseal(folder, lambda content: None)
    with pytest.raises(BenchmarkError, match="has 1 calls; the cells have"):
        check(folder)


def test_no_run_goes_into_a_submission(copy: Path) -> None:
    with pytest.raises(BenchmarkError, match="is a submission"):
        run(load_suite("tiny").resolve(), copy)
