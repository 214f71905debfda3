"""Trainings: in order, side by side, once; what is stopped goes on, what fails is shown."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.inframind.progress import Progress
from agents.sources import APART, sources_digest
from benchmarks.results_page.plan import EntryConfig
from benchmarks.results_page.trainings import FINISHED, LOG, Training, train, trainings_of
from inframind_gym.benchmark.errors import BenchmarkError, StoppedError
from inframind_gym.policies import checkpoint
from tests.imports import imports


def entry(name: str, root: Path, body: str, **changes: object) -> EntryConfig:
    content = {
        "name": name,
        "kind": "agent",
        "policy": f"{name}:{{folder}}",
        "training": {
            "command": f"python -c {shlex.quote(body)} {{folder}} {{seed}}",
            "folder": f"{root}/{name}/seed{{seed}}",
            "seeds": 2,
            **changes,
        },
    }
    return EntryConfig.model_validate(content)


NOTES = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); print('seed', sys.argv[2]); "
COUNTS = NOTES + "f = p / 'count'; f.write_text(str(int(f.read_text()) + 1) if f.exists() else '1')"


def of(*entries: EntryConfig) -> list[Training]:
    return trainings_of(entries, ["math", "mbpp"])


def test_each_is_run_once_after_what_it_starts_from(tmp_path: Path) -> None:
    needs = "assert len(list((p.parents[1] / 'first').glob('*/count'))) == 2"
    first = entry("first", tmp_path, COUNTS)
    second = entry("second", tmp_path, NOTES + needs, after=["first"])
    assert train(of(second, first), at_once=3, root=tmp_path) == 4
    assert train(of(second, first), at_once=3, root=tmp_path) == 0
    assert (tmp_path / "first/seed1/count").read_text() == "1"
    assert (tmp_path / "first/seed1" / LOG).read_text() == "seed 1\n"
    other = entry("first", tmp_path, COUNTS + "; pass")
    with pytest.raises(BenchmarkError, match="another command or by other code"):
        train(of(other), at_once=1, root=tmp_path)
    assert train(of(other), at_once=1, root=tmp_path, redo=True) == 2


def test_a_workload_in_the_folder_makes_a_training_for_each(tmp_path: Path) -> None:
    one = entry("a", tmp_path, NOTES, folder="runs/{workload}/seed{seed}", seeds=[3])
    assert one.by_workload
    assert [str(training.folder) for training in of(one)] == ["runs/math/seed3", "runs/mbpp/seed3"]
    assert one.policy_of(3, "mbpp") == "a:runs/mbpp/seed3"
    limited = one.model_copy(update={"workloads": ("mbpp",)})
    assert [str(training.folder) for training in of(limited)] == ["runs/mbpp/seed3"]
    with pytest.raises(ValueError, match=r"\{folder\}"):
        EntryConfig(name="b", kind="agent", policy="b:{folder}")


def test_a_failure_shows_the_end_of_the_log_and_ends_the_others(tmp_path: Path) -> None:
    bad = entry("bad", tmp_path, "raise SystemExit('no such config')", seeds=1)
    slow = entry("slow", tmp_path, "import time; time.sleep(60)", seeds=1)
    began = time.monotonic()
    with pytest.raises(BenchmarkError, match=r"(?s)bad seed 0 ended with status 1.*no such config"):
        train(of(slow, bad), at_once=2, root=tmp_path)
    assert time.monotonic() - began < 50
    assert not of(slow)[0].finished
    with pytest.raises(BenchmarkError, match="wait for each other"):
        train(of(entry("x", tmp_path, "", after=["x"])), at_once=1, root=tmp_path)


def test_a_stopped_training_is_run_again_by_the_next_call(tmp_path: Path) -> None:
    wait = f"{COUNTS}; import time; time.sleep(60 if f.read_text() == '1' else 0)"
    slow = entry("slow", tmp_path, wait, seeds=1)
    count = tmp_path / "slow/seed0/count"

    def has_begun() -> bool:
        return count.exists() and count.stat().st_size > 0

    with pytest.raises(StoppedError):
        train(of(slow), at_once=1, root=tmp_path, stop=has_begun)
    assert train(of(slow), at_once=1, root=tmp_path) == 1
    assert count.read_text() == "2"


def begin_headway(folder: Path, code: list[str]) -> None:
    checkpoint.save(folder / "state", {}, {"seed": 0, "stage": 1, "code": code})


def begin_inframind(folder: Path, code: list[str]) -> None:
    Progress(folder, round=6, code=["first"]).save({}, {}, {}, {})
    Progress(folder, round=12, code=code).save({}, {}, {}, {})


def begin_masrouter(folder: Path, code: list[str]) -> None:
    checkpoint.save(folder / "last", {}, {"updates": 50, "code": code})


@pytest.mark.parametrize("begin", [begin_headway, begin_inframind, begin_masrouter])
def test_what_other_code_has_begun_is_told_before_anything_starts_and_made_anew(
    tmp_path: Path, begin: Callable[[Path, list[str]], None]
) -> None:
    one = entry("one", tmp_path, COUNTS, seeds=1)
    two = entry("two", tmp_path, COUNTS, seeds=1)
    begun = tmp_path / "two" / "seed0"
    begin(begun, ["other code"])
    with pytest.raises(BenchmarkError, match=r"two/seed0 holds a training of other code.*--redo"):
        train(of(one, two), at_once=2, root=tmp_path)
    assert not (tmp_path / "one").exists()
    assert train(of(one, two), at_once=2, root=tmp_path, redo=True) == 2
    assert sorted(path.name for path in begun.iterdir()) == ["count", LOG, FINISHED]


@pytest.mark.parametrize("begin", [begin_headway, begin_inframind, begin_masrouter])
def test_what_this_code_has_begun_goes_on(
    tmp_path: Path, begin: Callable[[Path, list[str]], None]
) -> None:
    begun = tmp_path / "one" / "seed0"
    begin(begun, ["other code", sources_digest()])
    before = {path.name for path in begun.iterdir()}
    one = entry("one", tmp_path, COUNTS, seeds=1)
    assert train(of(one), at_once=1, root=tmp_path, redo=True) == 1
    assert before < {path.name for path in begun.iterdir()}


def test_what_another_command_has_begun_is_told_before_anything_starts_and_made_anew(
    tmp_path: Path,
) -> None:
    wait = f"{COUNTS}; import time; time.sleep(60 if len(sys.argv) == 3 else 0)"
    one = entry("one", tmp_path, wait)
    counts = [tmp_path / f"one/seed{seed}/count" for seed in range(2)]

    def have_begun() -> bool:
        return all(count.exists() and count.stat().st_size > 0 for count in counts)

    with pytest.raises(StoppedError):
        train(of(one), at_once=2, root=tmp_path, stop=have_begun)
    assert one.training is not None
    edited = one.training.model_copy(update={"command": one.training.command + " --set mode=other"})
    other, first = one.model_copy(update={"training": edited}), entry("first", tmp_path, COUNTS)
    with pytest.raises(BenchmarkError) as refused:
        train(of(first, other), at_once=2, root=tmp_path)
    for seed in range(2):
        assert f"one/seed{seed} holds a training of another command" in str(refused.value)
    assert str(refused.value).endswith(": let --redo train them anew, or delete them.")
    assert not (tmp_path / "first").exists()
    assert train(of(other), at_once=2, root=tmp_path, redo=True) == 2
    assert [count.read_text() for count in counts] == ["1", "1"]
    assert sorted(path.name for path in counts[0].parent.iterdir()) == ["count", LOG, FINISHED]


def test_a_command_that_came_to_nothing_may_be_mended(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="no such config"):
        wrong = entry("one", tmp_path, "raise SystemExit('no such config')", seeds=1)
        train(of(wrong), at_once=1, root=tmp_path)
    assert train(of(entry("one", tmp_path, COUNTS, seeds=1)), at_once=1, root=tmp_path) == 1


def test_no_training_imports_a_room_that_is_set_apart() -> None:
    root = Path(__file__).parents[2]
    assert all((root / room).is_dir() for room in APART)
    apart = tuple(room.replace("/", ".") for room in APART)
    for path in (*(root / "agents").rglob("*.py"), *(root / "baselines").rglob("*.py")):
        place = path.relative_to(root)
        if not any(place.is_relative_to(room) for room in APART):
            module = ".".join(place.with_suffix("").parts)
            wrong = [name for name in imports(path, module) if name.startswith(apart)]
            assert not wrong, place
