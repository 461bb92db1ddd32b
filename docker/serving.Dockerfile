# The image that serves an export on CPU: no TensorFlow, no Keras, none of the steps. Build from the repository root: make image
# Python 3.11.16 of 2026-08-25, all platforms. The digest is the one that the maintainers of Docker's official images list:
# https://github.com/docker-library/repo-info/blob/33a22f41ac7bf613bc03380b0317536a9a7fb5e8/repos/python/remote/3.11-slim-bookworm.md
# A newer one: docker buildx imagetools inspect python:3.11-slim-bookworm
ARG BASE=python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b
FROM ${BASE}

WORKDIR /opt/serving
COPY docker/serving.lock ./
# --no-deps: the lock is complete, and a second look at dependencies could only disagree with it.
RUN python3 -m pip install --no-cache-dir --no-deps --require-hashes -r serving.lock
COPY components/*.py components/
COPY components/registry components/registry
COPY components/serving components/serving

RUN useradd --create-home --uid 1000 server
USER server
# Not from the current folder, whoever can write to it: nothing but the server and its libraries is imported.
ENV PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 PYTHONPATH=/opt/serving
EXPOSE 8080
# No HEALTHCHECK: Vertex and Kubernetes ask the health route themselves.
# Locally: docker run -p 8080:8080 -v $PWD/runs/digits/export:/export IMAGE /export
ENTRYPOINT ["python3", "-m", "components.serving"]
