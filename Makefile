# Thin names over real commands; `make help` lists them. Needs Python 3.11+, a C compiler and cargo.

PYTHON  ?= python3
ENGINE  ?= sim
VENV    := .venv
BIN     := $(VENV)/bin
NATIVE  := setup.py pyproject.toml native/Cargo.toml native/Cargo.lock \
           $(wildcard native/*.pyx native/*.pxi native/*.pxd native/src/*.rs native/src/*/*.rs)
FUZZ_SECONDS ?= 300

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help venv build demo test lint cargo-test pytest e2e e2e-long bench fuzz docs lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The stamp is inside the environment: removing the environment is enough to start anew.
$(VENV)/.packages: requirements-test.lock
	@$(PYTHON) .ci/tools.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -r requirements-test.lock
	@touch $@

$(VENV)/.built: $(VENV)/.packages $(NATIVE)
	@echo "building kvgate, Rust in release mode: some minutes the first time"
	@$(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .
	@touch $@

venv: $(VENV)/.built  ## .venv with this checkout installed, native parts built (release)

build: venv  ## the same: builds again what changed

demo: venv  ## two engines, the gateway, a few questions; ENGINE=sim|vllm, KEEP=1 leaves it running
ifeq ($(ENGINE),vllm)
	@tests/e2e/env.sh all > /dev/null
endif
	@$(BIN)/kvgate demo --engine $(ENGINE) $(if $(KEEP),--keep)

test: lint cargo-test pytest  ## lint, types, Rust and Python tests

lint: venv  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

cargo-test:
	cargo test -q --locked --manifest-path native/Cargo.toml --no-default-features

pytest: venv
	$(BIN)/python -m pytest

e2e: venv  ## stock vLLM on the CPU behind the gateway; E2E=skip skips, E2E_ENGINE=sim is quicker
ifeq ($(E2E),skip)
	@echo "e2e: skipped, because E2E=skip"
else
	$(if $(filter sim,$(E2E_ENGINE)),,@tests/e2e/env.sh all > /dev/null)
	$(if $(wildcard /usr/bin/chromium),@$(BIN)/python -m pip install -q -r tests/e2e/browser-requirements.txt)
	$(BIN)/python -m pytest tests/e2e --ignore=tests/e2e/disagg
	$(BIN)/python -m pytest tests/e2e/disagg -m "not long"
endif

e2e-long: venv  ## prefill and decode engines killed, stopped, left and too late; push; roles: half an hour
	@tests/e2e/env.sh all > /dev/null
	$(BIN)/python -m pytest tests/e2e/disagg -m long

bench: venv  ## the proxies against each other; one JSON line per bench
	$(BIN)/python tests/bench/relay.py --json -

fuzz: venv  ## parsers and protocol with bad input, FUZZ_SECONDS=300 each
	$(BIN)/python tests/fuzz/config.py --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/fuzz/request_side.py --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/fuzz/reply_side.py --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/fuzz/kvbm_frames.py --seconds $(FUZZ_SECONDS)

docs: venv  ## write the generated pages anew
	$(BIN)/python -m gateway.conf.reference > docs/directives.md
	$(BIN)/python -m gateway.conf.reference --example > examples/full.conf
	$(BIN)/python -m gateway.cli.reference errors > docs/errors.md
	$(BIN)/python -m gateway.cli.reference metrics > docs/metrics.md
	$(BIN)/python -m kvbm.reference directives > docs/kvbm-directives.md
	$(BIN)/python -m kvbm.reference metrics > docs/kvbm-metrics.md

lock: ## resolve requirements-test.lock anew from pyproject.toml
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python .ci/tools.py requirements > build/lock/requirements.txt
	build/lock/bin/python -m pip install -q -r build/lock/requirements.txt
	{ sed -n '/^#/p' requirements-test.lock; \
	  build/lock/bin/python -m pip freeze --all | grep -v '^pip=='; } > build/lock/new
	mv build/lock/new requirements-test.lock

clean:  ## remove everything that was built; caches outside the checkout stay
	rm -rf $(VENV) build dist *.egg-info native/target native/*.so native/relay.c
