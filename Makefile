# Every target sets up what it needs first (scripts/setup.sh), which is quick where nothing changed.

PYTHON_SOURCES := dedupd dedupd_core dedupd_reader jobs fuse_stub analysis tests benchmarks
BIN := .venv/bin
CARGO_PATH := PATH="$$PATH:$${CARGO_HOME:-$$HOME/.cargo}/bin"
COMPILE := UV_CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/uv pip compile --quiet --upgrade \
	--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links
CARGO_DENY_VERSION := 0.20.2
PIP_AUDIT_VERSION := 2.10.1
CARGO_MUTANTS_VERSION := 27.1.0
DENY := build/audit/bin/cargo-deny --config native/deny.toml --locked
SIZE ?= 6G
RUNS ?= 3
KERNELS ?=
DIR ?= build/bench/data
TREES ?= /usr/lib /usr/share
BENCHMARK_PATH := PATH="$(CURDIR)/build/peers/bin:$$PATH:/usr/sbin:/sbin"

# Tests start thousands of processes, and none has to compile what another has.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-develop build demo test test-native coverage test-loom audit mutants test-slow test-hostile test-cluster test-suites test-vm lint types format wheel \
	deb test-deb docs docs-tables site changelog lock bench bench-dataset clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:
	@scripts/setup.sh run

setup-develop:
	@scripts/setup.sh develop

build: setup ## set up: system packages (named first), .venv, native module

demo: setup ## deduplicate real files in a temporary volume, and compare every byte
	$(BIN)/dedupd demo

test: setup-develop ## the tests, in minutes (ARGS="-k name" chooses)
	@# Two a core: half of the time of a test is the disk's, or a clock's.
	$(BIN)/python -m pytest -n $$((2 * $$(nproc))) --dist worksteal -m "not slow and not vm" $(ARGS)

coverage: setup-develop ## lines and branches of format, store and stub that tests run, against floors
	@mkdir -p build/coverage
	$(BIN)/python -m pytest -n $$((2 * $$(nproc))) --dist worksteal -m "not slow and not vm" --cov \
		--cov-report json:build/coverage/report.json --cov-report html:build/coverage/html \
		tests/format tests/store tests/stub tests/volume $(ARGS)
	$(BIN)/python scripts/coverage_floors.py build/coverage/report.json

mutants: ## change native/src/format expression by expression: do its tests notice? [ARGS="-f stub.rs"]
	scripts/mutants.sh $(CARGO_MUTANTS_VERSION) $(ARGS)

test-native: setup-develop ## the tests of the Rust crate by itself
	$(CARGO_PATH) cargo test --manifest-path native/Cargo.toml --locked --no-default-features --lib --quiet

test-loom: setup-develop ## models of lock-free and waiting code: all interleavings of their threads
	$(CARGO_PATH) cargo test --manifest-path native/models/Cargo.toml --locked --release --quiet

test-slow: setup-develop test-loom ## the tests that take minutes each
	$(BIN)/python -m pytest -m slow --timeout 7200 $(ARGS)

test-hostile: setup-develop ## the scenarios of hostile users, copies and full disks, and how each went
	$(BIN)/python -m pytest -n $$(nproc) -m hostile --timeout 3600 $(ARGS)

test-cluster: setup-develop ## the long tests of a store in a Ceph cluster, which they bring up
	$(BIN)/python -m pytest -m slow --timeout 3600 tests/rados tests/jobs/cluster tests/cli/test_cluster.py \
		tests/service/test_cluster.py tests/service/test_cluster_hosts.py $(ARGS)

test-suites: setup-develop ## suites of other projects: DIR=their built sources [SUITE=xfstests|pjdfstest|stress-ng]
	$(BIN)/python -m tests.suites $(if $(SUITE),--suite $(SUITE)) $(ARGS) "$(DIR)"

test-vm: ## the scenarios on real kernels in virtual machines [KERNELS="bookworm trixie trixie-backports sid"]
	@scripts/setup.sh vm
	DEDUPD_VM_KERNELS="$(KERNELS)" $(BIN)/python -m pytest -m vm tests/vm $(ARGS)

lint: setup-develop ## form and likely mistakes: ruff, cargo fmt, clippy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(CARGO_PATH) cargo fmt --manifest-path native/Cargo.toml --check
	$(CARGO_PATH) cargo clippy --manifest-path native/Cargo.toml --locked --all-targets --quiet -- -D warnings
	@# Only slow tests build the fuzzer and the models. Report here what would prevent that.
	$(CARGO_PATH) cargo fmt --manifest-path native/fuzz/Cargo.toml --check
	$(CARGO_PATH) cargo fetch --manifest-path native/fuzz/Cargo.toml --locked --quiet
	$(CARGO_PATH) cargo fmt --manifest-path native/models/Cargo.toml --check
	$(CARGO_PATH) cargo fetch --manifest-path native/models/Cargo.toml --locked --quiet

# Not in lint or .ci/run: cargo-deny takes minutes to build, and the databases need the network.
audit: setup-develop ## licences, sources and known vulnerabilities of dependencies (needs the network)
	[ -x build/audit/bin/cargo-deny ] || $(CARGO_PATH) cargo install --quiet --locked \
		--root build/audit --target-dir build/audit/target cargo-deny@$(CARGO_DENY_VERSION)
	[ -x build/audit/python/bin/pip-audit ] || { python3 -m venv build/audit/python && \
		build/audit/python/bin/pip install -q pip-audit==$(PIP_AUDIT_VERSION); }
	for crate in native native/fuzz native/models; do $(CARGO_PATH) $(DENY) --manifest-path $$crate/Cargo.toml \
		check licenses bans sources || exit; done
	for crate in native native/fuzz native/models; do $(CARGO_PATH) $(DENY) --manifest-path $$crate/Cargo.toml \
		check advisories || exit; done
	@# Strict: a package that the database does not know is an error, not a skipped line.
	build/audit/python/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off \
		-r requirements.lock -r requirements-build.lock

types: setup-develop ## mypy, strict, and the stubs of the native module against the module
	$(BIN)/mypy
	$(BIN)/mypy -p tests
	$(BIN)/python -m mypy.stubtest dedupd_core.native --concise --ignore-disjoint-bases \
		--allowlist tests/rules/stubtest_allowlist.txt

format: setup-develop ## rewrite the sources in their form
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .
	$(CARGO_PATH) cargo fmt --manifest-path native/Cargo.toml

wheel: setup ## a wheel to install elsewhere, in dist/
	$(CARGO_PATH):"$(CURDIR)/$(BIN)" $(BIN)/python -m pip wheel -q --no-build-isolation --no-deps --wheel-dir dist .

deb: ## a Debian package for this release of Debian, in dist/
	@scripts/setup.sh package
	@# With what an earlier call has left, debhelper would pack what that call has built.
	rm -f debian/debhelper-build-stamp
	$(CARGO_PATH) DEB_OUTPUT=dist debian/rules binary

test-deb: ## build the package in a clean Debian, install it in another, reboot that [SUITE=bookworm]
	scripts/test_deb.sh $(or $(SUITE),bookworm)

docs: setup ## manual pages, and the report of a study of TREES, in build/docs [TREES="/usr/lib /usr/share"]
	$(BIN)/python scripts/man_pages.py build/docs/man
	@# 1 says that some files could not be read: the report names them.
	$(BIN)/dedupd analyze --sample 1% --out build/docs/study $(TREES) || [ $$? = 1 ]

docs-tables: setup ## write the tables of docs/ that the code knows best
	$(BIN)/python scripts/doc_tables.py

site: build/docs-tools/.made ## a searchable site of docs/, in build/site
	NO_MKDOCS_2_WARNING=1 build/docs-tools/bin/python -m mkdocs build --strict --quiet
	python3 scripts/check_site.py build/site

build/docs-tools/.made: requirements-docs.lock
	rm -rf build/docs-tools
	python3 -m venv build/docs-tools
	build/docs-tools/bin/python -m pip install --disable-pip-version-check --quiet --require-hashes -r requirements-docs.lock
	touch $@

changelog: ## show the changes since the last version (changelog/README.md)
	@cat changelog/unreleased/*.md 2>/dev/null || echo "None."

lock: setup ## choose versions anew, within the bounds of pyproject.toml
	python3 -m venv build/lock && build/lock/bin/pip install -q uv
	$(COMPILE) --extra dev pyproject.toml --output-file requirements.lock
	$(COMPILE) requirements-build.in --output-file requirements-build.lock
	$(COMPILE) requirements-docs.in --output-file requirements-docs.lock

bench: ## take a data set in, beside the peers: table in build/bench [DIR=where SIZE=6G RUNS=3]
	@scripts/setup.sh benchmark
	[ -e "$(DIR)" ] || $(BIN)/python -m analysis.dataset --size $(SIZE) "$(DIR)"
	$(BENCHMARK_PATH) $(BIN)/python -m benchmarks.ingest --runs $(RUNS) --output build/bench "$(DIR)"
	$(BENCHMARK_PATH) $(BIN)/python -m benchmarks.refine --peers --no-reads --mode full --json build/bench/refine.json "$(DIR)/software" "$(DIR)/documents"

bench-dataset: ## build the data set of the benchmarks: DIR=where [SIZE=6G]
	@scripts/setup.sh benchmark
	$(BIN)/python -m analysis.dataset --size $(SIZE) $(DIR)

clean: ## remove what tests and builds leave
	rm -rf build dist debian/.debhelper debian/dedupd debian/files debian/debhelper-build-stamp
	rm -rf debian/*.substvars debian/*.debhelper* native/target .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o -name __pycache__ -print0 | xargs -0r rm -rf

distclean: clean ## and the virtual environment and the native module
	rm -rf .venv dedupd_core/native*.so
