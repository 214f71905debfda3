"""Teams of LLM agents with a controller that decides under a limit.

Each team has pure rules and a simulation, which its application and its environment share.
"""
