# Everything is set up in a venv by the first command that needs it; later runs only check time stamps.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

NATIVE := $(shell find csrc kernels -name '*.cc' -o -name '*.h' -o -name '*.in') CMakeLists.txt
PROJECT := setup.py pyproject.toml constraints.txt python/ovsw/_version.py
CXX_FILES := $(filter %.cc %.h,$(NATIVE)) \
  $(wildcard include/*.h* tests/cpp/*.[ch]* tests/fuzz/*.cc tests/fuzz/*.h examples/*/*.c* tools/arm64/*.c)
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet

STEP := @tools/step

# Tests use all cores, up to four, and say what was skipped and why. Unbuffered: dots come at once in a pipe, too.
PYTEST := $(BIN)/python -u -m pytest -n logical --maxprocesses 4 --dist worksteal -rs

.PHONY: help run test test-all test-arm64 pi count-arm64 lint format bench docs wheel wheel-arm64 reproducible lock clean
.PHONY: types fuzz soak faults numbers mutants check-sanitizers

help:
	@echo "make run     set up and run the demo: a trained network on pictures, then large ones of random weights"
	@echo "make test    set up and run linters and tests"
	@echo "make test-all     the same, with the long tests"
	@echo "make test-arm64   the engine's tests on emulated ARM CPUs (Debian 12)"
	@echo "make pi      every command of the Raspberry Pi page on an emulated machine (Debian 12, root; half an hour or more)"
	@echo "make count-arm64  instructions of one inference there, compared with ncnn"
	@echo "make lint    ruff, mypy, clang-format; workflows, Dockerfile, CITATION.cff"
	@echo "make format  reformat the code"
	@echo "make bench   the deployment table: size and latency, compared with the other engines"
	@echo "make docs    build the pages of docs/ as a site into build/site"
	@echo "make wheel   build a wheel and an sdist into dist/, with a list of what is in them"
	@echo "make wheel-arm64  a wheel for aarch64 by cross compilation, checked on emulated CPUs (Debian 12)"
	@echo "make reproducible  build both twice and compare the bytes"
	@echo "make lock    the newest versions of what development needs, with checksums"
	@echo "make clean   remove the venv and everything built"
	@echo ""
	@echo "Campaigns, each with its figures at the end (docs/testing.md):"
	@echo "make fuzz    hostile files by libFuzzer and in Python, FUZZ=\"--seconds 300\" each (clang 16; root on Debian 12)"
	@echo "make soak    100,000 inferences on many threads, engines and processes: results, memory, threads and files"
	@echo "make faults  kill -9, full disks, limits on memory, files and threads: no file is lost or incomplete"
	@echo "make numbers 6,200 random graphs against torch, ONNX Runtime and the simulation"
	@echo "make mutants put 300 faults into the code one by one and count those that the tests notice (hours)"
	@echo "make check-sanitizers  C++ and engine tests, built with ASan, UBSan and TSan"

run: $(VENV)/.run
	@$(BIN)/ovsw-demo

# Nothing is installed on your machine; in CI a browser is installed, so that no test is skipped.
test test-all: $(VENV)/.dev lint
	@$(if $(CI),tools/browser/setup)
	@echo "About 4,500 tests: several minutes on two cores$(if $(filter test-all,$@),; with the long ones)"
	@$(PYTEST) $(if $(filter test,$@),-m "not slow")

# As root on Debian 12: it makes a system of its own in build/pi, by debootstrap.
pi: $(VENV)/.dev
	@$(BIN)/python tools/arm64/pi.py

test-arm64: $(VENV)/.dev
	@PYTHON=$(BIN)/python tools/arm64/setup
	@$(BIN)/python tools/arm64/disasm.py
	@$(BIN)/python tools/arm64/test.py
	@OVSW_ARM64=1 $(BIN)/python -m pytest tests/cpp/test_library.py
	@OVSW_ARM64=1 $(BIN)/python -m pytest tests/docs/test_code_blocks.py -k emulated

count-arm64: $(VENV)/.dev
	@PYTHON=$(BIN)/python tools/arm64/setup --peers
	@$(BIN)/python tools/arm64/count.py --json build/arm64/counts.json

soak faults numbers: $(VENV)/.dev
	@cd tests && $(abspath $(BIN))/python -m campaigns.$@

fuzz: $(VENV)/.dev
	@tools/fuzz/setup
	@cd tests && $(abspath $(BIN))/python -m campaigns.fuzz $(or $(FUZZ),--seconds 300)

check-sanitizers: $(VENV)/.dev
	@$(BIN)/python tools/sanitizers.py

# Continues where it was interrupted; choose others with MUTANTS="--count 30 --seed 5 --only cpp".
mutants: $(VENV)/.dev
	@PYTHONPATH=tools nice $(BIN)/python -m mutation $(MUTANTS)

lint: $(VENV)/.dev types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	@$(BIN)/zizmor --offline --quiet --no-progress .github/workflows
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	@$(BIN)/hadolint Dockerfile

# mypy sees the package as it is installed: export/ and bench/ inside ovsw/.
types: $(VENV)/.dev
	@rm -rf build/types && mkdir -p build/types/ovsw
	@ln -s $(CURDIR)/python/ovsw/* $(CURDIR)/export $(CURDIR)/bench build/types/ovsw
	@MYPYPATH=build/types $(BIN)/mypy -p ovsw

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CXX_FILES)

bench: $(VENV)/.dev
	@$(BIN)/ovsw-bench

docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html; with its search: $(BIN)/python -m http.server -d build/site"

wheel: $(VENV)/.dev
	@$(BIN)/python tools/release/wheel.py dist

wheel-arm64: $(VENV)/.dev
	@PYTHON=$(BIN)/python tools/arm64/setup
	@rm -f dist/ovsw-*aarch64*
	@$(BIN)/python tools/release/wheel.py --arm64 dist
	@$(BIN)/python tools/arm64/wheel.py dist/ovsw-*aarch64.whl

reproducible: $(VENV)/.dev
	@$(BIN)/python tools/release/reproducible.py

# The newest versions of everything, with their checksums.
lock: $(VENV)/.dev
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --override requirements/without.txt pyproject.toml requirements/dev.in \
	  --extra export --extra onnx --extra train --extra bench --extra dev --extra docs --extra mutation -o requirements/dev.txt

# The development set-up includes the plain one, which has no kernels for training. What it installs is pinned and
# checked, but for torch's own build.
$(VENV)/.run: $(NATIVE) $(PROJECT) | $(VENV)
	$(STEP) "building the engine (40 s on two cores)" env OVSW_TRAIN=0 $(INSTALL) -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(NATIVE) $(PROJECT) requirements/dev.txt | $(VENV)
	$(STEP) "tools and libraries of development, pinned and checked (as fast as the network)" \
	  $(INSTALL) --require-hashes --no-deps -r requirements/dev.txt
	$(STEP) "torch (200 MB or more, as fast as the network)" $(INSTALL) -c constraints.txt torch
	$(STEP) "building the engine with what tests need (about a minute on two cores)" env PATH="$(CURDIR)/$(BIN):$$PATH" OVSW_TESTING=1 \
	  OVSW_WERROR=$(if $(CI),1,0) $(INSTALL) --no-deps --no-build-isolation -e .
	@touch $(VENV)/.run $@

$(VENV):
	@echo "Setting up in $(VENV), once:"
	$(STEP) "a virtual environment (5 s)" $(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist python/ovsw.egg-info python/ovsw/*.so
