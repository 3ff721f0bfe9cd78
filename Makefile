# Two commands matter: make serve, make test.  Each creates .venv first; uv is used when it is there.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
SITE_URL ?= http://127.0.0.1:8000/

.PHONY: serve build offline test check bench clean

serve: $(STAMP)
	$(PY) -m calculators serve

build: $(STAMP)
	$(PY) -m calculators build --site-url "$(SITE_URL)"

# the whole book in one archive; its calculators run from file://
offline: build
	$(PY) -m calculators offline

test: $(STAMP)
	$(PY) tests/browser/find_chromium.py
	$(PY) -m pytest

check: $(STAMP)
	$(PY) -m ruff format --check calculators tests
	$(PY) -m ruff check calculators tests
	$(PY) -m mypy
	@if command -v uv >/dev/null 2>&1; then uv pip check --quiet --python $(PY); else $(PY) -m pip check; fi
	$(PY) -m calculators figures

bench: $(STAMP)
	$(PY) tests/bench/bench.py

$(STAMP): pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing $(VENV) && uv pip install --quiet --python $(PY) -e '.[test,check]'; \
	else \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "需要 Python 3.11 或更新：make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }; \
	  { $(PYTHON) -m venv $(VENV) || { echo "建不了虚拟环境。Debian / Ubuntu：apt-get install python3-venv"; exit 1; }; } && \
	  $(PY) -m pip install --quiet --disable-pip-version-check -e '.[test,check]'; \
	fi
	@touch $(STAMP)

clean:
	rm -rf $(VENV) site build docs/assets/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
