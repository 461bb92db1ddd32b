# The image that serves an export on CPU: no TensorFlow, no Keras, none of the steps. Build from the repository root: make image
ARG BASE=python:3.11-slim-bookworm
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
