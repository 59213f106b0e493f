# One command each; everything runs on .venv, into which each command installs what it needs.
PYTHON ?= python3
BIN := .venv/bin

# Images of containers often set it. Without bytecode each process compiles what it imports: of TensorFlow and Keras for 8 seconds.
unexport PYTHONDONTWRITEBYTECODE

# The framework that `make demo` trains with.
BACKEND ?= tensorflow
# The frameworks that the tests have; without one of them, its tests are skipped and say so: `make test BACKENDS=tensorflow`.
BACKENDS ?= tensorflow jax torch

# -qq: what pip warns of concerns the machine's settings, and none of it this project. --no-compile: Python compiles what is imported, pip all files.
PIP := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt
space := $(subst ,, )
comma := ,
# The environment of the tests and tools, by its frameworks.
READY := .venv/ready-$(subst $(space),-,$(strip $(BACKENDS)))

# Tests that stand in one file share what they have set up, so they stay in one process; some of these wait.
JOBS ?= 3
# Where tests of the slower tiers stand: looking for them in all folders takes each process ten seconds.
# Those that wait for services come first, so that they do not wait alone at the end.
SLOW = tests/conformance tests/contract tests/packages tests/parity tests/e2e tests/faults
# Units that take frameworks, workers, services or seconds.
SLOW_UNITS = keras syrtos_keras2 syrtos_jobs testing sagemaker syrtos_clusters/kubernetes launch/remote launch/processes launch/worker comm/test_mpi.py cli/test_doctor.py report/test_read.py report/test_noise_scale.py test_docs.py
# Each tier leaves the duration of its tests in build/, which `.ci/run` sums up.
PYTEST = $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --junitxml build/$@.xml

.PHONY: demo docs environment quick test test-all test-slow test-timing test-long test-versions conformance sdks check parity chaos upstream packages compare bench bench-wire bench-memory bench-simulate examples dist hashes clean

# One worker first: the summary of two then says how fast they are against one.
demo: export KERAS_BACKEND = $(BACKEND)
# On processors: a machine with one GPU has none for the second worker.
demo: export CUDA_VISIBLE_DEVICES =
demo: export HIP_VISIBLE_DEVICES =
demo: .venv/demo-$(BACKEND)
	$(BIN)/syrtos run -n 1 examples/digits.py
	$(BIN)/syrtos run -n 2 --oversubscribe examples/digits.py

environment: $(READY)

# Three tiers; tests/README.md says what each of them promises.
test: $(READY)
	$(PYTEST) -m "not slow and not long and not timing" $(if $(ROOM),tests/unit/$(ROOM)) $(OF_$(PACKAGE))

# The tests of each package beside the core; their units alone, and of `core` all others: `make test PACKAGE=jobs`.
OF_jobs = tests/unit/syrtos_jobs tests/conformance $(wildcard tests/faults/test_jobs*.py tests/faults/test_tunings.py tests/faults/test_service*.py) $(addprefix tests/e2e/test_,submit.py scraped_jobs.py search_page.py tune_search.py ray_jobs.py page.py)
OF_clusters = tests/unit/syrtos_clusters $(addprefix tests/e2e/test_,pods.py ray.py ray_jobs.py)
OF_estimator = tests/parity/test_dialects.py tests/unit/test_dialects.py tests/e2e/test_dialect_scripts.py -k estimator
OF_keras2 = tests/unit/syrtos_keras2 tests/parity/test_parity_keras_2.py
OF_tune = tests/unit/syrtos_tune tests/e2e/test_tune_trials.py
OF_migrate = tests/unit/syrtos_migrate tests/e2e/test_doctor_fix.py
OF_core = $(addprefix tests/,conformance contract e2e faults packages parity unit) $(foreach package,jobs clusters tune migrate,$(patsubst %,--ignore %,$(OF_$(package))))

# A minute, before a commit: lint, contracts and the units that need neither a framework nor a world. `make test ROOM=launch` has all units of a room.
quick: $(READY)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/lint-imports
	$(BIN)/python .ci/house.py src .ci/house.toml
	$(PYTEST) -m "not slow and not long and not timing" tests/unit $(SLOW_UNITS:%=--ignore tests/unit/%)

# Many of these wait for others.
test-slow test-long: JOBS = 4
# Then, with nothing beside them, those that judge times.
test-slow: sdks
	$(PYTEST) -m "slow and not long and not timing" $(SLOW)
	$(MAKE) test-timing

test-timing: override JOBS = 0
test-timing: $(READY)
	$(PYTEST) -m "timing and not long" $(SLOW)

test-long: sdks
	$(PYTEST) -m long $(SLOW)

test-all: test test-slow test-long

# AWS's own SDKs and toolkit, each in an environment of its own; and the tests that use them, which skip themselves without.
sdks: $(READY)
	$(BIN)/python tests/conformance/environments.py

conformance: sdks
	$(BIN)/pytest tests/conformance

check: $(READY)
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python .ci/house.py src .ci/house.toml

# The documentation as a site, in build/site. A link that leads nowhere is an error.
docs: .venv/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The wheel and the sdist, in dist/. A file that the wheel lacks, or a tag of the commit that is not its version, is an error.
dist: .venv/dist-ready
	$(BIN)/python .ci/dist.py

# The versions of constraints.txt with the hashes of their files, for TensorFlow and JAX on all platforms. torch has other files for each accelerator.
HASHED = tensorflow legacy jax remote parquet jobs kubernetes notebook
hashes: .venv/dist-ready
	$(BIN)/uv pip compile -q pyproject.toml $(HASHED:%=--extra %) -c constraints.txt --universal --generate-hashes --no-emit-index-url --no-header --no-annotate -o constraints-hashed.txt

parity: $(READY)
	$(BIN)/python tests/parity/table.py --write docs/parity.md

# The tests of Keras (of the installed package, or of a checkout: KERAS_SRC=) and of Horovod (HOROVOD_SRC=) on two workers.
upstream: $(READY) .venv-upstream/ready
	$(BIN)/python tests/upstream/run.py keras $(KERAS_SRC)
	$(if $(HOROVOD_SRC),$(BIN)/python tests/upstream/run.py horovod $(HOROVOD_SRC),@echo "Horovod's tests need HOROVOD_SRC=, a checkout of it.")
	$(if $(HOROVOD_SRC),$(BIN)/python tests/upstream/run.py horovod-keras2 $(HOROVOD_SRC))

# Trainings of packages that extend Keras, in one process and on two workers; the table goes into docs/upstream.md.
packages: $(READY) .venv-packages/ready
	$(BIN)/python tests/packages/compare_packages.py --write

# The same three scripts by syrtos and by others, on two workers, ten minutes; the tables go into docs/compare.md.
COMPARED = benchmarks/results/compare-$(shell date +%F).jsonl
compare: $(READY) .venv-compare/ready
	rm -f $(COMPARED)
	$(BIN)/python benchmarks/compare/compare.py --lines $(COMPARED)
	$(BIN)/python benchmarks/compare/compare.py --write $(COMPARED)

# The suite with the oldest Keras and TensorFlow that pyproject.toml admits, and with the newest.
test-versions: $(READY)
	$(BIN)/python tests/versions.py

# Faults of ten kinds at random steps of runs that are started again, and what each costs.
chaos: $(READY)
	$(BIN)/python tests/chaos/run.py --faults 20

# All examples on two workers, a line for each.
examples: $(READY)
	$(BIN)/python examples/run_all.py

# Each way to exchange over slow links between two hosts, half an hour (needs root, iproute2 and sshd).
bench-wire: $(READY)
	$(BIN)/python benchmarks/wire.py

# Forecasts for two hosts against what they take, and for up to 1024 workers, ten minutes (needs root, iproute2 and sshd).
bench-simulate: $(READY)
	$(BIN)/python benchmarks/simulate.py

# The memory of a worker with and without --shard-update, five minutes.
bench-memory: $(READY)
	$(BIN)/python benchmarks/memory.py

bench: $(READY) .venv/bench-ready
	$(BIN)/python benchmarks/run.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo-%: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing syrtos with $* and scikit-learn into .venv: a minute where pip has the packages already, else some minutes of downloads."
	@$(PIP) -e '.[$*,examples]'
	@touch $@

.venv/ready-%: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing $(BACKENDS), what the tests need and the tools into .venv: some minutes."
	@$(PIP) -e '.[$(subst $(space),$(comma),$(strip $(BACKENDS))),$(if $(filter tensorflow,$(BACKENDS)),legacy$(comma))examples,remote,parquet,jobs,kubernetes,ray,postgres,dist,dev]'
	@touch $@ $(BACKENDS:%=.venv/demo-%) .venv/dist-ready

.venv/docs-ready: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing syrtos and what makes the documentation into .venv."
	@$(PIP) -e '.[docs]'
	@touch $@

.venv/dist-ready: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing what builds and checks packages into .venv."
	@$(PIP) -e '.[dist]'
	@touch $@

# The peers of the benchmark. torch is pinned to a version that comes without CUDA where there is none.
.venv/bench-ready: $(READY)
	$(PIP) -e '.[bench]'
	touch $@

# What those trainings import, beside our environment and not in it.
.venv-packages/ready: tests/packages/requirements.txt | .venv/bin/python
	rm -rf .venv-packages
	$(PIP) --no-deps --no-compile --target .venv-packages -r tests/packages/requirements.txt
	touch $@

# The peers of the comparison, with the Keras that is released next.
.venv-compare/ready: benchmarks/compare/requirements.txt
	rm -rf .venv-compare
	$(PYTHON) -m venv .venv-compare
	.venv-compare/bin/pip install -q --pre -r benchmarks/compare/requirements.txt
	touch $@

# What those tests import, beside our environment and not in it.
.venv-upstream/ready: $(READY)
	$(PIP) --no-deps --upgrade --target .venv-upstream jax jaxlib opt_einsum parameterized==0.9.0 mock==5.2.0
	touch $@

clean:
	rm -rf .venv .venv-compare .venv-packages .venv-sagemaker .venv-upstream .venv-versions build dist runs
