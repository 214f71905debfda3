"""Live vLLM servers: start them, call them, place models on them. Needs the extra `live`.

vLLM itself is never imported: its servers are processes, reached over HTTP.

    config          keyword arguments of the live environments
    simulation      a closed loop of routing on live servers: what the live environments step
    placement/      a live cluster whose models are switched by a policy
    gateway/        one OpenAI-compatible address in front of a pool, routed by a policy (`serve`)
    simulated/      servers that answer like vLLM's, with the simulator's times

Calls, whoever started the servers:

    servers         connections to a pool that outlive an episode
    backend         one episode on them, as a `simulator.workflow.backend.Backend`
    client          chat completions: bounded, streamed, tried again
    watcher         metrics in the background, and which servers are up
    request_log     a line for every call
    settings        addresses, limits, retries, sampling
    loop            the asyncio loop of all this, in a thread
    prompts         messages of a call; prompts.yaml: their texts

Processes, for pools and for placement:

    command         `inframind pool new|up|status|logs|down|place`
    launcher        starts servers, stops what it started, their state
    processes       what was started and not stopped: state file, members, end; ports
    server_command  command line and environment of a server, and options that a pool cannot set
    weights         models that need no hub: tiny random ones, small real ones out of packages
"""
