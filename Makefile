# Every target works on Linux with Python 3.11+ and make alone; `setup` brings the rest into .venv.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile
	@echo '  ARGS="..." reaches the command: make demo ARGS="--seconds 20", make test ARGS="-k java"'

setup: ## Make .venv hold what requirements.lock says, and compile kernels that changed
	@$(PYTHON) tools/setup.py

demo: setup ## Run the whole warehouse on this machine and check every row
	@$(BIN)/tidemill demo $(ARGS)

test: setup ## Run the tests
	@$(BIN)/python -m pytest --numprocesses=auto --dist=loadfile $(ARGS)

check: setup ## Lint, format, types and import rules: what CI runs before the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format the code and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## Resolve the dependencies of pyproject.toml anew (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv. Next: $(PYTHON) -m pip install uv" >&2; exit 1; }
	uv pip compile pyproject.toml --extra all --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header -o requirements.lock

clean: ## Remove caches and build results; .venv and demo data stay
	rm -rf build dist spark-warehouse .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
