"""Live vLLM servers: clients, launchers, prompts; needs the extra `live`."""
