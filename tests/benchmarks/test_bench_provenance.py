"""What a change must show in, and what must not matter."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from inframind_gym.benchmark.simulator import ASIDE, LIVE, PACKAGE, PLACEMENT, ROUTING, is_left_out
from inframind_gym.benchmark.sources import policy_sources

import baselines
from inframind_gym.benchmark import provenance
from inframind_gym.benchmark.cores import available_cores, keep_to_one_core
from inframind_gym.benchmark.provenance import policy_fingerprint, settings
from inframind_gym.benchmark.runner import family_of_suite, resolve
from inframind_gym.benchmark.suite import SuiteConfig, load_any_suite, load_suite
from inframind_gym.configs import find_config

ROWS = [f"2023-11-16 18:17:{second:02d}.5,100,10" for second in range(0, 60, 2)]
HEADINGS = "TIMESTAMP,ContextTokens,GeneratedTokens"
POLICY = """
from inframind_gym.policies import BasePolicy
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
        "base": "from inframind_gym.policies import BasePolicy\nclass Base(BasePolicy): pass\n",
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
    before, real = policy_fingerprint("least_loaded"), provenance.file_hash
    monkeypatch.setattr(
        provenance,
        "file_hash",
        lambda path: "edited" if path.name == "_heuristic.py" else real(path),
    )
    assert policy_fingerprint("least_loaded") != before


@pytest.mark.parametrize("name", ["rollout.py", "records.py"])
def test_the_code_that_makes_the_results_is_a_setting(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    suite, real = load_suite("quick"), provenance.file_hash
    before = settings(suite)
    monkeypatch.setattr(
        provenance, "file_hash", lambda path: "edited" if path.name == name else real(path)
    )
    assert settings(suite) != before


def edited(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a file of the simulator have another content."""
    path, real = PACKAGE / name, provenance.file_hash
    assert path.is_file()
    monkeypatch.setattr(provenance, "file_hash", lambda p: "edited" if p == path else real(p))


@pytest.mark.parametrize(
    ("name", "simulated", "live", "placement"),
    [
        ("serving/launch/command.py", False, False, False),
        ("serving/vllm/client.py", False, True, False),
        ("orchestration/live.py", False, True, False),
        ("envs/live.py", False, True, False),
        ("prompts/prompts.py", False, True, False),
        ("serving/vllm/settings.py", True, True, True),
        ("orchestration/step.py", True, True, False),
        ("envs/vector.py", True, True, False),
        ("tasks/taskset.py", True, True, False),
        ("serving/surrogate/engine.py", True, True, True),
        ("placement/step.py", False, False, True),
        ("placement/live/server.py", False, False, False),
        ("calibration/fit.py", False, False, False),
        ("sim2real/sweep.py", False, False, False),
        ("cli.py", False, False, False),
    ],
)
def test_an_edit_of_the_simulator_refuses_the_results_that_rest_on_it(
    monkeypatch: pytest.MonkeyPatch, name: str, simulated: bool, live: bool, placement: bool
) -> None:
    suites = [
        load_any_suite("quick"),
        load_any_suite("quick", {"backend": "vllm"}),
        load_any_suite("placement_quick"),
    ]
    before = [family_of_suite(suite).settings(suite) for suite in suites]
    edited(monkeypatch, name)
    after = [family_of_suite(suite).settings(suite) for suite in suites]
    assert [a != b for a, b in zip(after, before, strict=True)] == [simulated, live, placement]


RUN = """
import json, sys
from pathlib import Path
from inframind_gym.benchmark.runner import resolve, run
from inframind_gym.benchmark.suite import load_any_suite
name, changes, out = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
run(resolve(load_any_suite(name, changes)), out, workers=1)
files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
print(json.dumps([file for file in files if file]))
"""


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (
            "quick",
            {
                **{"workloads": ["math"], "rates_per_min": [20], "budgets_s": ["tiers"]},
                **{"policies": ["random", "least_loaded"], "num_queries": 3, "seeds": [0]},
            },
        ),
        (
            "placement_quick",
            {
                **{"clusters": ["h100-4gpu"], "demands": ["steady"], "seeds": [0]},
                **{"policies": ["greedy", "mcf_plus"], "num_decisions": 2},
            },
        ),
    ],
)
def test_no_cell_imports_what_its_settings_leave_out(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    command = [sys.executable, "-c", RUN, name, json.dumps(changes), str(tmp_path / "out")]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = {Path(file).resolve() for file in json.loads(done.stdout.splitlines()[-1])}
    own = {path for path in imported if path.is_relative_to(PACKAGE)}
    assert len(own) > 30
    suite = load_any_suite(name, changes)
    left_out = family_of_suite(suite).left_out(suite)
    assert sorted(path for path in own if is_left_out(path, left_out)) == []


def test_what_is_left_out_is_there() -> None:
    for room in (*ASIDE, *LIVE, *PLACEMENT, *ROUTING):
        assert (PACKAGE / room).exists(), room


def test_what_a_policy_imports_of_the_rooms_left_out_counts(tmp_path: Path) -> None:
    package = f"user_{abs(hash(str(tmp_path)))}"
    source = tmp_path / f"{package}.py"
    source.write_text(
        "from inframind_gym.policies import BasePolicy\n"
        "from inframind_gym.policies.placement import exchange\n"
        "class Mine(BasePolicy): pass\n"
    )
    spec = importlib.util.spec_from_file_location(package, source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
    assert policy_sources(module.Mine) == {source}
    found = policy_sources(module.Mine, (*ASIDE, *PLACEMENT))
    assert PACKAGE / "placement" / "flow" / "exchange.py" in found
    assert PACKAGE / "policy" / "base.py" not in found


def test_a_pool_is_what_it_says(tmp_path: Path) -> None:
    shipped = find_config("pools", "b200-2gpu").read_text()
    pool = tmp_path / "pool.yaml"

    def of(text: str) -> str:
        pool.write_text(text)
        return str(settings(load_suite("quick", {"pool": str(pool)}))["pool"])

    before = of(shipped)
    assert before == settings(load_suite("quick", {"pool": "b200-2gpu"}))["pool"]
    assert of("# A comment.\n" + shipped) == before
    assert of(shipped.replace("metrics_poll_s: 5", "metrics_poll_s: 6")) != before


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
