"""Tiny random models, which need no hub.

    .venv-vllm/bin/python inframind_gym/live/weights.py tiny:2x128 CACHE

`tiny:LAYERSxWIDTH` has a real architecture, a tokenizer that is trained on the spot and a chat
template; vLLM draws its weights (`--load-format dummy`), and its answers are noise. The folder is
the same wherever it is made.

Imports nothing of this package: vLLM's interpreter runs it, which has `tokenizers`.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from pathlib import Path
from typing import Final

VERSION: Final = 1  # of the models behind the names
VOCABULARY: Final = 2048  # tokens of a tiny model
CONTEXT: Final = 32768  # tokens; servers may allow less
HEAD: Final = 64  # width of an attention head
_SIZE: Final = re.compile(r"([1-9]\d*)x([1-9]\d*)")
_SPECIAL: Final = ("<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_TOKENS: Final = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TOKENIZER_CONFIG: Final = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": CONTEXT,
    "pad_token": "<|pad|>",
    "bos_token": "<|begin|>",
    "eos_token": "<|end|>",
    "clean_up_tokenization_spaces": False,
    "chat_template": (
        "<|begin|>{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
        "{{ message['content'] }}{{ '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    ),
}
# Texts of the tokenizer's training: the tasks that this package ships.
_TASKS: Final = Path(__file__).resolve().parents[1] / "tasks" / "data" / "builtin_tasks.jsonl.gz"


def folder(path: str, cache: Path) -> Path | None:
    """Return the folder of a pool's `path`; None: it is not made here. ValueError: no such size."""
    scheme, _, size = path.partition(":")
    if scheme != "tiny":
        return None
    if (match := _SIZE.fullmatch(size)) is None:
        raise ValueError(f"{size!r} is no size: wanted LAYERSxWIDTH, such as 2x128")
    if int(match[2]) % HEAD:
        raise ValueError(f"{size!r}: the width must be a multiple of {HEAD}")
    return cache / "tiny-models" / f"tiny-{size}-v{VERSION}"


def is_made(made: Path) -> bool:
    """Return whether a folder holds a whole model: config.json is written last."""
    return (made / "config.json").is_file()


def make(path: str, cache: Path) -> Path:
    """Make the folder of a model, unless it is there, and return it; ValueError: no such model."""
    target = folder(path, cache)
    if target is None:
        raise ValueError(f"{path!r}: wanted tiny:LAYERSxWIDTH")
    if is_made(target):
        return target
    layers, width = map(int, path.partition(":")[2].split("x"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": width // HEAD,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **_TOKENS,
    }
    contents = {
        "tokenizer": _tokenizer(),
        "tokenizer_config": _as_json(_TOKENIZER_CONFIG),
        "generation_config": _as_json(_TOKENS),
        "config": _as_json(config),
    }
    target.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (target / f"{name}.json").write_text(text, encoding="utf-8")
    return target


def _as_json(content: object) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _tokenizer() -> str:
    """Return a byte-level tokenizer, trained on the shipped tasks, as JSON."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with gzip.open(_TASKS, "rt", encoding="utf-8") as lines:
        tokenizer.train_from_iterator((json.loads(line)["text"] for line in lines), trainer)
    return str(tokenizer.to_str(pretty=False))


if __name__ == "__main__":
    try:
        print(make(sys.argv[1], Path(sys.argv[2])))
    except (ValueError, OSError, ImportError) as problem:
        sys.exit(f"error: {problem}")
