#!/bin/sh
# Installs the lock $2 into the environment $1, removes unused files, lists the packages, and compiles the rest.
# If the environment already contains the packages of another lock, only the new files are compiled.
set -eu
environment=$1 lock=$2

install() {  # --no-deps: the lock is complete, so pip must not resolve dependencies again.
  [ -d "$1" ] || python3 -m venv --without-pip "$1"
  python3 -m pip --python "$1/bin/python" install --no-compile --no-deps --require-hashes -r "$2"
}

[ -d /opt/sbom ] || install /opt/sbom sbom.lock
install "$environment" "$lock"

# Remove tests, headers and Cython; libclang, which TensorFlow requires but does not load; TensorBoard's server and pages;
# TensorFlow's StableHLO, which nothing imports; LiteRT's GPU delegate; Vertex AI's client except v1; Arrow's clients for
# servers, and duplicates of its libraries, which exist because a wheel cannot contain links; AWS's services except S3
# and sign-in; test data.
find "$environment/lib" -depth -type d \( -name tests -o -path '*/tensorflow/include' -o -path '*/site-packages/clang' \
  -o -path '*/jax/_src/internal_test_util' -o -path '*/tensorboard_data_server/bin' \
  -o -path '*/cloud/aiplatform_v1beta1' -o -path '*/site-packages/vertexai' -o -path '*/site-packages/agentplatform' \
  -o -path '*/pyarrow/include' -o -path '*/pyarrow/src' -o -name test_data \
  -o -path '*/botocore/data/*' ! -path '*/data/s3*' ! -path '*/data/sts*' ! -path '*/data/sso*' ! -path '*/data/signin*' \
  \) -exec rm -r {} +
find "$environment/lib" -type f \( -name stablehlo_extension.so -o -name libLiteRtWebGpuAccelerator.so \
  -o -name '*.h' -o -name '*.pyx' -o -name '*.pxd' -o -path '*/tensorboard/webfiles.zip' \
  -o -path '*/pyarrow/*flight*.so*' -o -path '*/pyarrow/*s3*.so*' \
  -o -path '*/pyarrow/libarrow_*.so' -o -path '*/pyarrow/libarrow_*.so.*.*' \) -delete

/opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-file "$environment/sbom.cdx.json" \
  "$environment/bin/python"
"$environment/bin/python" bill.py "$environment/sbom.cdx.json"

# unchecked-hash: Python does not compare the compiled files with their sources at every start. One process compiles in
# a fixed order, because a compiled file contains reference counts, which depend on the files that were compiled before.
find "$environment/lib" -name '*.py' $([ ! -f compiled ] || echo -newer compiled) | LC_ALL=C sort \
  | "$environment/bin/python" -m compileall -fq --invalidation-mode unchecked-hash -i -
touch compiled
