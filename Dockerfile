# A node. The default command runs it standalone, with its data in /data.
# docker-compose.cluster.yml runs nodes of a cluster.
#
#   docker build -t tms-broker .
#   docker run -e BROKER_ACCESS__ACCESS_MODE=open -p 127.0.0.1:8080:8080 -v broker-data:/data tms-broker

FROM python:3.12-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY broker ./broker
RUN python -m venv /opt/broker && /opt/broker/bin/pip install --no-cache-dir '.[cluster]'

FROM python:3.12-slim
COPY --from=build /opt/broker /opt/broker
COPY docker/healthy /usr/local/bin/
RUN useradd --system --user-group broker && mkdir /data && chown broker:broker /data
ENV PATH=/opt/broker/bin:$PATH
USER broker
VOLUME /data
EXPOSE 8080
CMD ["broker", "serve", "--host", "0.0.0.0", "--data-dir", "/data"]
