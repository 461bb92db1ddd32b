# `make help` lists the targets. Most of them create .venv from the lock on first use, and work in it.
VENV := .venv
BEAM := .beam
# The newest Python here. A version manager may offer a name without an installed version, so each is run once.
PYTHON ?= $(shell for version in 3.13 3.12 3.11; do \
  python$$version -c "" 2>/dev/null && echo python$$version && exit; done; echo python3.13)
PYTHON := $(PYTHON)
CONFIG ?= digits
MINUTES ?= 15
# One more than the cores, because some tests wait for a process or a clock.
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
# Docker with its daemon, podman, or buildah, which can only build and push.
ENGINE ?= $(shell docker info >/dev/null 2>&1 && echo docker || basename "$$(command -v podman buildah docker | head -1)")
# https://github.com/opencontainers/image-spec/blob/main/annotations.md
LABEL = --label org.opencontainers.image
LABELS = $(LABEL).revision=$(shell git describe --always --dirty --abbrev=40 --exclude '*') \
  $(LABEL).version=$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) $(LABEL).licenses=Apache-2.0 \
  $(if $(SOURCE),$(LABEL).source=$(SOURCE))
# Without a password, and only if others can fetch from it: a folder on this machine is not published.
SOURCE ?= $(shell git remote get-url origin 2>/dev/null | sed -n 's|//[^/@]*@|//|; /^file:/d; /^[^/]*:/p')

.PHONY: install help beam-env run test test-promises test-heavy test-beam test-all check bench soak fuzz kills faults kills-hosts kills-fan-out kills-beam kills-answers audit licences lock image images push sbom wheel wheel-test images-test

install: $(VENV)/.installed  ## Create .venv from the lock; most targets do this first.

help:  ## List the targets.
	@sed -n 's/^\([a-z%-]*\):.*## /\1: /p' Makefile | while IFS= read -r line; do printf '%-14s %s\n' "$${line%%: *}" "$${line#*: }"; done

# Debian's python3 has no ensurepip, so the system's pip installs into the environment from outside. --no-deps: the lock
# is complete, and pip before 23.3 finds newer releases of pinned packages while it resolves, and fails.
$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear --without-pip $(VENV)
	$(PYTHON) -m pip --python $(VENV)/bin/python install --quiet --no-deps --require-hashes -r requirements.lock
	$(PYTHON) -m pip --python $(VENV)/bin/python install --quiet --no-deps --no-build-isolation --editable .
	touch $@

beam-env: $(BEAM)/.installed  ## Create .beam, an environment with Apache Beam; for its tests, set TPU_PIPELINES_BEAM_PYTHON=.beam/bin/python.

$(BEAM)/.installed: docker/beam.lock pyproject.toml
	$(PYTHON) -m venv --clear --without-pip $(BEAM)
	$(PYTHON) -m pip --python $(BEAM)/bin/python install --quiet --no-deps --require-hashes -r docker/beam.lock
	$(PYTHON) -m pip --python $(BEAM)/bin/python install --quiet --no-deps --no-build-isolation --editable .
	touch $@

run: install  ## Run the whole pipeline on this machine; CONFIG=cifar10_cnn runs another example.
	$(VENV)/bin/tpu-pipelines run $(CONFIG)

test: install  ## Run the fast tests on all cores, without a network.
	$(VENV)/bin/python -m pytest -m "not slow and not heavy" --numprocesses $(WORKERS) --dist worksteal

# The most important tests: whole runs, compiled pipelines, every component and the command lines.
test-promises: install  ## Run part of the fast tests with another Python: PYTHON=python3.12 VENV=.venv-3.12.
	$(VENV)/bin/python -m pytest -m "not slow and not heavy" --numprocesses $(WORKERS) --dist worksteal \
	  tests/e2e tests/pipelines/pipeline/test_compile.py tests/pipelines/runs/test_run_local.py tests/pipelines/api/test_library.py \
	  tests/pipelines/config/test_schema.py tests/components/test_components.py tests/components/core/component/test_command_line.py \
	  tests/components/train_model/test_training.py tests/components/export_model tests/components/serving

test-heavy: install  ## Run the tests of many seconds each: killed trainings, and tests that start processes.
	$(VENV)/bin/python -m pytest -m "heavy and not slow"

test-beam: beam-env install  ## Check that records and predictions from Apache Beam have the bytes of a single process.
	TPU_PIPELINES_BEAM_PYTHON=$(BEAM)/bin/python $(VENV)/bin/python -m pytest -m slow -k this_process \
	  tests/components/create_tfrecords/engines/test_beam.py tests/components/predict_batch/test_beam.py

test-all: install  ## Run all tests one after another; takes an hour with the data sets of the ready examples.
	$(VENV)/bin/python -m pytest

check: install  ## Check style, format and types.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: install  ## Measure speed, each figure next to its baseline in the same run.
	$(VENV)/bin/python -m tests.evidence.benchmarks

soak: install  ## Send normal and hostile load to the server on this machine; MINUTES=5 for less than 15.
	$(VENV)/bin/python -m tests.evidence.benchmarks.soak --minutes $(MINUTES)

fuzz: install  ## Feed mutated input to every parser of external data; MINUTES=60 for more than 10, SEED=2 for other input.
	$(VENV)/bin/python -m tests.evidence.fuzz --minutes $(if $(filter command line,$(origin MINUTES)),$(MINUTES),10) --seed $(SEED)

kills: install  ## Kill every step at random moments and run it again, for a night; SLICE=3/10 for a part, KILLS=300 for fewer.
	$(VENV)/bin/python -m tests.evidence.kills --kills $(KILLS) --slice $(SLICE)

faults: install  ## Run steps and whole runs with a full disk, a damaged disk and a jumping clock; TIMES=5 for fewer; needs cc.
	$(VENV)/bin/python -m tests.evidence.kills.faults full damaged clock --times $(TIMES)

kills-hosts: install  ## Kill hosts that train together, and restart them; KILLS=50 and HOSTS=2 for fewer.
	$(VENV)/bin/python -m tests.evidence.kills.hosts --hosts $(HOSTS) --kills $(KILLS)

kills-fan-out: install  ## Kill commands that write records together, and run them again; KILLS=20 for fewer.
	$(VENV)/bin/python -m tests.evidence.kills.fan_out --kills $(KILLS)

kills-beam: beam-env install  ## Kill Beam's workers while they write records and predictions, and run them again; KILLS=20 for fewer.
	$(BEAM)/bin/python -m tests.evidence.kills.beam --kills $(KILLS)
	$(VENV)/bin/python -m tests.evidence.kills.answers --only-export build/kills-export
	$(BEAM)/bin/python -m tests.evidence.kills.beam --kills $(KILLS) --export build/kills-export

kills-answers: install  ## Kill predict_batch on 100,000 images, and run it again; KILLS=10 for fewer.
	$(VENV)/bin/python -m tests.evidence.kills.answers --kills $(KILLS)

# PYSEC-2026-3447 (setuptools < 83: files missing from source distributions made on macOS) does not apply here, and
# TensorFlow's TensorBoard needs setuptools before 82.
audit:  ## Check all locked packages for known vulnerabilities; needs uv. ADVISORIES=FOLDER reads a checkout of pypa/advisory-database.
	$(if $(ADVISORIES),$(VENV)/bin/python -m tests.evidence.advisories $(ADVISORIES)) \
	uv tool run pip-audit@2.10.1 --strict --disable-pip --require-hashes --ignore-vuln PYSEC-2026-3447 \
	  -r requirements.lock -r docker/serving.lock -r docker/train.lock -r docker/train-gpu.lock -r docker/beam.lock -r docker/sbom.lock

licences: install  ## Print the licences of all locked packages.
	$(VENV)/bin/python -m tests.evidence.licences

lock:  ## Update the locks, which contain hashes and name no package index; needs uv.
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

image: image-train image-serving  ## Build the image for all steps, and the small image that serves exports.

images: image-steps image-train image-serving  ## Build these, and the image for steps without JAX; BASE=IMAGE builds on another base.

image-%:  ## Build one image: steps, train, train-gpu, beam or serving.
	$(ENGINE) build $(if $(filter buildah,$(ENGINE)),--layers) $(BUILD_FLAGS) $(if $(BASE),--build-arg BASE=$(BASE)) $(LABELS) \
	  --file docker/$(if $(filter serving,$*),serving.)Dockerfile --target $* --tag $(TAG) .

push:  ## Push IMAGE=REGISTRY/NAME:TAG, and print its name by digest for TPU_PIPELINES_IMAGE.
	@sh docker/push.sh $(ENGINE) $(IMAGE)

sbom: sbom-steps sbom-train sbom-serving  ## Write packages and licences of the images as CycloneDX to build/sbom/.

sbom-%:
	mkdir -p build/sbom
	$(ENGINE) run --rm --network none --entrypoint sh $(TAG) -c 'cat /opt/*/sbom.cdx.json' >build/sbom/$*.cdx.json

wheel: install  ## Build build/wheel/, for `pip install 'tpu_pipelines-….whl[local]'`.
	rm -rf build/wheel
	$(PYTHON) -m pip --python $(VENV)/bin/python wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .

# A separate environment that pip resolves without the lock, like a new user's.
wheel-test: wheel  ## Test the wheel in an empty environment: its thin base, then a whole run; needs a package index.
	rm -rf build/wheel-test && mkdir -p build/wheel-test && cp tests/support/digit.png build/wheel-test
	$(PYTHON) -m venv --without-pip build/wheel-test/env
	$(PYTHON) -m pip --python build/wheel-test/env/bin/python install --quiet build/wheel/*.whl
	cd build/wheel-test && env/bin/tpu-pipelines machines >/dev/null && env/bin/tpu-pipelines schema >/dev/null
	$(PYTHON) -m pip --python build/wheel-test/env/bin/python install --quiet "$$(echo build/wheel/*.whl)[local]"
	cd build/wheel-test && env/bin/tpu-pipelines run digits && env/bin/tpu-pipelines predict digits@champion digit.png

images-test: install  ## Build all images, run digits in containers, compare, serve and kill; BASE=IMAGE builds on another base.
	$(VENV)/bin/python -m tests.evidence.images --base "$(BASE)"
