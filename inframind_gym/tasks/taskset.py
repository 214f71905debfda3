"""The set of queries that an environment draws from, as parallel arrays; splits; difficulty."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import TaskError, unknown

DOMAINS = ("Math", "Code", "Commonsense")
EMBED_DIM = 384  # width of an all-MiniLM-L6-v2 embedding
DATA = Path(__file__).resolve().parent / "data"  # ``python -m benchmarks.embed_shipped`` made it

AnswerKind = Literal["number", "expression", "choice", "tests"]
ANSWER_KINDS: tuple[AnswerKind, ...] = ("number", "expression", "choice", "tests")


@dataclass(frozen=True, slots=True)
class Answer:
    """Right answer of a task, which responses are graded against (`grading`).

    The value of a ``number`` is a decimal number or a fraction ("42", "-0.5", "3/7"), of an
    ``expression`` LaTeX or plain algebra, of a ``choice`` the letter of the right option, and of
    ``tests`` Python source that raises when it is run after a candidate's code and that is wrong.
    """

    kind: AnswerKind
    value: str
    options: tuple[str, ...] = ()  # texts of a choice, in order of their letters
    entry_point: str = ""  # name of the function that tests call; "": not known
    reference: str = ""  # source of a complete module that passes the tests; "": unknown


@dataclass(frozen=True, eq=False)
class TaskSet:
    """Queries with answers, embeddings and latent difficulties; row i of every field is task i.

    Difficulties are in standard normal units within a task's dataset (before any split is taken),
    and only partly visible in the embeddings. The quality model of the surrogate reads them, no
    observation shows them.
    """

    name: str  # "builtin", or the folder's name
    ids: tuple[str, ...]  # (n,) unique within a dataset
    texts: tuple[str, ...]  # (n,) what is embedded and prompted
    datasets: tuple[str, ...]  # (n,) "math", "mbpp", …; "builtin_math", …
    domain: NDArray[np.int8]  # (n,) index into DOMAINS
    difficulty: NDArray[np.float32]  # (n,)
    prompt_tokens: NDArray[np.int32]  # (n,) see `estimate_tokens`
    embeddings: NDArray[np.float32]  # (n, 384), L2-normalised where this package made them
    answers: tuple[Answer, ...]  # (n,)

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, mask_or_indices: Sequence[int] | Sequence[bool] | NDArray[Any]) -> TaskSet:
        """Return a new set of the rows of a mask (n,), or of row numbers in their order; copies."""
        chosen = np.asarray(mask_or_indices)
        rows = np.arange(len(self))[chosen if chosen.size else []].reshape(-1)
        order: list[int] = rows.tolist()
        columns: dict[str, Any] = {}
        for field in _COLUMNS:
            column = getattr(self, field)
            is_array = isinstance(column, np.ndarray)
            columns[field] = column[rows] if is_array else tuple(map(column.__getitem__, order))
        return TaskSet(name=self.name, **columns)


_COLUMNS = tuple(field.name for field in fields(TaskSet) if field.name != "name")


def estimate_tokens(text: str) -> int:
    """Estimated tokens of a text: one for every 4 characters, rounded up, at least 1.

    So it is for the tokenizers of Llama, Qwen and Mistral; more in prose, fewer in code and LaTeX.
    """
    return max(1, -(-len(text) // 4))


# Splits: train, validation and test, fixed by the content of each task.

SPLITS = ("train", "val", "test")
TRAIN_SHARE = 0.6
VAL_SHARE = 0.1  # the rest, 0.3, is test


def split_of(task_id: str, text: str) -> str:
    """Return "train", "val" or "test" (60/10/30) for a task.

    The split depends on the sha256 of id and text alone: it does not change when other tasks come
    or go, when a file is sorted, or from one machine to the next.
    """
    digest = hashlib.sha256(f"{task_id}\n{text}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2.0**64
    if share < TRAIN_SHARE:
        return "train"
    return "val" if share < TRAIN_SHARE + VAL_SHARE else "test"


def check_split(name: str, known: Sequence[str] = SPLITS) -> str:
    """Return the name of a split; a `TaskError` that suggests the nearest one if it is unknown."""
    if name not in known:
        raise TaskError(unknown("split", name, known))
    return name


# Latent difficulty: what a text shows of it, and what it hides.
#
# Over 29 models and the MMLU-Pro questions whose texts are at hand, ridge regression on the MiniLM
# embedding explains 0.17 of the variance of a question's difficulty out of sample
# (`benchmarks/fit/fitted/outcomes.json`). A surrogate in
# which the embedding gave the difficulty away would flatter every learned router, so the same
# regression finds no more in our tasks: difficulty is a visible part along the direction that it
# learned from the real outcomes, shipped with the package, and a part that shows nowhere.

# Share of a task's difficulty that depends on its embedding: with it the regression recovers 0.165
# on the texts of MMLU-Pro (mean of 8 draws), about what it finds in the real outcomes.
VISIBLE_R2: Final = 0.2
_NORMAL: Final = NormalDist()


@lru_cache(maxsize=1)
def _direction() -> NDArray[np.float64]:
    """Return the unit vector (384,) along which embeddings of real questions get harder."""
    vector = np.load(DATA / "difficulty_direction.npy", allow_pickle=False).astype(np.float64)
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float64)


def folder_difficulty(contents: list[str], embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the difficulty of the tasks of one dataset that comes without difficulties.

    Args:
        contents: (n,) what identifies a task (id and text); the hidden part is a standard normal
            from 53 bits of its sha256.
        embeddings: (n, 384); the visible part is their projection on the direction in which real
            questions get harder, standardised over the dataset (0 where it does not vary).

    Returns:
        (n,) float32; its mean is near 0 and its standard deviation near 1.
    """
    visible = embeddings.astype(np.float64) @ _direction()
    visible = visible - visible.mean() if visible.size else visible
    spread = float(visible.std()) if visible.size else 0.0
    visible = visible / spread if spread >= 1e-12 else np.zeros_like(visible)
    digests = (hashlib.sha256(f"inframind_gym/difficulty/{c}".encode()).digest() for c in contents)
    bits = [int.from_bytes(digest[:8], "big") >> 11 for digest in digests]
    hidden = np.array([_NORMAL.inv_cdf((number + 0.5) / 2.0**53) for number in bits])
    mixed = np.sqrt(VISIBLE_R2) * visible + np.sqrt(1.0 - VISIBLE_R2) * hidden
    return np.asarray(mixed, dtype=np.float32)
