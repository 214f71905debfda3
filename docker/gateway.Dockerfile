# The gateway; see docker/compose.gateway.yaml.
FROM python:3.11-slim
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[serve]" \
 && useradd --create-home gateway && install -d -o gateway /data
USER gateway
WORKDIR /data
ENTRYPOINT ["inframind", "serve"]
