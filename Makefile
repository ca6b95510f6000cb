# Everything works from a fresh clone: each target sets up what it needs in .venv.
PYTHON := .venv/bin/python
READY := .venv/.ready
TESTABLE := .venv/.testable
MODELS := examples/models/.complete
SHARD ?= 1/1

.PHONY: help setup demo test prove lint bench clean
help:
	@echo "make setup   a virtual environment with repogen and what its examples and tests need"
	@echo "make demo    five real models: fetch, sync, serve, verify, real answers, load test"
	@echo "make test    the tests, under 8 minutes on 2 cores"
	@echo "make prove   every test; SHARD=1/4 runs a quarter, a second run continues where one stopped"
	@echo "make lint    ruff and mypy"

setup: $(READY)
$(READY): pyproject.toml scripts/setup
	scripts/setup .venv
	@touch $@

$(TESTABLE): $(READY)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -e ".[dev,tensorrt,s3]"
	@if [ "$$CI" = true ] && [ "$$(id -u)" = 0 ] && ! (command -v strace && command -v promtool) >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq strace prometheus prometheus-alertmanager prometheus-node-exporter \
	    >/dev/null || true; fi  # the tests of crashes, rules and alerts skip without them
	@touch $@

$(MODELS): $(READY) examples/fetch_models.py
	$(PYTHON) examples/fetch_models.py
	@touch $@

demo: $(MODELS)
	scripts/demo

test: $(MODELS) $(TESTABLE)
	$(PYTHON) -m pytest -m "not slow" -n 4 --dist loadfile

prove: $(MODELS) $(TESTABLE)
	$(PYTHON) -m pytest --shard $(SHARD) --resume .cache/prove

lint: $(TESTABLE)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy repogen

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis examples/models examples/out
