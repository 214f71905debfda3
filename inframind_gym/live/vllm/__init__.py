"""Calls to live vLLM servers, whoever started them (`serving/launch` does).

Reached over HTTP only; vLLM itself is never imported. Needs the extra `live`.

    servers     the servers of a pool, connected for as long as somebody works with them
    settings    where they are, and how they are called and watched
    backend     a sweep on them, as a `serving.backend.Backend`
    client      chat completions: bounded (gate), streamed (stream), tried again
    watcher     metrics in the background, and which servers are up (server_status)
    probe       asking one server: health, sleep, metrics (metrics), models
    log         a line for every call
    loop        the asyncio loop of all this, in a thread
"""
