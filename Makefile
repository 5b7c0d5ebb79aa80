# make test     all that a change must pass; installs the clients and the RabbitMQ that it needs
# make check    what CI runs beside it: format, vet, staticcheck, race tests, generated files, fuzzing
# make soak     the drills of test/pressure and full disks for SOAK each, SEEDS random scripts against FireMQ and RabbitMQ,
#               500 kills and 100 in an alarm, then the simulation of crashes without end
# make pressure what clients that misbehave, flood or sit idle cost the others, with its figures
# make lag      what consumers that lag or are gone do to memory, disk and throughput, drawn for docs/back-pressure.md
# make build    the static binary ./firemq
# make bench-allocs, bench-gate, bench-compare, bench-growth, profile: see below, and bench/run.sh

STATICCHECK  = v0.8.2
NATS_SERVER  = v2.15.3
FUZZTIME     = 20000x
SEEDS        = 10000
SOAK         = 2m
SECONDS_EACH = 20
UNRACED      = ^Test(IdleMemory|DeclarationsStayUnderTheLimit|MisbehavingPeers|NoAllocations|ConsumersThatLag|ManyIdleConnections|Unfinished|UnfinishedHandshakes|WhoNeverAcknowledgesIsStopped|MemoryStaysUnderItsLimit|SeveralWindowsAtOnce|SmallPublisherBesideAFlood|MillionUnacked|AcksBehindTinyMessagesEndTheAlarm|FullDiskInAnAlarm)$$
RUNS         = 3

GO_FILES     = $(shell git ls-files --cached --others --exclude-standard '*.go')
PYTHON       = .cache/venv/.installed
NODE         = $(addsuffix /node_modules/.installed,examples/javascript examples/typescript sdk/ts test/compat/node test/ui)
TYPESCRIPT   = sdk/ts/dist/.built examples/typescript/dist/.built
JAVA         = .cache/java/.installed
NATS         = .cache/bin/nats-server-$(NATS_SERVER)
RUST         = .cache/cargo/.installed .cache/cargo/.sdk

.PHONY: build deps examples-deps amqp-tools rabbitmq prometheus chromium nats vet test check fmt staticcheck rust-lint race race-all generated generate fuzz
.PHONY: lag compat bench scale bench-compare bench-growth bench-gate bench-allocs profile pressure soak clean
.DELETE_ON_ERROR:

build:
	CGO_ENABLED=0 go build -trimpath -o firemq ./cmd/firemq

# The clients for the examples and test/compat, as their lock files pin them, and the TypeScript SDK.
deps: $(PYTHON) $(NODE) $(TYPESCRIPT) $(JAVA) $(RUST) amqp-tools rabbitmq prometheus chromium nats

# What examples/run.sh takes of them: nothing that is installed on the machine.
examples-deps: $(PYTHON) examples/javascript/node_modules/.installed $(TYPESCRIPT) .cache/cargo/.sdk

$(PYTHON): test/compat/python/requirements.txt
	python3 -m venv --clear .cache/venv
	.cache/venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

%/node_modules/.installed: %/package.json %/package-lock.json
	cd $* && npm ci --no-audit --no-fund --loglevel=error
	touch $@

sdk/ts/dist/.built: $(wildcard sdk/ts/*.json sdk/ts/*/*.ts)
examples/typescript/dist/.built: sdk/ts/dist/.built $(wildcard examples/typescript/*.ts)

%/dist/.built: %/node_modules/.installed
	cd $* && npm run --silent build
	touch $@

# Runs no test, for which Maven fetches all that running them takes.
$(JAVA): test/compat/java/pom.xml
	mvn -q -B --file $< test -Dtest=None
	touch $@

.cache/cargo/.installed: test/compat/lapin/Cargo.lock
	cargo test --quiet --locked --no-run --manifest-path test/compat/lapin/Cargo.toml --target-dir .cache/cargo
	touch $@

# The Rust SDK, its driver, its tests and the examples: one workspace, in one folder with the above.
.cache/cargo/.sdk: $(shell git ls-files sdk/rust examples/rust)
	cargo build --quiet --locked --workspace --all-targets --manifest-path sdk/rust/Cargo.toml --target-dir .cache/cargo
	touch $@

# The programs of rabbitmq-c, from Debian.
amqp-tools:
	@if command -v amqp-publish >/dev/null; then exit; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends amqp-tools </dev/null >/dev/null && exit; \
	fi; \
	echo "amqp-tools are not installed, and only root can do it with apt-get: the tests in test/compat/tools will be skipped"

# RabbitMQ, which test/oracle runs beside FireMQ; without it those tests are skipped.
rabbitmq:
	@if [ -e /usr/lib/rabbitmq/bin/rabbitmq-server ]; then exit; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends rabbitmq-server </dev/null >/dev/null && exit; \
	fi; \
	echo "RabbitMQ is not installed, and only root can do it with apt-get: the tests in test/oracle will be skipped"

# Prometheus and promtool, which test/prometheus runs: unpacked from Debian's package, so that no service starts.
prometheus:
	@if [ -x .cache/prometheus/usr/bin/promtool ]; then exit; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && rm -rf .cache/prometheus && mkdir -p .cache/prometheus && cd .cache/prometheus && \
		apt-get -o APT::Sandbox::User=root download -qq prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb && exit; \
	fi; \
	echo "Prometheus is not installed, and only root can do it with apt-get: the tests in test/prometheus will be skipped"

# The browser for the tests of the UI, and of the TypeScript SDK in a page; without it they are skipped.
chromium:
	@if [ -e /usr/bin/chromium ]; then exit; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium </dev/null >/dev/null && exit; \
	fi; \
	echo "Chromium is not installed, and only root can do it with apt-get: its tests in test/ui and test/conformance will be skipped"

# nats-server, which bench measures for reference; without it the test of that is skipped.
nats:
	@[ -x $(NATS) ] || { GOBIN=$(CURDIR)/.cache/bin go install github.com/nats-io/nats-server/v2@$(NATS_SERVER) && mv .cache/bin/nats-server $(NATS) && ln -sf $(notdir $(NATS)) .cache/bin/nats-server; } || \
	echo "nats-server is not installed: the test of bench over NATS will be skipped"

vet:
	go vet ./...

test: deps build vet
	FIREMQ_BIN=$(CURDIR)/firemq FIREMQ_REQUIRE_CLIENTS=1 go run ./test/internal/suite

check: fmt vet staticcheck rust-lint race generated fuzz bench-allocs

fmt:
	@files=$$(gofmt -l $(GO_FILES)); test -z "$$files" || { echo "run gofmt -w on:"; echo "$$files"; exit 1; }

staticcheck: .cache/bin/staticcheck-$(STATICCHECK)
	$< ./...

rust-lint:
	cd sdk/rust && cargo fmt --all --check && cargo clippy --quiet --locked --workspace --all-targets --target-dir ../../.cache/cargo -- -D warnings

.cache/bin/staticcheck-$(STATICCHECK):
	GOBIN=$(CURDIR)/.cache/bin go install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK)
	mv .cache/bin/staticcheck $@

# The command lines of firemq rabbitmqctl beside RabbitMQ's own, of which each call starts an Erlang machine; then the
# tests that RabbitMQ's management tools in Rust come with, which build rabbitmqadmin v2, and a round with that.
compat: rabbitmq build
	FIREMQ_REQUIRE_ORACLE=1 go test ./test/oracle -count=1 -timeout=30m -run='^TestRabbitmqctl$$' -ctl
	FIREMQ_BIN=$(CURDIR)/firemq go test ./test/compat -count=1 -timeout=2h -run='^TestCrates$$' -crates
	FIREMQ_BIN=$(CURDIR)/firemq FIREMQ_REQUIRE_RABBITMQADMIN=1 go test ./test/compat/rabbitmqadmin -count=1

# The packages with the race detector; internal/tidy is one of them.
race:
	go test -race $$(go list ./... | grep -v /test/)

# As race, then the tests in test/ with the race detector in them and in the broker that they start: the first race
# ends it, and so fails its test. What measures memory or rates is left out: such a build takes many times as much.
race-all: deps race
	CGO_ENABLED=1 go build -race -o .cache/firemq-race ./cmd/firemq
	FIREMQ_BIN=$(CURDIR)/.cache/firemq-race GORACE=halt_on_error=1 go test -race -count=1 -p 1 -timeout=30m -skip='$(UNRACED)' $$(go list ./... | grep /test/)

# The drills under load and full disks for longer, random scripts that RabbitMQ answers too, 500 kills of a real broker
# and 100 in an alarm, then crashes and faults on a disk in memory without end, until a seed fails.
soak: rabbitmq build
	FIREMQ_BIN=$(CURDIR)/firemq go test ./test/pressure -count=1 -timeout=0 -v -soak=$(SOAK)
	go test ./test/oracle -count=1 -timeout=0 -v -run='^TestRandom$$' -seeds=$(SEEDS) -first=$$(date +%s)
	FIREMQ_BIN=$(CURDIR)/firemq go test ./test/crash -count=1 -timeout=0 -v -run='^TestFullDisk' -soak=$(SOAK)
	go test ./test/crash -count=1 -timeout=0 -v -run='^TestKill(InAnAlarm)?$$' -kills=500
	FIREMQ_SEEDS=0 go test ./broker -run='^TestSimulation$$' -timeout=0

# The rate of a pair of clients beside 500 that misbehave is given in percent of what another pair has at a broker
# without them, in turns and in one run; docs/back-pressure.md says how.
pressure: build
	FIREMQ_BIN=$(CURDIR)/firemq go test ./test/pressure -count=1 -v -run='^Test(MisbehavingPeers|SmallPublisherBesideAFlood|ManyIdleConnections|ReconnectStorm|ConnectionsLeaveNothing)$$'

# Memory, disk and throughput over time while consumers lag or are gone: the figures and tables of docs/back-pressure.md.
lag: build
	FIREMQ_BIN=$(CURDIR)/firemq go test ./test/pressure -count=1 -v -run='^TestConsumersThatLag$$' -figures=$(CURDIR)/docs/images

# Generates again and compares.
generated:
	@sums() { git ls-files -z --cached --others --exclude-standard '*_gen.go' '*_gen_test.go' | xargs -0 -r sha256sum; }; \
	before=$$(sums); go generate ./... && test "$$before" = "$$(sums)" || { echo "generated files were out of date: commit what changed"; exit 1; }

generate:
	go generate ./...

# Runs every fuzz target for FUZZTIME. That is a number of inputs: before Go 1.27 a target that a time ends may fail with
# "context deadline exceeded" (go.dev/issue/75804). By default one would spend up to a minute on making one input smaller.
fuzz:
	@set -e; git grep --untracked -hE -o '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' >/dev/null || { echo "no fuzz targets"; exit 1; }; \
	git grep --untracked -E -o '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/:func / /' | while read -r file name; do \
		echo "$$(dirname $$file) $$name"; \
		go test -run='^$$' -fuzz="^$$name\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=1s ./$$(dirname $$file); \
	done

bench:
	go test -run='^$$' -bench=. -benchmem $$(go list ./... | grep -v /test/)

# FireMQ beside every broker that is found, into BENCHMARKS.md: see bench/run.sh.
bench-compare:
	bench/run.sh $(SECONDS_EACH) $(RUNS)

bench-growth:
	bench/run.sh growth $(SECONDS_EACH) $(RUNS)

# Very many bindings, queues, channels and messages in the real broker, and who waits for them.
scale: build
	FIREMQ_BIN=$(CURDIR)/firemq go test ./test/scale -run='^$$' -bench=. -benchtime=1x -timeout=30m

# The benchmarks and the broker's CPU per message beside the commit BASE, in one run; and, the same on every
# machine, that no benchmark of a message's path allocates.
bench-gate: bench-allocs
	bench/gate.sh compare $(BASE)

bench-allocs:
	bench/gate.sh allocs

# Where the broker's time goes under all loads, what it waits for, and what it allocates. With the first file
# "go build -pgo" optimises by what really runs.
profile: build
	go run ./bench/profile -firemq ./firemq -cpu .cache/cpu.pprof -mutex .cache/mutex.pprof -count 1000000

clean:
	rm -rf firemq .cache $(addsuffix /node_modules,examples/javascript examples/typescript sdk/ts test/compat/node test/ui) $(addsuffix /dist,examples/typescript sdk/ts)
