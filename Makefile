# Everything is set up in a venv by the first command that needs it; later runs only check time stamps.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

NATIVE := $(shell find csrc kernels -name '*.cc' -o -name '*.h' -o -name '*.in') CMakeLists.txt
PROJECT := setup.py pyproject.toml constraints.txt python/ovsw/_version.py
CXX_FILES := $(filter %.cc %.h,$(NATIVE)) $(wildcard include/*.h* tests/cpp/*.[ch]* examples/*/*.c* tools/arm64/*.c)
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

# Tests use all cores, up to four, and say what was skipped and why.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal -rs

.PHONY: help run test test-all test-arm64 count-arm64 faults lint format bench wheel clean

help:
	@echo "make run     set up and run the demo: a trained network on pictures, then large ones of random weights"
	@echo "make test    set up and run linters and tests"
	@echo "make test-all     the same with those tests that take long"
	@echo "make test-arm64   the engine's tests on emulated ARM CPUs (Debian 12)"
	@echo "make count-arm64  instructions of one inference there, beside ncnn"
	@echo "make faults  killed, out of disk, memory, files or threads: nothing lost, nothing half written"
	@echo "make lint    ruff, mypy, clang-format"
	@echo "make format  reformat the code"
	@echo "make bench   the deployment table: size and latency beside the other engines"
	@echo "make wheel   build a wheel and an sdist into dist/"
	@echo "make clean   remove the venv and everything built"

run: $(VENV)/.run
	@$(BIN)/ovsw-demo

# Nothing is installed on your machine; in CI no test is skipped for want of a browser.
test test-all: $(VENV)/.dev lint
	@$(if $(CI),tools/browser/setup)
	@$(PYTEST) $(if $(filter test,$@),-m "not slow")

test-arm64: $(VENV)/.dev
	@PYTHON=$(BIN)/python tools/arm64/setup
	@$(BIN)/python tools/arm64/disasm.py
	@$(BIN)/python tools/arm64/test.py
	@OVSW_ARM64=1 $(BIN)/python -m pytest tests/cpp/test_library.py

count-arm64: $(VENV)/.dev
	@PYTHON=$(BIN)/python tools/arm64/setup --peers
	@$(BIN)/python tools/arm64/count.py --json build/arm64/counts.json

faults: $(VENV)/.dev
	@cd tests && $(abspath $(BIN))/python -m campaigns.faults

# mypy sees the package as it is installed: export/ and bench/ inside ovsw/.
lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	@rm -rf build/types && mkdir -p build/types/ovsw
	@ln -s $(CURDIR)/python/ovsw/* $(CURDIR)/export $(CURDIR)/bench build/types/ovsw
	@MYPYPATH=build/types $(BIN)/mypy -p ovsw

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CXX_FILES)

bench: $(VENV)/.dev
	@$(BIN)/ovsw-bench

wheel: $(VENV)/.dev
	@$(BIN)/python -m build --outdir dist

# The development set-up includes the plain one.
$(VENV)/.run: $(NATIVE) $(PROJECT)
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: $(NATIVE) $(PROJECT)
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	OVSW_TESTING=1 OVSW_WERROR=$(if $(CI),1,0) $(INSTALL) -e '.[export,train,bench,dev]'
	@touch $(VENV)/.run $@

clean:
	rm -rf $(VENV) build dist python/ovsw.egg-info python/ovsw/_core*.so python/ovsw/_testing*.so
