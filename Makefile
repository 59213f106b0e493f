# One command each; everything runs on .venv, which the first of them builds.
PYTHON ?= python3
BIN := .venv/bin

# Tests that stand in one file share what they have set up, so they stay in one process; two of those fill two cores.
JOBS ?= 2
PYTEST = $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 10

.PHONY: demo test test-all test-slow test-long test-versions conformance sdks check parity chaos upstream bench bench-wire bench-memory bench-simulate examples clean

demo: .venv/ready
	$(BIN)/syrtos run -n 2 examples/digits.py

# Three tiers. `make test`, some minutes: all units, every engine in real worlds, and of each kind of longer test a part. `make test-slow`: every
# parity case on two workers, some on three and over servers, with Keras 2 too, all dialects, faults, the page in a browser, other starters; and
# AWS's own SDKs. `make test-long`: more cases and sizes of the same. `make test-all`: the three of them.
test: .venv/ready
	$(PYTEST) -m "not slow and not long"

# Many of these wait for others.
test-slow test-long: JOBS = 4
# Then, with nothing beside them, those that judge times.
test-slow: sdks
	$(PYTEST) -m "slow and not long and not timing"
	$(PYTEST) -n 0 -m "slow and not long and timing"

test-long: sdks
	$(PYTEST) -m long

test-all: test test-slow test-long

# AWS's own SDKs and toolkit, each in an environment of its own; and the tests that use them, which skip themselves without.
sdks: .venv/ready
	$(BIN)/python tests/conformance/environments.py

conformance: sdks
	$(BIN)/pytest tests/conformance

check: .venv/ready
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/pyright
	$(BIN)/lint-imports

parity: .venv/ready
	$(BIN)/python tests/parity/table.py --write docs/parity.md

# The tests of Keras (of the installed package, or of a checkout: KERAS_SRC=) and of Horovod (HOROVOD_SRC=) on two workers.
upstream: .venv/ready .venv-upstream/ready
	$(BIN)/python tests/upstream/run.py keras $(KERAS_SRC)
	$(if $(HOROVOD_SRC),$(BIN)/python tests/upstream/run.py horovod $(HOROVOD_SRC),@echo "Horovod's tests need HOROVOD_SRC=, a checkout of it.")
	$(if $(HOROVOD_SRC),$(BIN)/python tests/upstream/run.py horovod-keras2 $(HOROVOD_SRC))

# Faults of seven kinds at random steps of runs that are started again, and what each costs.
chaos: .venv/ready
	$(BIN)/python tests/chaos/run.py --faults 14

# All examples on two workers, a line for each.
examples: .venv/ready
	$(BIN)/python examples/run_all.py

# Each way to exchange over slow links between two hosts, half an hour (needs root, iproute2 and sshd).
bench-wire: .venv/ready
	$(BIN)/python benchmarks/wire.py

# Forecasts for two hosts against what they take, and for up to 1024 workers, ten minutes (needs root, iproute2 and sshd).
bench-simulate: .venv/ready
	$(BIN)/python benchmarks/simulate.py

# The memory of a worker with and without --shard-update, five minutes.
bench-memory: .venv/ready
	$(BIN)/python benchmarks/memory.py

bench: .venv/ready .venv/bench-ready
	$(BIN)/python benchmarks/run.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tensorflow,jax,torch,legacy,examples,remote,parquet,jobs,postgres,dev]'
	touch $@

# The peers of the benchmark. torch is pinned to a version that comes without CUDA where there is none.
.venv/bench-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

# What those tests import, beside our environment and not in it.
.venv-upstream/ready: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .venv-upstream -c constraints.txt jax jaxlib opt_einsum parameterized==0.9.0 mock==5.2.0
	touch $@

clean:
	rm -rf .venv .venv-sagemaker .venv-upstream .venv-versions runs
