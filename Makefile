# Every target creates .venv from the lock on first use and works in it.
VENV := .venv
BEAM := .beam
# The newest that is here: a name alone may be one of a version manager that has no such version at hand.
PYTHON ?= $(shell for version in 3.13 3.12 3.11; do \
  python$$version -c "" 2>/dev/null && echo python$$version && exit; done; echo python3.13)
PYTHON := $(PYTHON)
CONFIG ?= digits
MINUTES ?= 15
# One more than there are cores: some tests wait for a process or a clock.
WORKERS ?= $(shell expr $$(nproc) + 1)
KILLS ?= 1000
SEED ?= 0
TIMES ?= 50
SLICE ?= 1/1
HOSTS ?= 4
IMAGE ?= tpu-pipelines/python:latest
STEPS_IMAGE ?= tpu-pipelines/steps:latest
TRAIN_GPU_IMAGE ?= tpu-pipelines/train-gpu:latest
BEAM_IMAGE ?= tpu-pipelines/beam:latest
SERVING_IMAGE ?= tpu-pipelines/serving:latest
TAG = $(if $(filter train,$*),$(IMAGE),$($(shell echo $* | tr a-z- A-Z_)_IMAGE))
# What runs: docker with its daemon, podman, or buildah, which only builds and pushes.
ENGINE ?= $(shell docker info >/dev/null 2>&1 && echo docker || basename "$$(command -v podman buildah docker | head -1)")
# https://github.com/opencontainers/image-spec/blob/main/annotations.md
LABEL = --label org.opencontainers.image
LABELS = $(LABEL).revision=$(shell git describe --always --dirty --abbrev=40 --exclude '*') \
  $(LABEL).version=$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) $(LABEL).licenses=Apache-2.0 \
  $(if $(SOURCE),$(LABEL).source=$(SOURCE))
SOURCE ?= $(shell git remote get-url origin 2>/dev/null | sed 's|//[^/@]*@|//|')

.PHONY: install beam-env run test test-promises test-heavy test-beam test-all check bench soak fuzz kills faults kills-hosts kills-fan-out kills-beam kills-answers audit licences lock image images push sbom wheel wheel-test images-test

install: $(VENV)/.installed

# Debian's python3 comes without ensurepip, so the system's pip installs into the environment from outside. --no-deps: the
# lock is complete, and pip before 23.3 meets a newer release of what it pins while it resolves, and refuses that.
$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear --without-pip $(VENV)
	$(PYTHON) -m pip --python $(VENV)/bin/python install --quiet --no-deps --require-hashes -r requirements.lock
	$(PYTHON) -m pip --python $(VENV)/bin/python install --quiet --no-deps --no-build-isolation --editable .
	touch $@

beam-env: $(BEAM)/.installed  ## An environment with Apache Beam, which excludes some of the lock; its tests: TPU_PIPELINES_BEAM_PYTHON=.beam/bin/python

$(BEAM)/.installed: docker/beam.lock pyproject.toml
	$(PYTHON) -m venv --clear --without-pip $(BEAM)
	$(PYTHON) -m pip --python $(BEAM)/bin/python install --quiet --no-deps --require-hashes -r docker/beam.lock
	$(PYTHON) -m pip --python $(BEAM)/bin/python install --quiet --no-deps --no-build-isolation --editable .
	touch $@

run: install  ## The whole pipeline on this machine; CONFIG=cifar10_cnn for another example.
	$(VENV)/bin/tpu-pipelines run $(CONFIG)

test: install  ## The fast tests, on all cores, without a network; the README says how long they take.
	$(VENV)/bin/python -m pytest -m "not slow and not heavy" --numprocesses $(WORKERS) --dist worksteal

# What the project promises, without the details: whole runs, compiled pipelines, every component and the command lines.
test-promises: install  ## A part of the fast tests, for the other Pythons: PYTHON=python3.12 VENV=.venv-3.12
	$(VENV)/bin/python -m pytest -m "not slow and not heavy" --numprocesses $(WORKERS) --dist worksteal \
	  tests/e2e tests/pipelines/pipeline/test_compile.py tests/pipelines/runs/test_run_local.py tests/pipelines/api/test_library.py \
	  tests/pipelines/config/test_schema.py tests/components/test_components.py tests/components/core/component/test_command_line.py \
	  tests/components/train_model/test_training.py tests/components/export_model tests/components/serving

test-heavy: install  ## Those of many seconds each, which CI runs too: trainings that are killed, and whatever starts processes.
	$(VENV)/bin/python -m pytest -m "heavy and not slow"

test-beam: beam-env install  ## Records and predictions by Apache Beam, in this machine's own runner, to the bytes of one process.
	TPU_PIPELINES_BEAM_PYTHON=$(BEAM)/bin/python $(VENV)/bin/python -m pytest -m slow -k this_process \
	  tests/components/create_tfrecords/engines/test_beam.py tests/components/predict_batch/test_beam.py

test-all: install  ## All tests, one after another: an hour for the ready examples' own data sets, where these are, beside the rest.
	$(VENV)/bin/python -m pytest

check: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: install  ## Speed, each figure beside its baseline in the same run.
	$(VENV)/bin/python -m tests.evidence.benchmarks

soak: install  ## The server under honest and hostile load, on this machine alone; MINUTES=5 for less than 15.
	$(VENV)/bin/python -m tests.evidence.benchmarks.soak --minutes $(MINUTES)

fuzz: install  ## Ten minutes of mutated input for every reader of outside bytes; MINUTES=60 for more, SEED=2 for other input.
	$(VENV)/bin/python -m tests.evidence.fuzz --minutes $(if $(filter command line,$(origin MINUTES)),$(MINUTES),10) --seed $(SEED)

kills: install  ## Every step killed at any moment and run again, one night; SLICE=3/10 for a part, KILLS=300 for fewer.
	$(VENV)/bin/python -m tests.evidence.kills --kills $(KILLS) --slice $(SLICE)

faults: install  ## Steps and whole runs on a full disk, a damaged one, and by a clock that steps; TIMES=5 for fewer; needs cc.
	$(VENV)/bin/python -m tests.evidence.kills.faults full damaged clock --times $(TIMES)

kills-hosts: install  ## Hosts that train together, killed at any moment and started again; KILLS=50 and HOSTS=2 for fewer.
	$(VENV)/bin/python -m tests.evidence.kills.hosts --hosts $(HOSTS) --kills $(KILLS)

kills-fan-out: install  ## Commands that write records together, killed at any moment and run again; KILLS=20 for fewer.
	$(VENV)/bin/python -m tests.evidence.kills.fan_out --kills $(KILLS)

kills-beam: beam-env install  ## What Beam's workers write, records and answers, killed at any moment and written again; KILLS=20 for fewer.
	$(BEAM)/bin/python -m tests.evidence.kills.beam --kills $(KILLS)
	$(VENV)/bin/python -m tests.evidence.kills.answers --only-export build/kills-export
	$(BEAM)/bin/python -m tests.evidence.kills.beam --kills $(KILLS) --export build/kills-export

kills-answers: install  ## predict_batch over 100,000 pictures, killed at any moment and run again; KILLS=10 for fewer.
	$(VENV)/bin/python -m tests.evidence.kills.answers --kills $(KILLS)

# PYSEC-2026-3447 (setuptools < 83: what a source distribution made on macOS leaves out) is about nothing done here, and
# TensorFlow's TensorBoard needs a setuptools before 82.
audit:  ## Known vulnerabilities of everything locked: asks PyPI, or a checkout of pypa/advisory-database, ADVISORIES=FOLDER; needs uv.
	$(if $(ADVISORIES),$(VENV)/bin/python -m tests.evidence.advisories $(ADVISORIES)) \
	uv tool run pip-audit@2.10.1 --strict --disable-pip --require-hashes --ignore-vuln PYSEC-2026-3447 \
	  -r requirements.lock -r docker/serving.lock -r docker/train.lock -r docker/train-gpu.lock -r docker/beam.lock -r docker/sbom.lock

licences: install  ## The licence of everything locked.
	$(VENV)/bin/python -m tests.evidence.licences

lock:  ## Needs uv; the lock holds hashes and names no index.
	mkdir -p build
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --extra preflight --extra vertex --extra kubeflow --extra s3 --extra dev pyproject.toml --output-file requirements.lock
	for image in serving steps train train-gpu sbom; do \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    --group pyproject.toml:$$image-image --constraint requirements.lock --output-file docker/$$image.lock || exit; \
	done
	sed -n 's/ *\\$$//; /^[a-z0-9]/p' requirements.lock | grep -vE '^(cachetools|pillow|pyarrow)==' >build/beam-constraints.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --group pyproject.toml:beam-image --constraint build/beam-constraints.txt --no-annotate --output-file docker/beam.lock

image: image-train image-serving  ## One image for every step, and a small one that serves what they export.

images: image-steps image-train image-serving  ## These, and one for the steps that need no JAX; BASE=IMAGE to build on another.

image-%:  ## One of them alone: steps, train, train-gpu, beam or serving.
	$(ENGINE) build $(if $(filter buildah,$(ENGINE)),--layers) $(BUILD_FLAGS) $(if $(BASE),--build-arg BASE=$(BASE)) $(LABELS) \
	  --file docker/$(if $(filter serving,$*),serving.)Dockerfile --target $* --tag $(TAG) .

push:  ## IMAGE=REGISTRY/NAME:TAG, built under that name; prints what TPU_PIPELINES_IMAGE wants: its name by digest.
	@sh docker/push.sh $(ENGINE) $(IMAGE)

sbom: sbom-steps sbom-train sbom-serving  ## What is in the images, with the licences, as CycloneDX in build/sbom/.

sbom-%:
	mkdir -p build/sbom
	$(ENGINE) run --rm --network none --entrypoint sh $(TAG) -c 'cat /opt/*/sbom.cdx.json' >build/sbom/$*.cdx.json

wheel: install  ## build/wheel/: what `pip install 'tpu_pipelines-….whl[local]'` takes.
	rm -rf build/wheel
	$(PYTHON) -m pip --python $(VENV)/bin/python wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .

# An environment of its own, resolved by pip and not by the lock: what a stranger gets today.
wheel-test: wheel  ## The wheel in an empty environment: its thin base, then a whole run; needs a package index.
	rm -rf build/wheel-test && mkdir -p build/wheel-test && cp tests/support/digit.png build/wheel-test
	$(PYTHON) -m venv --without-pip build/wheel-test/env
	$(PYTHON) -m pip --python build/wheel-test/env/bin/python install --quiet build/wheel/*.whl
	cd build/wheel-test && env/bin/tpu-pipelines machines >/dev/null && env/bin/tpu-pipelines schema >/dev/null
	$(PYTHON) -m pip --python build/wheel-test/env/bin/python install --quiet "$$(echo build/wheel/*.whl)[local]"
	cd build/wheel-test && env/bin/tpu-pipelines run digits && env/bin/tpu-pipelines predict digits@champion digit.png

images-test: install  ## Builds every image, runs digits in containers and compares, serves, kills; BASE=IMAGE to build on another.
	$(VENV)/bin/python -m tests.evidence.images --base "$(BASE)"
