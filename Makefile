# One command each; everything runs on .venv, which the first of them builds.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test conformance check parity bench examples clean

demo: .venv/ready
	$(BIN)/syrtos run -n 2 examples/digits.py

test: .venv/ready
	$(BIN)/pytest --ignore=tests/conformance

# Amazon's own SDKs and toolkit, each in an environment of its own.
conformance: .venv/ready
	$(BIN)/python tests/conformance/environments.py
	$(BIN)/pytest tests/conformance

check: .venv/ready
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/pyright
	$(BIN)/lint-imports

parity: .venv/ready
	$(BIN)/python tests/parity/table.py --write docs/parity.md

bench: .venv/ready .venv/bench-ready
	$(BIN)/python benchmarks/run.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tensorflow,legacy,examples,remote,parquet,jobs,postgres,dev]'
	touch $@

# The peers of the benchmark. torch is pinned to a version that comes without CUDA where there is none.
.venv/bench-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

clean:
	rm -rf .venv .venv-sagemaker runs
