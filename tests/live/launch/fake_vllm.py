"""A stand-in for an interpreter that has vLLM: starts, fails and ends like it, and imports little.

Called as `fake_vllm.py -m vllm.entrypoints.openai.api_server ...`; has an engine in a process of
its own, which outlives an API server that is killed. `--fake=...` among the arguments:

    fail     ends during its start, the cause some lines before the end
    silent   never answers
    stubborn ignores SIGTERM, and so does its engine
    deaf     closes its port when its engine ends, and hangs
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from threading import Thread

METRICS = """\
vllm:num_requests_running 2
vllm:num_requests_waiting 1
vllm:kv_cache_usage_perc 0.25
"""
ENGINE = "import signal, sys, time\nif {}: signal.signal(15, signal.SIG_IGN)\ntime.sleep(600)"


def main() -> None:
    if sys.argv[1] == "-c":  # is there a vLLM?
        return
    if not sys.argv[1].startswith("-"):  # a script of ours
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    given = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    how = next((a.partition("=")[2] for a in sys.argv if a.startswith("--fake=")), "")
    print("(APIServer pid=1) INFO 01-01 00:00:00 [x.py:1] loading", flush=True)
    stubborn = how == "stubborn"
    engine = subprocess.Popen([sys.executable, "-S", "-c", ENGINE.format(stubborn)])
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:

        def end(*_: object) -> None:
            engine.kill()
            engine.wait()
            os._exit(0)

        signal.signal(signal.SIGTERM, end)
    if how == "fail":
        speaker = "(EngineCore pid=2) ERROR 01-01 00:00:00 [x.py:1]"
        print(f"{speaker} ValueError: No available memory for the cache blocks.", flush=True)
        print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
        sys.exit(1)
    if how == "silent":
        time.sleep(600)

    models = json.dumps({"data": [{"id": given["--served-model-name"]}]})
    answers = {"/health": "", "/metrics": METRICS, "/v1/models": models}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers[self.path].encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    ThreadingTCPServer.allow_reuse_address = ThreadingTCPServer.daemon_threads = True
    server = ThreadingTCPServer(("127.0.0.1", int(given["--port"])), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    print("Application startup complete.", flush=True)
    if how == "deaf":
        engine.wait()
        server.shutdown()
        server.server_close()
    time.sleep(600)


if __name__ == "__main__":
    main()
