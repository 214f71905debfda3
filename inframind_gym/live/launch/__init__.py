"""Starting, looking at and stopping the vLLM servers of a pool: `inframind pool`.

What is asked of them, once they run, is the matter of `serving/vllm`.

    command         `inframind pool up|status|logs|down|compose`
    progress        what `up` and `down` show
    status          what `status` shows
    launcher        starts servers, and stops what it started
    server_command  the command line and environment of a server
    compose         the same servers as a Docker Compose file
    tiny_models     models for trying it all on CPUs
    failures        why a server failed to start, and what to do
    started, state  servers that were started and not stopped, also by an earlier process
    processes       their processes; ports: who listens where
"""
