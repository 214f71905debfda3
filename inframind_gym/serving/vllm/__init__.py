"""Calls served by live vLLM servers: metrics watcher, HTTP client, request log, backend.

Reached over HTTP only; vLLM itself is never imported. Needs the extra `live`. Import from the
modules: `pool.VllmPool` (all of it together), `watcher.MetricsWatcher` (the metrics alone).
"""
