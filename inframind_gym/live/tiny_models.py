"""Tiny language models: real architecture and tokenizer, random weights, noise as answers.

    .venv-vllm/bin/python inframind_gym/live/tiny_models.py --out models 2x128 4x256

A model is a folder with a configuration (layers x width), a tokenizer that is trained on the spot
and a chat template. There are no weights: vLLM draws them when it is started with `--load-format
dummy`. The same folder is made from the same name everywhere.

Imports nothing of this package, so that any interpreter that has `tokenizers` can run it: vLLM's
does.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

SIZE: Final = re.compile(r"([1-9]\d*)x([1-9]\d*)")
VERSION: Final = 1  # of the models behind the names
VOCABULARY: Final = 2048  # tokens
CONTEXT: Final = 32768  # tokens; servers may allow less
HEAD: Final = 64  # width of an attention head
_SPECIAL: Final = ("<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_CHAT: Final = (
    "<|begin|>{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{{ message['content'] }}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_TOKENS: Final = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TOKENIZER_CONFIG: Final = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": CONTEXT,
    "pad_token": "<|pad|>",
    "bos_token": "<|begin|>",
    "eos_token": "<|end|>",
    "clean_up_tokenization_spaces": False,
    "chat_template": _CHAT,
}
# Texts of the tokenizer's training: the tasks that this package ships.
_TASKS: Final = Path(__file__).resolve().parents[1] / "tasks" / "data" / "builtin_tasks.jsonl.gz"


def parse_size(size: str) -> tuple[int, int]:
    """Return layers and width of a name like "2x128".

    Raises:
        ValueError: it is no such name, or the width no multiple of a head's.
    """
    match = SIZE.fullmatch(size)
    if match is None:
        raise ValueError(f"{size!r} is no size: wanted LAYERSxWIDTH, such as 2x128")
    layers, width = int(match[1]), int(match[2])
    if width % HEAD:
        raise ValueError(f"{size!r}: the width must be a multiple of {HEAD}")
    return layers, width


def folder_name(size: str) -> str:
    """Return the name of a model's folder, which contains the version."""
    parse_size(size)
    return f"tiny-{size}-v{VERSION}"


def is_made(folder: Path) -> bool:
    """Return whether a folder holds a whole model: this file is written last."""
    return (folder / "config.json").is_file()


def make(size: str, out: Path) -> Path:
    """Make the folder of a model of a size in `out`, unless it is there, and return it.

    Raises:
        ValueError: the size is none.
    """
    layers, width = parse_size(size)
    folder = out / folder_name(size)
    if is_made(folder):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "tokenizer.json", _tokenizer())
    for name, content in (
        ("tokenizer_config", _TOKENIZER_CONFIG),
        ("generation_config", _TOKENS),
        ("config", _model_config(layers, width)),
    ):
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        _write(folder / f"{name}.json", text)
    return folder


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


def _model_config(layers: int, width: int) -> dict[str, Any]:
    heads = width // HEAD
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
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


def _write(path: Path, text: str) -> None:
    """Write a file in one step: a kill, or a second process at it, breaks nothing."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


def main() -> int:
    """Make the models of the command line, and print their folders."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("sizes", nargs="+", metavar="LAYERSxWIDTH")
    parser.add_argument("--out", type=Path, required=True, help="folder for the models' folders")
    arguments = parser.parse_args()
    try:
        for size in arguments.sizes:
            print(make(size, arguments.out))
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
