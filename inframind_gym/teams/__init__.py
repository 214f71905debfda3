"""Teams of LLM agents with a controller that decides under a limit."""
