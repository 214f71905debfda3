# The server of the token-budget team; see docker/compose.team.yaml.
FROM python:3.11-slim
WORKDIR /src
COPY . .
RUN INFRAMIND_PURE=1 pip install --no-cache-dir -c constraints.txt ".[teams]" \
 && useradd --create-home team && install -d -o team /data
USER team
WORKDIR /data
ENTRYPOINT ["inframind", "team", "serve", "--host", "0.0.0.0", "--runs", "/data/teams.sqlite"]
