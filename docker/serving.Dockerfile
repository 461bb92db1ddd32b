# The image that serves an export on CPU, without TensorFlow, Keras and the steps.
# Build from the repository root: make image-serving
# The base image is the same as in docker/Dockerfile. Any image with Python 3.11 to 3.13, venv and pip works.
ARG BASE=python:3.13-slim-trixie@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6

FROM ${BASE} AS environment
ENV PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY docker/environment.sh docker/bill.py docker/sbom.lock docker/serving.lock ./
RUN sh environment.sh /opt/serving serving.lock

FROM environment AS code
COPY components/tpu_components/__init__.py /code/tpu_components/
COPY components/tpu_components/core/__init__.py /code/tpu_components/core/
COPY components/tpu_components/core/base /code/tpu_components/core/base
COPY components/tpu_components/core/files /code/tpu_components/core/files
COPY components/tpu_components/core/examples /code/tpu_components/core/examples
COPY components/tpu_components/core/metrics /code/tpu_components/core/metrics
COPY components/tpu_components/core/results /code/tpu_components/core/results
COPY components/tpu_components/core/component /code/tpu_components/core/component
COPY components/tpu_components/core/registry /code/tpu_components/core/registry
COPY components/tpu_components/serving /code/tpu_components/serving
RUN /opt/serving/bin/python -m compileall -fq -s /code -p /opt/serving --invalidation-mode unchecked-hash /code

FROM ${BASE} AS serving
RUN SOURCE_DATE_EPOCH=0 useradd --create-home --uid 1000 server
COPY --from=environment /opt/serving /opt/serving
COPY --from=code /code /opt/serving
USER server
# PYTHONSAFEPATH: Python does not import modules from the current folder, to which other users may be able to write.
ENV PATH=/opt/serving/bin:${PATH} PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/serving
EXPOSE 8080
# No HEALTHCHECK: Vertex AI and Kubernetes request the health route themselves.
# Locally: docker run -p 8080:8080 -v $PWD/runs/digits/export:/export IMAGE /export
ENTRYPOINT ["python3", "-m", "tpu_components.serving"]
