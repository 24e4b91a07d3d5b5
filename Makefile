# make demo: from a fresh clone to a finished comparison.  make test: from a fresh clone to a green suite.
PYTHON ?= python3
FUZZ_S ?= 180
# Tests at a time: most wait for servers and jobs of their own for half of their time.
AT_ONCE ?= 2
RUN = .venv/bin/python
RUN_TORCH = .venv-torch/bin/python
PYTEST = $(RUN) -m pytest
TIMED = -p no:cacheprovider --durations=5
SPREAD = $(TIMED) -n $(AT_ONCE) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: release peers site guides setup-torch demo-torch test-torch help setup demo test test-pythons check unit integration e2e faults slurm conformance fuzz grammar examples bench clean

help:
	@echo "make setup   .venv with TensorFlow, Open MPI and Horovod; no root needed"
	@echo "make setup-torch, demo-torch, test-torch   the same for PyTorch, in .venv-torch"
	@echo "make demo    train with and without data hosts, here, and compare"
	@echo "make test    every test (make check first, then integration and end to end)"
	@echo "make test-pythons   make test with each Python from 3.10 to 3.13 that is here (PYTHONS=3.12 for one)"
	@echo "make check   lint, types, unit tests: about a minute"
	@echo "make faults  kill, hang and cut off real jobs, and watch what becomes of them"
	@echo "make slurm   jobs on a real Slurm of simulated nodes; root, and Debian's slurm-wlm and munge"
	@echo "make conformance  what we make and assume, against SageMaker's toolkit and SDKs; hostile messages; every third example"
	@echo "make fuzz    hostile messages for the transfer, under sanitizers (FUZZ_S=3600 for an hour)"
	@echo "make grammar   500 random tf.data pipelines, shared among workers and ranks, against plain tf.data"
	@echo "make examples  every script of code/examples in both modes; make conformance: every third, with data hosts alone"
	@echo "make site    the documents as pages, in build/site; a link that leads nowhere fails it"
	@echo "make guides  the site, every command and script of the guides, and the walk-through"
	@echo "make bench   how fast, as ratios measured in one run: about an hour (BENCH=transport for one)"
	@echo "make release  build/dist: a checked wheel and source archive, and a job run from them (TAG=1 tags the version)"
	@echo "make clean   remove what these made"

setup:
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "setup: error: $(PYTHON) is not installed; headrace needs Python 3.10 to 3.13" >&2; exit 1; }
	@$(PYTHON) tools/setup.py

setup-torch:
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "setup: error: $(PYTHON) is not installed; headrace needs Python 3.10 to 3.13" >&2; exit 1; }
	@$(PYTHON) tools/setup.py torch

demo-torch: setup-torch
	@$(RUN_TORCH) tools/demo.py pytorch

# What the documents say of PyTorch is run by make guides.
TORCH_GUIDES = tests/torch/test_docs.py tests/torch/test_notebook.py

test-torch: setup-torch
	@$(RUN_TORCH) -m pytest $(SPREAD) $(TORCH_GUIDES:%=--ignore=%) tests/torch

demo: setup
	@$(RUN) tools/demo.py

check: setup
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(PYTEST) $(SPREAD) tests/unit

test: check
	@$(PYTEST) $(SPREAD) tests/e2e tests/grammar tests/integration  # what takes longest begins first

unit integration e2e faults: setup
	@$(PYTEST) $(SPREAD) tests/$@

slurm: setup
	@$(PYTEST) $(TIMED) -rs tests/slurm

test-pythons:
	@$(PYTHON) tools/pythons.py $(PYTHONS)

peers:
	@$(PYTHON) tools/peers.py sdk2 sdk3

conformance: setup
	@$(RUN) tools/peers.py sdk2 sdk3
	@$(PYTEST) $(TIMED) -rs tests/sdk tests/toolkit
	@$(RUN) -m tests.fuzz --first 0 --cases 20000
	@HEADRACE_MODES=$${HEADRACE_MODES:-service} HEADRACE_EVERY=$${HEADRACE_EVERY:-3} $(MAKE) --no-print-directory examples

fuzz: setup
	@$(RUN) -m tests.fuzz --seconds $(FUZZ_S)

grammar: setup
	@HEADRACE_PIPELINES=$${HEADRACE_PIPELINES:-500} $(PYTEST) -p no:cacheprovider -s --timeout=1500 tests/grammar

examples: setup
	@$(PYTEST) $(SPREAD) tests/examples

site: setup
	@$(RUN) tools/make_site.py

guides: site setup-torch
	@$(PYTEST) $(SPREAD) tests/guides tests/notebooks
	@$(RUN_TORCH) -m pytest $(SPREAD) $(TORCH_GUIDES)

bench: setup
	@$(RUN) tools/peers.py ray
	@$(RUN) -m bench $(BENCH)

release: setup
	@$(RUN) tools/release.py $(if $(TAG),--tag)

clean:
	rm -rf .venv .venv-torch .venv-peers .pythons .fuzz build data runs bench/out notebooks/walkthrough notebooks/pytorch .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info code/*.egg-info
