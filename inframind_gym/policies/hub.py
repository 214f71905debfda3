"""Checkpoints on the Hugging Face Hub: two files and a model card, nothing pickled.

    save_to_hub("runs/mine/best", "me/bid-price-math", policy="bid_price")
    folder = load_from_hub("me/bid-price-math", into="checkpoints/mine")
    policy = make("bid_price", checkpoint=str(folder))

Needs the extra `hub`. Whoever saves is logged in (``hf auth login``) or gives a token.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import yaml

from inframind_gym.errors import ConfigError, require, shortened
from inframind_gym.policies import checkpoint
from inframind_gym.simulator import SIMULATOR_VERSION

CARD: Final = "README.md"
_FILES: Final = (checkpoint.MODEL_FILE, checkpoint.CONFIG_FILE)
_TAGS: Final = ["inframind-gym", "llm-routing", "reinforcement-learning"]
_CARD: Final = """\
---
{front}---

# {repo_id}

A checkpoint of the policy `{policy}` of InfraMind-Gym. {about}

```python
from inframind_gym.policies import make
from inframind_gym.policies.hub import load_from_hub

folder = load_from_hub("{repo_id}", into="checkpoints/{name}")
policy = make("{policy}", checkpoint=str(folder))
```

```sh
inframind bench run --suite starter --policies {policy}:checkpoints/{name}
```

| | |
|---|---|
| weights | {parameters:,} numbers in {tensors} arrays, safetensors |
| SHA-256 of the weights | `{sha256}` |
| saved with | inframind-gym {version}, simulator version {simulator} |

Configuration, training included:

```json
{config}
```
"""


def save_to_hub(
    folder: str | Path,
    repo_id: str,
    *,
    policy: str,
    about: str = "",
    license_id: str = "apache-2.0",
    private: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Upload a checkpoint with its model card; the repository is made if it is not there.

    Args:
        folder: of the checkpoint.
        repo_id: OWNER/NAME.
        policy: name of the policy that plays it, such as "bid_price".
        about: one or two sentences for the card.
        license_id: the Hub's name of the licence.
        private: whether a repository that is made is private.
        token: of the Hub; None: the one of ``hf auth login``.
        endpoint: address of another hub.

    Returns:
        The address of the commit.

    Raises:
        ConfigError: the folder holds no sound checkpoint, the extra is missing, or the Hub refuses.
    """
    folder = Path(folder)
    tensors, config = checkpoint.load(folder)
    card = model_card(folder, tensors, config, repo_id, policy, about, license_id)
    with _hub(repo_id) as hub, tempfile.TemporaryDirectory() as staging:
        for name in _FILES:
            (Path(staging) / name).write_bytes((folder / name).read_bytes())
        (Path(staging) / CARD).write_text(card, encoding="utf-8")
        api = hub.HfApi(endpoint=endpoint, token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo_id, folder_path=staging, commit_message=f"Checkpoint of {policy}"
        )
    return str(done.commit_url)


def load_from_hub(
    repo_id: str,
    *,
    revision: str | None = None,
    into: str | Path | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> Path:
    """Download a checkpoint and check that it is whole.

    Args:
        repo_id: OWNER/NAME.
        revision: commit, tag or branch; a commit is the one that cannot change.
        into: folder for the files; None: the Hub's cache.
        token: of the Hub, for private repositories.
        endpoint: address of another hub.

    Returns:
        The folder, as policies take it: ``bid_price:FOLDER``.

    Raises:
        ConfigError: there is no such repository, it holds no sound checkpoint, or the extra is
            missing.
    """
    with _hub(repo_id) as hub:
        found = hub.snapshot_download(
            repo_id,
            revision=revision,
            local_dir=into,
            allow_patterns=list(_FILES),
            token=token,
            endpoint=endpoint,
        )
    checkpoint.load(found)
    return Path(found)


def model_card(
    folder: Path,
    tensors: checkpoint.Tensors,
    config: Mapping[str, Any],
    repo_id: str,
    policy: str,
    about: str,
    license_id: str,
) -> str:
    """Return the model card of a checkpoint, with the metadata that the Hub reads."""
    front = {"library_name": "inframind-gym", "license": license_id, "tags": _TAGS}
    return _CARD.format(
        front=yaml.safe_dump(front, sort_keys=True),
        repo_id=repo_id,
        name=repo_id.rpartition("/")[2],
        policy=policy,
        about=about,
        parameters=sum(array.size for array in tensors.values()),
        tensors=len(tensors),
        sha256=checkpoint.fingerprint(folder),
        version=version("inframind-gym"),
        simulator=SIMULATOR_VERSION,
        config=json.dumps(config, indent=1, sort_keys=True),
    )


@contextmanager
def _hub(repo_id: str) -> Iterator[Any]:
    """Yield the Hub's client; its errors become ours."""
    hub = require("huggingface_hub", "the Hugging Face Hub", "hub")
    from httpx import HTTPError

    try:
        yield hub
    except ConfigError:
        raise
    except (HTTPError, OSError, ValueError) as error:
        raise ConfigError(
            f"{repo_id}: the Hub says: {shortened(error, 300)} Check the name, the network and "
            "`hf auth whoami`."
        ) from None
