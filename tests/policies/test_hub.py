"""Checkpoints on a hub that runs here: the Hub's own client against a stand-in of its server."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import pytest
import yaml

from inframind_gym.errors import ConfigError
from inframind_gym.policies import make
from inframind_gym.policies.checkpoint import CONFIG_FILE, MODEL_FILE, SHIPPED, fingerprint

pytest.importorskip("huggingface_hub", reason="needs the extra `hub`")

from inframind_gym.policies.hub import CARD, load_from_hub, save_to_hub

COMMIT = "a" * 40
SHIPPED_ONE = SHIPPED / "masrouter"


class Hub(BaseHTTPRequestHandler):
    """Repositories in memory."""

    files: ClassVar[dict[str, dict[str, bytes]]] = {}

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = unquote(self.path).strip("/").split("/")
        if self.path == "/api/repos/create":
            content = json.loads(body)
            repo = f"{content.get('organization', 'me')}/{content['name']}"
            self.files.setdefault(repo, {})
            self.answer({"url": f"http://{self.headers['Host']}/{repo}", "name": repo})
        elif "preupload" in parts:
            named = json.loads(body)["files"]
            plan = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in named
            ]
            self.answer({"files": plan})
        elif "commit" in parts:
            repo = "/".join(parts[2:4])
            for line in body.splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    data = base64.b64decode(item["value"]["content"])
                    self.files[repo][item["value"]["path"]] = data
            url = f"http://{self.headers['Host']}/{repo}/commit/{COMMIT}"
            self.answer({"success": True, "commitUrl": url, "commitOid": COMMIT})
        else:
            self.answer({"errors": [], "warnings": []})  # of the card's metadata

    def do_GET(self) -> None:
        parts = unquote(self.path.partition("?")[0]).strip("/").split("/")
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        files = self.files.get(repo)
        if files is None:
            self.answer({}, 404, X_Error_Code="RepoNotFound")
        elif parts[0] == "api" and "tree" in parts:
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                for name, data in files.items()
            ]
            self.answer(listed)
        elif parts[0] == "api":
            siblings = [{"rfilename": name} for name in files]
            self.answer({"id": repo, "sha": COMMIT, "siblings": siblings})
        else:
            data = files["/".join(parts[4:])]
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            self.answer(data, ETag=etag, X_Repo_Commit=COMMIT)

    def do_HEAD(self) -> None:
        self.do_GET()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.chdir(tmp_path)
    Hub.files.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_checkpoint_goes_there_and_comes_back(hub: str, tmp_path: Path) -> None:
    url = save_to_hub(
        SHIPPED_ONE, "me/mine", policy="masrouter", about="For tests.", token="t", endpoint=hub
    )
    assert url.endswith(COMMIT)
    files = Hub.files["me/mine"]
    assert {MODEL_FILE, CONFIG_FILE, CARD} <= set(files)
    assert files[MODEL_FILE] == (SHIPPED_ONE / MODEL_FILE).read_bytes()
    card = files[CARD].decode()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["library_name"] == "inframind-gym"
    assert fingerprint(SHIPPED_ONE) in card
    assert "For tests." in card
    folder = load_from_hub("me/mine", into=tmp_path / "got", token="t", endpoint=hub)
    assert not (folder / CARD).exists()
    policy: Any = make("masrouter", checkpoint_folder=str(folder))
    assert policy.fingerprint == fingerprint(SHIPPED_ONE)


def test_what_is_damaged_or_missing_is_refused(hub: str, tmp_path: Path) -> None:
    save_to_hub(SHIPPED_ONE, "me/mine", policy="masrouter", token="t", endpoint=hub)
    Hub.files["me/mine"][MODEL_FILE] += b"x"
    with pytest.raises(ConfigError, match="sha256 is not the one"):
        load_from_hub("me/mine", into=tmp_path / "got", token="t", endpoint=hub)
    with pytest.raises(ConfigError, match="me/none: the Hub says"):
        load_from_hub("me/none", into=tmp_path / "none", token="t", endpoint=hub)
    with pytest.raises(ConfigError, match="no such folder"):
        save_to_hub(tmp_path / "nowhere", "me/mine", policy="masrouter", endpoint=hub)
    with pytest.raises(ConfigError, match="the Hub says"):
        load_from_hub("not a name", into=tmp_path / "none", endpoint=hub)
    with pytest.raises(ConfigError, match="the Hub says"):
        load_from_hub("me/mine", into=tmp_path / "off", token="t", endpoint="http://127.0.0.1:9")
