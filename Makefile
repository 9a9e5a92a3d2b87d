.DEFAULT_GOAL := help
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
STUBS := $(patsubst ext_core/%.pyi,ext_core.%,$(wildcard ext_core/*.pyi))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NAMED = $(BIN)/python .ci/locked.py $(if $(NEWEST),--ranges)
LOCKED = $(if $(NEWEST),--upgrade,--require-hashes --only-binary :all:)
KERNELS := ext_core/_build.py $(wildcard ext_core/*.pyx ext_core/*.pxd)
SECONDS ?= 60
FUZZED = $(if $(and $(CASES),$(filter file,$(origin SECONDS))),$(MOST_FUZZED),$(SECONDS))
MOST_FUZZED = 172800 # seconds: CASES end a run before
ROUNDS ?= 800
GANGS ?= 500
ASKED ?= 450
PODS ?= 1000
PACE ?= 4 # seconds after each scene of the demo
KILLS ?= 38
# Some images of Python turn bytecode off. Each start of the server, and each worker of pytest, would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
TIMES ?= 3
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) # of the unit tests: a quarter of their time is waiting
ALL_WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 4) # of all tests in one run: on a control plane most of the time is waiting
KILLED = GPU_EXTENDER_ENFORCED=1000 GPU_EXTENDER_SOAK=$(ROUNDS) GPU_EXTENDER_SAVING_CHAOS=$(ASKED) GPU_EXTENDER_QUEUE_SOAK=$(GANGS) GPU_EXTENDER_METAMORPHIC_CASES=100 GPU_EXTENDER_MODEL_EPISODES=2000 GPU_EXTENDER_PREEMPT_BLOCKS=40 $(BIN)/python -m pytest -q -s -o faulthandler_timeout=0 tests/e2e/test_soak.py tests/e2e/test_enforced.py tests/e2e/test_mapa.py tests/e2e/test_queue_soak.py tests/e2e/test_saving_chaos.py tests/metamorphic tests/model tests/decide/test_preempt.py
DRAWN = GPU_EXTENDER_CASES=5 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -o faulthandler_timeout=0 tests/act/queue tests/ask tests/cluster tests/preemption tests/queue
# After pytest. 5 is its status when ARGS names no test of this kind. In CI the tests that failed run again, alone, and the
# output names them: where the machine stood still for seconds they pass then; where the code is wrong they fail again.
OR = $(if $(ARGS),|| [ $$? -eq 5 ],|| { [ $$? -eq 1 ] && [ -n "$$CI" ] && echo "run again, alone:" && $(BIN)/python -m pytest -v --last-failed --last-failed-no-failures none --tb=short $(1); })
UNIT = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not e2e' $(ARGS) $(call OR,-m 'not e2e')

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.tools $(VENV)/.built ## make .venv with the command gpu-extender and all tools, in the locked versions (PYTHON=... chooses the interpreter)

demo: $(VENV)/.built ## a simulated cluster and a day on it, then serve it until Ctrl-C (PACE=4: seconds after each scene; ONCE=1: end after the day, without pauses)
	@$(BIN)/gpu-extender demo $(if $(ONCE),--once,--pace $(PACE))

test: setup ## everything: lint, types, all tests, the core on a checked build, a real control plane (needs Go)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint types $(if $(ARGS),,collected checked) # mypy keeps one processor busy
	@$(BIN)/python -m tests.e2e.build > /dev/null || true # the workers of pytest show no progress
	@$(BIN)/python -c 'from tests.e2e.gang_controllers import build; build()' 2> /dev/null || true # beside six workers it took over ten minutes
	@$(BIN)/python -c 'from tests.e2e import commits; commits.tree(commits.RELEASES["0.2.0"])' > /dev/null 2>&1 || true # what cannot be built its tests report
	@$(BIN)/python -m pytest -n $(ALL_WORKERS) --dist worksteal --tb=short $(ARGS) $(OR)

check: lint types ## as test, without the real control plane and the checked build
	@$(UNIT)

loaded: setup ## check, and 20 tests on the real control plane (tests/e2e/loaded.txt), beside two busy processes a core (TIMES=3)
	@.ci/loaded $(TIMES)

lint: setup ## ruff, the layers, the measures, and the Cython files
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint ext_core # it calls pycodestyle by name
	@$(BIN)/python -m tests.measures --check
	@$(BIN)/lint-imports --no-logo > $(VENV)/.layers 2>&1 || { cat $(VENV)/.layers; exit 1; }

measures: setup ## the sums of the code: lines, files, packages, imports, names; and the largest function and kernel (BEFORE=revision: compared with it)
	@$(BIN)/python -m tests.measures $(if $(BEFORE),--before $(BEFORE))

types: setup ## mypy, strict; and the stubs of the core against its compiled modules
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/stubtest --mypy-config-file pyproject.toml --allowlist .ci/stubtest --concise $(STUBS) > $(VENV)/.stubs 2>&1 || { cat $(VENV)/.stubs; exit 1; }

collected: setup # pytest writes the bytecode of all tests: the workers, which begin at the same time, would each compile them
	@$(BIN)/python -m pytest --collect-only -qq > /dev/null || true # the unit tests state what cannot be imported

checked: setup ## the core tests on a build with bounds checks, overflow checks and the address sanitizer
	@.ci/checked -q -n $(WORKERS) --dist worksteal

soak: setup ## more than 500 preemptions, the server killed at random points, and 1,000 pods whose plan must hold, and GANGS gangs of the queue, and ASKED preemptors whose victims save first, and more random cases, an hour (ROUNDS=800 pods, GANGS=500, ASKED=450); HOURS=8: one server for so long, its last hour against its second (REAL=1: played in one hour)
	@$(if $(HOURS),$(BIN)/python -m tests.steady --hours $(HOURS) $(if $(REAL),--real $(REAL)) $(if $(SEED),--seed $(SEED)),$(KILLED) && $(DRAWN))

fuzz: setup ## hostile bodies, watched objects, settings and cluster files (SECONDS=60, or with CASES=1000000 until so many; SEED= REPLAY=FILE)
	@$(BIN)/python -m tests.fuzz $(if $(REPLAY),--replay $(REPLAY),--seconds $(FUZZED)) $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))

attack: setup ## a hostile tenant on a real control plane: against the queue, scene by scene, then among four with kills; 40 minutes at most (QUEUE=1: the first part alone; PODS=1000 KILLS=38 SEED=1)
	@GPU_EXTENDER_ATTACK=$(PODS) GPU_EXTENDER_ATTACK_KILLS=$(KILLS) GPU_EXTENDER_ATTACK_SEED=$(SEED) $(BIN)/python -m pytest -q -s -o faulthandler_timeout=0 tests/e2e/test_queue_attack.py $(if $(QUEUE),,tests/e2e/test_attack.py)

compat: setup ## the core scenarios on Kubernetes 1.34 to 1.37, and from 0.2.0 to this version and back, as a table (RELEASES= SCENARIOS= TABLE=1)
	@$(BIN)/python -m tests.e2e.compat --releases '$(RELEASES)' --scenarios '$(SCENARIOS)' $(if $(TABLE),--table)

loadtest: setup ## locust beside a null server: verbs by 100 to 15,000 names, and under watch events; a report in build/ (SECONDS=60; REAL=1: also at the rate of a real API server, needs Go)
	@$(BIN)/python -m loadtest --seconds $(SECONDS) $(if $(REAL),--rate-seconds 8)

cluster: setup ## a real control plane with simulated GPU nodes to try with kubectl, until Ctrl-C (needs Go)
	@$(BIN)/python -m tests.e2e.playground

bench: setup ## the targets of live speed with their losses, half an hour (ARGS="nvlink relay": these measurements; ARGS=all: two hours)
	@$(BIN)/python -m benchmarks $(ARGS)

lock: ## write requirements.lock anew: the newest versions that pyproject.toml allows, with hashes
	@.ci/lock $(PYTHON)

newest: ## as check, with the newest versions that pyproject.toml allows instead of the locked ones, in a copy of this tree
	@ARGS='$(ARGS)' .ci/newest $(PYTHON)

dist: ## a wheel for each Python from 3.11 on PATH, and the source archive, in dist/ (PYTHON=... chooses one)
	@.ci/dist $(PYTHON)

clean: ## remove what was made here (the control plane's binaries stay in the user's cache)
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@rm -f ext_core/*.so ext_core/*.c
	@find extender ext_core tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The command and what it imports: made anew only when the dependencies change. setuptools compiles the core.
$(VENV)/.ready: pyproject.toml requirements.lock
	@python=$$(.ci/python "$(PYTHON)") && { test -x $(BIN)/python || $$python -m venv $(VENV); }
	@echo "setup: installing what $(if $(NEWEST),pyproject.toml allows,requirements.lock has), and compiling the core (some minutes)"
	@$(NAMED) build project > $(VENV)/.requirements
	@$(PIP) $(LOCKED) --requirement $(VENV)/.requirements
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

# What tests, linters and benchmarks import besides.
$(VENV)/.tools: $(VENV)/.ready | $(VENV)/.built
	@echo "setup: installing the tools of development (0.8 GB, some minutes)"
	@$(NAMED) dev node > $(VENV)/.requirements
	@$(PIP) $(LOCKED) --requirement $(VENV)/.requirements
	@touch $@

# The core: setuptools compiles again what is older than its source.
$(VENV)/.built: $(VENV)/.ready $(KERNELS)
	@$(BIN)/python -W ignore -c 'from setuptools import setup; setup()' --quiet build_ext --inplace
	@touch $@

.PHONY: help setup demo cluster test check loaded lint measures types collected checked soak fuzz attack compat loadtest bench lock newest dist clean
