# The gateway; see docker/compose.gateway.yaml.
FROM python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[serve]" \
 && useradd --create-home gateway && install -d -o gateway /data
USER gateway
WORKDIR /data
ENTRYPOINT ["inframind", "serve"]
