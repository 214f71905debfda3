"""An OpenAI-compatible gateway in front of a pool: `inframind serve`. Needs the extra `serve`.

A request comes through the files in this order:

app       admission, routes and process (what every server checks is in `live/guard.py`)
request   a request, checked
gateway   servers, metrics, where a request goes and as what, and whether it is in time
choose    expected latencies, a policy asked for one call
proxy     attempts at servers (`live/chat.py`) until one answers; metrics and log

team      a whole workflow for one question
config    gateway.yaml
"""
