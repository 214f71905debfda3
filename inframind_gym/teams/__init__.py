"""Teams of LLM agents with a controller that decides under a limit.

Each team has pure rules over a state (`state.Rows`) and a simulation, which its application and its
environment share; policies get rows of that state.
"""
