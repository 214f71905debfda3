"""An OpenAI-compatible gateway in front of a pool: `inframind serve`. Needs the extra `serve`.

command      `inframind serve` and `inframind top`; signals, drain, reload
protocol     limits on connections and headers
app          routes
gateway      one configuration at work: everything that a reload replaces
config       gateway.yaml
keys         who may ask, how often, and how much at once
asked        a request, checked; answers: errors in OpenAI's form
desk         decisions: a policy asked for one call, by the rules of the live environments
admission    which requests can still make their budget
breaker      servers that fail while they say that they are well
upstream     one request on one server; relay: to the client, token by token
calls        a request from admission to its last token: retries elsewhere
team         a whole workflow for one question
access_log   a line for each request, as `inframind calibrate` reads it
metrics      for Prometheus; top: the same in a terminal
"""
