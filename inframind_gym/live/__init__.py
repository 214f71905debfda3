"""Live vLLM servers: start them, call them, place models on them. Needs the extra `live`.

vLLM itself is never imported: its servers are processes, reached over HTTP.

    backend         connections to servers, and one episode on a pool; request_log: a line a call
    chat            chat completions: the one client of backend, placement and gateway
    client          event loop, sessions, single requests
    watcher         metrics in the background, and which servers are up
    prompts         messages of a call; prompts.yaml: their texts
    config          arguments of live environments, settings of client and watcher; addresses
    launcher        starts servers and stops what it started: processes, weights
    command         `inframind pool new|up|status|down|place`, `inframind serve`
    placement/      a live cluster whose models are switched by a policy
    gateway/        one OpenAI-compatible address in front of a pool (`serve`); guard: its admission
    simulated/      servers that answer like vLLM's, with the simulator's times
"""
