"""Weights on disk: `model.safetensors` and `config.json` in one folder, whole or not at all.

Nothing here is pickled, so a checkpoint from anywhere can be opened. The weights file carries a
copy of the configuration, and the configuration the sha256 of the weights file: two files that do
not belong together, were edited or are damaged, are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError, InfraMindError, did_you_mean, shortened
from inframind_gym.files import read_json

SHIPPED: Final = Path(__file__).resolve().parent / "checkpoints"  # a folder a policy
MODEL_FILE: Final = "model.safetensors"
CONFIG_FILE: Final = "config.json"
MAX_BYTES: Final = 256 * 2**20  # of a weights file; ours take about 1 MB
_KEY: Final = "config"  # of the copy in the weights file's metadata
_SHA256: Final = "weights_sha256"  # key of the configuration file; the copy lacks it

Tensors = Mapping[str, NDArray[Any]]
Shapes = Mapping[str, tuple[int, ...]]


def save(folder: str | Path, tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Write a checkpoint in place of what the folder held; after a crash one of the two is there.

    The configuration (JSON values) says how to use the tensors.

    Raises:
        InfraMindError: the folder cannot be written.
    """
    from safetensors.numpy import save as encode

    folder = Path(folder)
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    data = encode(arrays, metadata={_KEY: _text(config)})
    digest = hashlib.sha256(data).hexdigest()
    exists(folder)  # one that a killed `save` has left is put back
    new, old = (folder.with_name(f".{folder.name}.{ending}") for ending in ("new", "old"))
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        (new / MODEL_FILE).write_bytes(data)
        (new / CONFIG_FILE).write_text(_text({**config, _SHA256: digest}), encoding="utf-8")
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
    except OSError as error:
        raise InfraMindError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        exists(folder)
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def exists(folder: str | Path) -> bool:
    """Return whether a folder holds a checkpoint; puts back what a killed `save` left beside it."""
    folder = Path(folder)
    old = folder.with_name(f".{folder.name}.old")
    if old.is_dir() and not folder.exists():
        os.replace(old, folder)
    return (folder / MODEL_FILE).is_file()


def load(folder: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read a checkpoint.

    Returns:
        Name -> array, floats as float32 or what was saved, and the configuration.

    Raises:
        ConfigError: there is no checkpoint, or one that is damaged (its weights do not have the
            sha256 of the configuration), too large, holds numbers that are not finite, or whose two
            files do not belong together. One that was saved by 0.1.0 has no sha256.
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(folder)
    model, config = folder / MODEL_FILE, folder / CONFIG_FILE
    if not exists(folder):
        hint = did_you_mean(folder.name, [path.name for path in folder.parent.glob("*")])
        raise ConfigError(f"{folder}: is no checkpoint, it has no {MODEL_FILE}.{hint}")
    if model.stat().st_size > MAX_BYTES:
        raise ConfigError(f"{model}: has {model.stat().st_size} bytes, more than {MAX_BYTES}.")
    content = read_json(config)
    if not isinstance(content, dict):
        raise ConfigError(f"{config}: wanted an object, {{...}}, got {shortened(repr(content))}.")
    digest = content.pop(_SHA256, None)
    if digest is not None and digest != fingerprint(folder):
        raise ConfigError(
            f"{model}: its sha256 is not the one that {config.name} gives. The file is damaged, or "
            "of another checkpoint: copy both files again."
        )
    try:
        with safe_open(model, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: np.asarray(file.get_tensor(name)) for name in list(file.keys())}
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise ConfigError(f"{model}: cannot be read as safetensors: {error}.") from None
    if metadata.get(_KEY, "") != _text(content):
        raise ConfigError(
            f"{config}: is not the configuration that {model.name} was saved with. "
            "Copy both files of a checkpoint together and edit neither."
        )
    for name, array in tensors.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ConfigError(f"{model}: {name} holds numbers that are not finite.")
    return tensors, content


def load_as(schema: type[BaseModel], folder: Path) -> tuple[Path, dict[str, NDArray[Any]], Any]:
    """Read a checkpoint, or the one in `best` of a training's folder, as of one policy.

    Returns:
        Its folder, the tensors, and the configuration as a `schema`.

    Raises:
        ConfigError: as of `load`; or the configuration is of another policy.
    """
    folder = folder / "best" if (folder / "best").is_dir() else folder
    tensors, content = load(folder)
    return folder, tensors, validate(content, schema, source=str(folder / CONFIG_FILE))


def folders(root: Path) -> list[Path]:
    """Return the folders of checkpoints at a place: itself, and those in it."""
    places = [root, *(sorted(root.iterdir()) if root.is_dir() else [])]
    return [place for place in places if (place / CONFIG_FILE).is_file()]


def check_shapes(folder: str | Path, tensors: Tensors, shapes: Shapes) -> None:
    """Check that a checkpoint holds every tensor that a network needs; it may hold more.

    Raises:
        ConfigError: a tensor is missing or has another shape.
    """
    model = Path(folder) / MODEL_FILE
    for name, shape in shapes.items():
        if name not in tensors:
            raise ConfigError(f"{model}: has no tensor {name!r}.{did_you_mean(name, tensors)}")
        found = tensors[name].shape
        if found != tuple(shape):
            raise ConfigError(
                f"{model}: {name} has shape {found}, wanted {tuple(shape)}. The checkpoint is of "
                "another network or pool."
            )


def fingerprint(folder: str | Path) -> str:
    """Hash of a checkpoint: its weights file, which has the configuration in it."""
    return hashlib.sha256((Path(folder) / MODEL_FILE).read_bytes()).hexdigest()


def part(tensors: Tensors, prefix: str) -> dict[str, NDArray[Any]]:
    """The tensors whose name starts with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def prefixed(tensors: Tensors, prefix: str) -> dict[str, NDArray[Any]]:
    """The tensors with `prefix` before every name."""
    return {prefix + name: array for name, array in tensors.items()}


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=2, sort_keys=True) + "\n"
