.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

help: ## what can be done here
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready ## make .venv with the command gpu-extender in it

$(VENV)/.ready: pyproject.toml ext_core/_build.py $(wildcard ext_core/*.pyx ext_core/*.pxd)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

.PHONY: help setup
