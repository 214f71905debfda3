import json
import os

import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.policies.checkpoint import (
    CONFIG_FILE,
    MODEL_FILE,
    check_shapes,
    exists,
    load,
    part,
    save,
)

TENSORS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(1, np.float32)}
CONFIG = {"models": ["x"], "number": 0.1}


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "c", TENSORS, CONFIG)
    return tmp_path / "c"


def test_what_was_saved_comes_back(folder):
    tensors, config = load(folder)
    assert config == CONFIG
    assert set(tensors) == set(TENSORS)
    assert tensors["a.weight"].dtype == np.float32
    assert np.array_equal(tensors["a.weight"], TENSORS["a.weight"])
    assert list(part(tensors, "a.")) == ["weight"]


def test_saving_again_replaces_everything_and_leaves_nothing_beside(folder):
    (folder / "other").write_text("x")
    save(folder, {"b": np.zeros(2, np.float32)}, {})
    tensors, config = load(folder)
    assert set(tensors) == {"b"} and config == {}
    assert [p.name for p in folder.parent.iterdir()] == ["c"]
    assert not (folder / "other").exists()


def test_arrays_that_are_views_are_saved_as_they_look(tmp_path):
    view = np.arange(6, dtype=np.float32).reshape(2, 3).T
    save(tmp_path / "v", {"view": view}, {})
    assert np.array_equal(load(tmp_path / "v")[0]["view"], view)


def test_a_missing_folder_names_the_nearest(folder):
    with pytest.raises(ConfigError, match=r"no such folder. Did you mean 'c'"):
        load(folder.parent / "C")


def test_a_missing_file_is_named(folder):
    (folder / MODEL_FILE).unlink()
    with pytest.raises(ConfigError, match=MODEL_FILE):
        load(folder)


def test_an_edited_configuration_is_refused(folder):
    (folder / CONFIG_FILE).write_text(json.dumps({"models": ["y"]}))
    with pytest.raises(ConfigError, match="not the configuration"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 5, 40])
def test_a_damaged_file_is_refused(folder, keep):
    data = (folder / MODEL_FILE).read_bytes()
    (folder / MODEL_FILE).write_bytes(data[:keep])
    with pytest.raises(ConfigError, match="safetensors"):
        load(folder)


def test_a_pickle_is_never_opened(folder):
    import pickle

    (folder / MODEL_FILE).write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ConfigError, match="safetensors"):
        load(folder)


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    save(tmp_path / "n", {"a": np.array([1.0, np.nan], np.float32)}, {})
    with pytest.raises(ConfigError, match="not finite"):
        load(tmp_path / "n")


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
