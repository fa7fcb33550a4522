# Every target sets up what it needs. Variables: PYTHON (3.11 or newer), UV_TORCH_BACKEND=cpu for the small torch.
# The first one that runs: a name may exist (pyenv's shims) without a Python behind it.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test check format bench kafka demo-model demo-model-eval clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

setup: $(READY) ## Make .venv with everything in it

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || \
		{ echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.x"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[all]' --group dev
	@touch $@

demo: setup ## Start the fleet in one process and ask it about pictures
	$(BIN)/tokenfleet demo

test: setup ## Run all tests (starts a broker of its own where it can)
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: setup ## Lint, format, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_imports.py

format: setup ## Rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Measure what a hop and a request cost
	$(BIN)/python bench/hops.py

kafka: setup ## Run a one-node Kafka broker on 127.0.0.1:9092 without Docker (Java 17, Maven)
	$(BIN)/python -m runtime.kafka_local

demo-model: setup ## Train models/shapes-vl anew (under an hour on two free cores)
	$(BIN)/python tools/train_shapes_vl.py --out models/shapes-vl --threads 2

demo-model-eval: setup ## Ask the demo model 500 fresh questions of each kind
	$(BIN)/python tools/eval_shapes_vl.py

clean: ## Remove what setup made
	rm -rf $(VENV) build dist *.egg-info
