"""Live vLLM servers: start them, call them, place models on them. Needs the extra `live`.

vLLM itself is never imported: its servers are processes, reached over HTTP.

    config          keyword arguments of the live environments
    simulation      a closed loop of routing on live servers: what the live environments step
    placement/      a live cluster whose models are switched by a policy
    gateway/        one OpenAI-compatible address in front of a pool, routed by a policy (`serve`)

Calls, independent of who started the servers:

    servers         connections to a pool that outlive an episode
    backend         one episode on them, as a `simulator.workflow.backend.Backend`
    client          chat completions: bounded, streamed (stream), tried again
    watcher         metrics in the background, and which servers are up
    probe           one server: health, sleep, metrics (metrics), models
    request_log     a line for every call
    settings        addresses, limits, retries, sampling
    loop            the asyncio loop of all this, in a thread
    prompts         messages of a call; prompts.yaml: their texts

Processes, for pools and for placement:

    command         `inframind pool up|status|logs|down|compose|place`; progress: its output
    launcher        starts servers, and stops what it started
    started         servers that were started and not stopped, also by an earlier process
    processes       identity and end of processes, ports
    status          state of a pool's servers
    failures        causes of failed starts, and remedies
    server_command  command line and environment of a server
    compose         the same servers as a Docker Compose file
    tiny_models     models for trying it all on CPUs
"""
