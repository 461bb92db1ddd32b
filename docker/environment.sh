#!/bin/sh
# Fills the environment $1 with what the lock $2 names, takes away what nothing here runs, lists the rest, and compiles.
# In an environment that another lock has filled it does so for what is new.
set -eu
environment=$1 lock=$2

install() {  # --no-deps: the lock is complete, and a second look at dependencies could only disagree with it.
  [ -d "$1" ] || python3 -m venv --without-pip "$1"
  python3 -m pip --python "$1/bin/python" install --no-compile --no-deps --require-hashes -r "$2"
}

[ -d /opt/sbom ] || install /opt/sbom sbom.lock
install "$environment" "$lock"

# Tests, headers and Cython; libclang, which TensorFlow asks for and does not load; TensorBoard's server and its pages;
# TensorFlow's StableHLO, which nothing imports; LiteRT's part for a GPU; of Vertex AI's client all but v1, which alone is
# asked; of Arrow what speaks to servers, and second copies of what a wheel cannot link to; of AWS's services all but S3
# and what signs in to it; test data.
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

# Not compared with their sources' times at every start. In one process and one order: what an object's references are
# counted to, which is in the file, depends on what was compiled before it.
find "$environment/lib" -name '*.py' $([ ! -f compiled ] || echo -newer compiled) | LC_ALL=C sort \
  | "$environment/bin/python" -m compileall -fq --invalidation-mode unchecked-hash -i -
touch compiled
