"""An OpenAI-compatible gateway in front of a pool: `inframind serve`. Needs the extra `serve`.

command   `inframind serve`
app       routes and process
guard     who may ask: keys, hosts, origins, sizes, addresses; errors in OpenAI's form
request   a request, checked; its line in the log
gateway   servers, what is in flight, where a request goes, and whether it can make its budget
choose    a policy asked for one call, expected latencies, servers that are left alone
proxy     a request from admission to its last token: retries elsewhere
team      a whole workflow for one question
config    gateway.yaml
metrics   for Prometheus; top: the same in a terminal
"""
