# The studio; see docker/compose.studio.yaml.
FROM python:3.11-slim
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[studio]" \
 && useradd --create-home studio && install -d -o studio /data
USER studio
WORKDIR /data
ENTRYPOINT ["inframind", "studio", "--host", "0.0.0.0", "--runs", "/data/teams.sqlite"]
