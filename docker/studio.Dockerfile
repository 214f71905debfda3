# The studio; see docker/compose.studio.yaml.
FROM python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[studio]" \
 && useradd --create-home studio && install -d -o studio /data
USER studio
WORKDIR /data
ENTRYPOINT ["inframind", "studio", "--host", "0.0.0.0", "--runs", "/data/teams.sqlite"]
