"""The texts that MasRouter embeds, "Name: description", and their shipped embeddings.

Task classes, collaboration modes and models here; queries and roles come with
`inframind_gym.tasks`. `python -m agents.planner.texts` writes `data/planner_texts.npy` anew with
all-MiniLM-L6-v2 (extra `embed`); reading it needs NumPy alone.

The descriptions are our own. Those of the models name their size, as the router's only hint at what
a model costs, and what they are trained for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from inframind_gym.tasks import DOMAINS, EMBED_DIM

FILE: Final = Path(__file__).resolve().parents[1] / "data" / "planner_texts.npy"

TASK_TEXTS: Final = {
    "Math": "Math: problems that are solved by calculation, equations and proofs, with a number or "
    "an expression as the answer.",
    "Code": "Code: programming tasks, whose answer is a Python function that passes tests.",
    "Commonsense": "Commonsense: questions of knowledge and judgement from many subjects, with one "
    "right option among several.",
}

MODE_TEXTS: Final = {
    "IO": "IO: agents answer on their own, directly from the question.",
    "CoT": "CoT: agents reason step by step on their own before they answer.",
    "Chain": "Chain: agents work one after the other, each reading the answer of the one before.",
    "Debate": "Debate: agents answer, read all the other answers and answer again in a second "
    "round.",
    "Reflection": "Reflection: every agent answers, criticises its own answer and revises it.",
    "FullConnected": "FullConnected: agents work in order, each reading the answers of all agents "
    "before it.",
}

MODEL_TEXTS: Final = {
    "deepseek-32b": "DeepSeek-R1-Distill-Qwen-32B: a large reasoning model of 32 billion "
    "parameters that thinks at length before it answers; strongest in mathematics, slow and "
    "expensive.",
    "mistral-24b": "Mistral-Small-24B-Instruct: a general instruction model of 24 billion "
    "parameters with broad knowledge and short answers, at a medium price.",
    "qwen-14b": "Qwen2.5-Coder-14B-Instruct: a code model of 14 billion parameters, strong in "
    "programming, at a medium price.",
    "llama-8b": "Llama-3.1-8B-Instruct: a small general instruction model of 8 billion parameters, "
    "fast and cheap.",
    "llama-3b": "Llama-3.2-3B-Instruct: a very small instruction model of 3 billion parameters, "
    "the fastest and cheapest.",
}


def task_embeddings() -> NDArray[np.float32]:
    """Embeddings (3, 384) of the task classes, in the order of DOMAINS."""
    return _rows(DOMAINS)


def mode_embeddings() -> NDArray[np.float32]:
    """Embeddings (6, 384) of the collaboration modes, in the order of TOPOLOGIES."""
    return _rows(TOPOLOGIES)


def model_embeddings(aliases: Sequence[str]) -> NDArray[np.float32]:
    """Embeddings (M, 384) of models.

    Args:
        aliases: M names of models as pools call them.

    Raises:
        ConfigError: a model has no text.
    """
    for alias in aliases:
        if alias not in MODEL_TEXTS:
            raise ConfigError(
                f"{unknown('model', alias, MODEL_TEXTS)} MasRouter chooses models by their texts: "
                "add one to agents/planner/texts.py and run `python -m agents.planner.texts`."
            )
    return _rows(aliases)


def all_texts() -> dict[str, str]:
    """Every text by its name, in the order of the file."""
    return {**TASK_TEXTS, **MODE_TEXTS, **MODEL_TEXTS}


def build(file: Path = FILE) -> None:
    """Embed all texts and write them, (n, 384) float16."""
    from inframind_gym.tasks.embedding import MiniLMEmbedder

    file.parent.mkdir(parents=True, exist_ok=True)
    embeddings = MiniLMEmbedder()(list(all_texts().values()))
    np.save(file, embeddings.astype(np.float16), allow_pickle=False)


@lru_cache(maxsize=1)
def _table() -> NDArray[np.float32]:
    table: NDArray[np.float32] = np.load(FILE, allow_pickle=False).astype(np.float32)
    if table.shape != (len(all_texts()), EMBED_DIM):
        raise ConfigError(
            f"{FILE}: holds an array of shape {table.shape}, wanted ({len(all_texts())}, "
            f"{EMBED_DIM}), a row a text. Run `python -m agents.planner.texts`."
        )
    return table


def _rows(names: Sequence[str]) -> NDArray[np.float32]:
    order = list(all_texts())
    rows: NDArray[np.float32] = _table()[[order.index(name) for name in names]]
    return rows


if __name__ == "__main__":
    build()
    print(f"wrote {FILE.name}", file=sys.stderr)
