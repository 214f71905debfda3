"""What a change must show in, and what must not matter."""

import os
import sys
from pathlib import Path

import pytest

import baselines
from benchmarks import provenance
from benchmarks.cores import available_cores, keep_to_one_core
from benchmarks.provenance import policy_fingerprint, settings
from benchmarks.runner import resolve
from benchmarks.sources import policy_sources
from benchmarks.suite import SuiteConfig, load_suite

ROWS = [f"2023-11-16 18:17:{second:02d}.5,100,10" for second in range(0, 60, 2)]
HEADINGS = "TIMESTAMP,ContextTokens,GeneratedTokens"
POLICY = """
from inframind_gym.policy import BasePolicy
from {package}_helper import CHOICE
from {package}_base import Base

class Mine(Base):
    name = "mine"
    def act(self, observation, context):
        import {package}_late
        return CHOICE
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """Folder of a user's policy and the prefix of its modules, which differs in every test."""
    package = f"user_{abs(hash(str(tmp_path)))}"
    sources = {
        "policy": POLICY.format(package=package),
        "helper": f"from {package}_deep import CHOICE\n",
        "deep": "CHOICE = 3\n",
        "base": "from inframind_gym.policy import BasePolicy\nclass Base(BasePolicy): pass\n",
        "late": "",
        "unrelated": "",
    }
    for name, text in sources.items():
        (tmp_path / f"{package}_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path, package


@pytest.mark.parametrize(
    ("edited", "matters"),
    [
        ("policy", True),
        ("helper", True),
        ("deep", True),
        ("base", True),
        ("late", True),
        ("unrelated", False),
    ],
)
def test_an_edited_module_of_a_users_policy_changes_its_fingerprint(
    project: tuple[Path, str], edited: str, matters: bool
) -> None:
    folder, package = project
    before = policy_fingerprint(f"{package}_policy:Mine")
    with (folder / f"{package}_{edited}.py").open("a") as file:
        file.write("# edited\n")
    assert (policy_fingerprint(f"{package}_policy:Mine") != before) == matters


def test_other_loaded_modules_do_not_change_a_fingerprint(project: tuple[Path, str]) -> None:
    _, package = project
    before = policy_fingerprint(f"{package}_policy:Mine")
    __import__(f"{package}_unrelated")
    assert f"{package}_unrelated" in sys.modules
    assert policy_fingerprint(f"{package}_policy:Mine") == before


def test_a_baseline_rests_on_its_whole_package(monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(baselines.__file__).resolve().parent
    sources = policy_sources(type(baselines.resolve_policy("least_loaded")))
    assert {path for path in sources if path.parent == package} == set(package.glob("*.py"))
    before, real = policy_fingerprint("least_loaded"), provenance._file_hash
    monkeypatch.setattr(
        provenance,
        "_file_hash",
        lambda path: "edited" if path.name == "_heuristic.py" else real(path),
    )
    assert policy_fingerprint("least_loaded") != before


@pytest.mark.parametrize("name", ["rollout.py", "records.py"])
def test_the_code_that_makes_the_results_is_a_setting(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    suite, real = load_suite("quick"), provenance._file_hash
    before = settings(suite)
    monkeypatch.setattr(
        provenance, "_file_hash", lambda path: "edited" if path.name == name else real(path)
    )
    assert settings(suite) != before


def test_a_trace_is_its_content_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def suite(arrivals: object) -> SuiteConfig:
        return resolve(load_suite("quick", {"arrivals": arrivals}))

    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join([HEADINGS, *ROWS]) + "\n")
    as_text = suite("trace.csv")
    assert as_text.arrivals == {"kind": "trace", "path": str(trace), "rescale": True}
    before = settings(as_text)
    assert before == settings(suite({"kind": "trace", "path": "trace.csv"}))
    assert before == settings(load_suite("quick", {"arrivals": "trace.csv"}))
    trace.rename(tmp_path / "moved.csv")
    assert settings(suite("moved.csv")) == before
    (tmp_path / "moved.csv").write_text("\n".join([HEADINGS, *ROWS[:-1]]) + "\n")
    assert settings(suite("moved.csv"))["arrivals"] != before["arrivals"]


def test_systems_that_cannot_bind_to_cores_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sched_getaffinity", "sched_setaffinity"):
        monkeypatch.delattr(os, name, raising=False)
    assert available_cores() == os.cpu_count()
    assert provenance.machine()["cores"] == os.cpu_count()
    with keep_to_one_core():
        pass


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot bind to cores")
def test_one_core_is_kept_and_given_back() -> None:
    before = available_cores()
    with keep_to_one_core():
        assert available_cores() == 1
    assert available_cores() == before
