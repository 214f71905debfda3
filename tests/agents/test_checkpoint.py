import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from inframind_gym.configs import StrictModel
from inframind_gym.errors import ConfigError
from inframind_gym.policies.checkpoint import (
    CONFIG_FILE,
    MODEL_FILE,
    SHIPPED,
    check_shapes,
    exists,
    fingerprint,
    load,
    load_as,
    part,
    save,
)

TENSORS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(1, np.float32)}
CONFIG = {"models": ["x"], "number": 0.1}


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "c", TENSORS, CONFIG)
    return tmp_path / "c"


def test_what_was_saved_comes_back_and_replaces_what_was_there(folder):
    tensors, config = load(folder)
    assert config == CONFIG and set(tensors) == set(TENSORS)
    assert tensors["a.weight"].dtype == np.float32
    assert np.array_equal(tensors["a.weight"], TENSORS["a.weight"])
    assert list(part(tensors, "a.")) == ["weight"]
    (folder / "other").write_text("x")
    view = np.arange(6, dtype=np.float32).reshape(2, 3).T  # saved as it looks
    save(folder, {"view": view}, {})
    tensors, config = load(folder)
    assert set(tensors) == {"view"} and config == {} and np.array_equal(tensors["view"], view)
    assert [p.name for p in folder.parent.iterdir()] == ["c"]
    assert not (folder / "other").exists()


def test_what_is_missing_edited_not_finite_or_a_pickle_is_refused(folder):
    with pytest.raises(ConfigError, match=r"is no checkpoint.*Did you mean 'c'"):
        load(folder.parent / "C")
    save(folder.parent / "nan", {"a": np.array([1.0, np.nan], np.float32)}, {})
    with pytest.raises(ConfigError, match="not finite"):
        load(folder.parent / "nan")
    (folder / CONFIG_FILE).write_text(json.dumps({"models": ["y"]}))
    with pytest.raises(ConfigError, match="not the configuration"):
        load(folder)
    data = (folder / MODEL_FILE).read_bytes()
    for content in (b"", data[:5], data[:40], pickle.dumps({"a": 1})):
        (folder / MODEL_FILE).write_bytes(content)
        with pytest.raises(ConfigError, match="safetensors"):
            load(folder)
    (folder / MODEL_FILE).unlink()
    with pytest.raises(ConfigError, match=MODEL_FILE):
        load(folder)


def test_the_best_of_a_training_is_read_as_of_its_policy(tmp_path):
    class Schema(StrictModel):
        models: tuple[str, ...]
        number: float

    save(tmp_path / "run" / "best", TENSORS, CONFIG)
    for place in (tmp_path / "run", tmp_path / "run" / "best"):
        folder, tensors, config = load_as(Schema, place)
        assert folder == tmp_path / "run" / "best" and set(tensors) == set(TENSORS)
        assert config == Schema(models=("x",), number=0.1)
    save(tmp_path / "other", TENSORS, {"modles": ["x"]})
    with pytest.raises(ConfigError, match=r"config.json: modles: .*Did you mean 'models'"):
        load_as(Schema, tmp_path / "other")


def test_shapes_are_checked(folder):
    tensors, _ = load(folder)
    check_shapes(folder, tensors, {"a.weight": (2, 3)})
    with pytest.raises(ConfigError, match=r"shape \(2, 3\), wanted \(3, 2\)"):
        check_shapes(folder, tensors, {"a.weight": (3, 2)})
    with pytest.raises(ConfigError, match=r"Did you mean 'a\.weight'"):
        check_shapes(folder, tensors, {"a.weights": (2, 3)})


@pytest.mark.parametrize("renames", [0, 1])
def test_a_save_that_is_interrupted_loses_nothing(tmp_path, monkeypatch, renames) -> None:
    """Between its two renames, by Ctrl-C and by a kill that leaves no time to tidy up."""
    folder = tmp_path / "c"
    save(folder, {"a": np.zeros(2, np.float32)}, {"version": 1})
    replace, left = os.replace, renames

    def stops(source: object, target: object) -> None:
        nonlocal left
        if left == 0:
            left = 100  # what tidies up works again
            raise KeyboardInterrupt
        left -= 1
        replace(source, target)

    monkeypatch.setattr(os, "replace", stops)
    with pytest.raises(KeyboardInterrupt):
        save(folder, {"a": np.ones(2, np.float32)}, {"version": 2})
    monkeypatch.undo()
    assert load(folder)[1] == {"version": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    replace(folder, tmp_path / ".c.old")  # killed here: neither name is there
    assert exists(folder)
    assert load(folder)[1] == {"version": 1}
    assert not exists(tmp_path / "nothing")


def test_a_flipped_bit_of_the_weights_is_noticed(folder):
    data = bytearray((folder / MODEL_FILE).read_bytes())
    data[-1] ^= 1
    (folder / MODEL_FILE).write_bytes(data)
    with pytest.raises(ConfigError, match="its sha256 is not the one"):
        load(folder)
    config = json.loads((folder / CONFIG_FILE).read_text())
    assert config.pop("weights_sha256")
    (folder / CONFIG_FILE).write_text(json.dumps(config))  # as 0.1.0 saved it
    assert load(folder)[1] == CONFIG


def test_all_checkpoints_of_the_repository_have_a_sha256():
    seeds = Path(__file__).resolve().parents[2] / "agents" / "checkpoints"
    found = [path.parent for root in (SHIPPED, seeds) for path in root.rglob(MODEL_FILE)]
    assert len(found) >= 16
    for each in found:
        config = json.loads((each / CONFIG_FILE).read_text(encoding="utf-8"))
        assert config["weights_sha256"] == fingerprint(each), each
        load(each)
