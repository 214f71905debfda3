"""An OpenAI-compatible gateway in front of a pool: `inframind serve`. Needs the extra `serve`.

A request comes through the files in this order:

app       admission, routes and process (`live/guard.py` has the checks of all HTTP servers)
request   the request, checked
gateway   servers, metrics, and the choice of a server that answers within the budget
choose    expected latencies, and a policy's decision on one call
proxy     attempts at servers (`live/chat.py`) until one answers; metrics and log

team      a whole workflow for one question
config    gateway.yaml
"""
