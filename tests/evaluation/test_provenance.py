"""A results folder is tied to declared versions, to weights and to the files that it names."""

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.evaluation import store
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.policies import resolve_policy
from inframind_gym.policies.simple import LeastLoadedPolicy, SpillPolicy

POLICY = """
import numpy as np
from inframind_gym.policies import BasePolicy

class Mine(BasePolicy):
    name = "mine"
    def act_batch(self, observations, contexts, rows):
        return np.full(len(rows), 3)
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A suite of two episodes, and the folder in which its policy of a user lies."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"user_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{module}.py").write_text(POLICY)
    changes = {
        **{"policies": ("least_loaded", f"{module}:Mine"), "workloads": ("math",)},
        **{"rates_per_min": (50,), "budgets_s": (100,), "seeds": 1, "num_queries": 4},
    }
    return load_suite("starter", changes).resolve(), tmp_path / f"{module}.py"


def test_a_planned_router_has_the_version_of_its_rule(monkeypatch) -> None:
    before = store.policy_fingerprint(resolve_policy("planned:IO:1:own:spill"))
    monkeypatch.setattr(SpillPolicy, "version", 7)
    after = store.policy_fingerprint(resolve_policy("planned:IO:1:own:spill"))
    assert after == before | {"version": 7}


def test_other_versions_and_weights_are_refused(small, tmp_path, monkeypatch) -> None:
    suite, module = small
    run(suite, tmp_path / "r")
    assert run(suite, tmp_path / "r").computed == 0

    monkeypatch.setattr(store, "SIMULATOR_VERSION", -1)
    with pytest.raises(ConfigError, match=r"other settings: simulator \(there: .*, now: -1\)"):
        run(suite, tmp_path / "r")
    monkeypatch.undo()
    monkeypatch.setattr(LeastLoadedPolicy, "version", 7)
    with pytest.raises(ConfigError, match=r"policy least_loaded: version \(there: 1, now: 7\)"):
        run(suite, tmp_path / "r")
    monkeypatch.setattr(LeastLoadedPolicy, "version", 1)
    monkeypatch.setattr(LeastLoadedPolicy, "fingerprint", "other weights", raising=False)
    with pytest.raises(ConfigError, match=r"policy least_loaded: weights \(there: "):
        run(suite, tmp_path / "r")
    monkeypatch.delattr(LeastLoadedPolicy, "fingerprint")
    monkeypatch.syspath_prepend(str(tmp_path))
    with module.open("a") as file:
        file.write("# edited\n")
    with pytest.raises(ConfigError, match=r"policy user_.*:Mine: module \(there: "):
        run(suite, tmp_path / "r")
