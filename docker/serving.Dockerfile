# The image that serves an export on CPU: no TensorFlow, no Keras, none of the steps. Build from the repository root: make images
# The base is that of docker/Dockerfile, and as there any image with Python 3.11, its venv and pip will do.
ARG BASE=python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

FROM ${BASE} AS environment
ENV PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv --without-pip /opt/serving
WORKDIR /build
COPY docker/serving.lock ./
# --no-deps: the lock is complete, and a second look at dependencies could only disagree with it.
RUN python3 -m pip --python /opt/serving/bin/python install --no-deps --require-hashes -r serving.lock
COPY components/*.py /opt/serving/components/
COPY components/registry /opt/serving/components/registry
COPY components/serving /opt/serving/components/serving
RUN find /opt/serving/lib -depth -type d -name tests -exec rm -r {} + \
 && /opt/serving/bin/python -m compileall -qj 0 --invalidation-mode unchecked-hash /opt/serving

FROM ${BASE}
RUN useradd --create-home --uid 1000 server
COPY --from=environment /opt/serving /opt/serving
USER server
# Not from the current folder, whoever can write to it: nothing but the server and its libraries is imported.
ENV PATH=/opt/serving/bin:${PATH} PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/serving
EXPOSE 8080
# No HEALTHCHECK: Vertex and Kubernetes ask the health route themselves.
# Locally: docker run -p 8080:8080 -v $PWD/runs/digits/export:/export IMAGE /export
ENTRYPOINT ["python3", "-m", "components.serving"]
