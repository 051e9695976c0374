# One node. Build:                docker build -t jetstream .
# Without a package index:        pip wheel --wheel-dir wheels . 'hatchling>=1.27'
#                                 docker build -t jetstream --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=wheels .
# How to run it is said in docs/containers.md.

# Any image of Debian's kind with python3 (3.11 or newer) and its venv module.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# pip reads these two from the environment, which is where build arguments are.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
WORKDIR /source
COPY . .
# A node needs no nats-server (NATS is elsewhere), of pyarrow neither Flight, headers nor tests, and no pip.
RUN python3 -m venv /opt/jetstream \
    && /opt/jetstream/bin/pip install --no-cache-dir --disable-pip-version-check . \
    && cd /opt/jetstream/lib/python3*/site-packages \
    && rm -r /opt/jetstream/bin/nats-server pyarrow/*flight* pyarrow/include pyarrow/tests \
    && /opt/jetstream/bin/pip uninstall --yes --quiet setuptools pip \
    && /opt/jetstream/bin/jetstream --version

FROM ${BASE}
# The number matters where a directory of the host is the volume: it must belong to 10001.
RUN groupadd --gid 10001 jetstream \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin jetstream \
    && install --directory --owner jetstream --group jetstream --mode 0750 /data
COPY --from=build /opt/jetstream /opt/jetstream
COPY containers/node.toml /etc/jetstream/node.toml
COPY containers/health_check.py /opt/jetstream/health_check.py
USER 10001:10001
WORKDIR /data
VOLUME /data
# The first start of a node with much data may take long: until it has been healthy once, failures do not count.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["/opt/jetstream/bin/python", "-I", "-S", "/opt/jetstream/health_check.py", "/etc/jetstream/node.toml"]
ENTRYPOINT ["/opt/jetstream/bin/jetstream", "node", "--config", "/etc/jetstream/node.toml"]
