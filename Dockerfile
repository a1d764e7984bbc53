# One image for every command: `serve` by default; `run`, `annotate`, `register`, `migrate` by argument.
# Built and run by tests/deploy/test_container.py; how it is meant to be run stands in docs/operations.md.
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
# The dependencies first, at the versions and hashes of the lock: this layer changes only with it.
# requirements-tables.txt has pyarrow as well, for `annotate`: 160 MB that a service has no use for.
ARG LOCK=requirements.txt
COPY deploy/container/ ./
RUN python -m venv /opt/dispatcher \
 && /opt/dispatcher/bin/pip install --require-hashes --only-binary :all: -r "${LOCK}" \
 && python -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes --only-binary :all: -r requirements-build.txt
COPY pyproject.toml README.md LICENSE ./
COPY dispatcher dispatcher
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/dispatcher/bin/pip install --no-deps --no-index /wheels/*.whl \
 && /opt/dispatcher/bin/python -m compileall -q /opt/dispatcher/lib \
 && /opt/dispatcher/bin/pip uninstall -y -q pip \
 && find /opt/dispatcher -depth \( -name tests -o -name test \) -path '*site-packages*' -type d -exec rm -rf {} +

FROM python:${PYTHON_VERSION}-slim
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dispatcher" \
      org.opencontainers.image.description="A work-queue dispatcher for fleets of vLLM servers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# A number, so that Kubernetes' runAsNonRoot can see that it is not root. Of any other user, group 0 may write to /data:
# that is how OpenShift runs images, with a number of its own.
RUN groupadd --gid 10001 dispatcher \
 && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin dispatcher \
 && install -d -o 10001 -g 0 -m 0775 /data
COPY --from=build /opt/dispatcher /opt/dispatcher
# TMPDIR: the root file system may be read-only, /data never is. Storage is in the working directory unless said
# otherwise. No other setting is made here: a variable would win over a settings file that is mounted.
ENV PATH=/opt/dispatcher/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/data TMPDIR=/data \
    DISPATCHER_API__HOST=0.0.0.0
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
# /healthz is the process, not its servers: a fleet that is down is no reason to restart the one that waits for it.
# What is no service answers nothing, and is well while it runs.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as u; b'serve' in open('/proc/1/cmdline', 'rb').read().split(b'\\0') and u.urlopen('http://127.0.0.1:' + os.environ.get('DISPATCHER_API__PORT', '8080') + '/healthz', timeout=4)"]
ENTRYPOINT ["dispatcher"]
CMD ["serve"]
