#!/bin/sh
# The gate against slower code.
#
#   bench/gate.sh allocs          the benchmarks of a message's path must not allocate: the same result on every machine
#   bench/gate.sh compare [BASE]  those benchmarks, and the broker's CPU per message over the wire, beside commit BASE
#                                 (default: where this branch left main) in one run, in turn; needs Linux and two cores
#
#   LIMIT=1.5       a benchmark, or the broker, may take that many times what it took at BASE; what takes more is
#                   measured again, since other programs on the machine make some rounds slow
#   SECONDS_EACH=2 ROUNDS=6   at a load of 40 five rounds took half an hour; over the wire some 40 s
set -eu
cd "$(dirname "$0")/.."

# Packages and the benchmarks in them that a message passes through.
hot='
./frames/amqp     .
./frames/fmq1     .
./route           Route|Cache/last|Cache/hit16
./pool            .
./journal         Append|Settle
./broker/message  .
./broker/queue    PublishDispatchAck/consumers=1$|PublishDispatchAck/consumers=4$|OneByOne
./broker          PublishDeliverAck
./session/amqp    .
./session/fmq1    .
./loop            Stage
./bench           .
'

die() {
	echo "gate.sh: $*" >&2
	exit 1
}

# each COMMAND calls it with every package and its benchmarks.
each() {
	echo "$hot" | while read -r package names; do
		[ -z "$package" ] || "$@" "$package" "$names" || exit 1
	done
}

run_allocs() {
	# So many operations that growing once, at the start, is no allocation an operation.
	go test -run '^$' -bench "$2" -benchmem -benchtime 20000x "$1" >"$dir/out" 2>&1 || {
		cat "$dir/out" >&2
		exit 1
	}
	awk -v package="$1" '
		/^Benchmark/ { n++; if ($0 !~ / 0 allocs\/op/) { print package ": " $0; bad = 1 } }
		END { if (!n) { print package ": no benchmark ran"; exit 1 } exit bad }' "$dir/out" >&2
}

build() {
	name=$(echo "$1" | tr / _)
	go test -c -o "$dir/new$name" "$1"
	(cd "$dir/base" && [ -d "$1" ] && go test -c -o "$dir/old$name" "$1") || :
}

run_round() {
	name=$(echo "$1" | tr / _)
	[ -x "$dir/old$name" ] || return 0
	for side in old new; do
		# What failed at BASE is no fault of what is measured: its other benchmarks count.
		(cd "$1" && "$dir/$side$name" -test.run '^$' -test.bench "$2" -test.benchmem -test.benchtime 50ms) >>"$dir/$side.txt" ||
			[ "$side" = old ] || die "a benchmark of $1 failed: $(tail -n 3 "$dir/new.txt")"
	done
}

dir=$(mktemp -d)
cleanup() {
	git worktree remove --force "$dir/base" 2>/dev/null || :
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

case ${1:-} in
allocs)
	each run_allocs
	echo "no benchmark of a message's path allocates"
	;;
compare)
	base=${2:-$(git merge-base HEAD main)}
	git worktree add --quiet --detach "$dir/base" "$base"
	echo "gate.sh: the working tree beside $(git -C "$dir/base" log -1 --format='%h, %s')"
	each build
	for round in $(seq "${ROUNDS:-6}"); do
		echo "gate.sh: benchmarks, round $round of ${ROUNDS:-6}"
		each run_round
	done
	echo "gate.sh: over the wire"
	go run golang.org/x/perf/cmd/benchstat@v0.0.0-20250813145418-2f7363a06fe1 "base=$dir/old.txt" "new=$dir/new.txt" || :
	CGO_ENABLED=0 go build -trimpath -o "$dir/firemq" ./cmd/firemq
	(cd "$dir/base" && CGO_ENABLED=0 go build -trimpath -o "$dir/firemq-base" ./cmd/firemq)
	go run ./bench/compare gate -limit "${LIMIT:-1.5}" -benchmarks "$dir/old.txt,$dir/new.txt" -binaries "$dir" \
		-firemq "$dir/firemq" -base "$dir/firemq-base" -seconds "${SECONDS_EACH:-2}" -runs 3
	;;
*) die "say allocs or compare" ;;
esac
