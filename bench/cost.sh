#!/bin/sh
# Cost is the broker's CPU time per delivered message: the broker on core 0, the load on core 1,
# 1 publisher and 1 consumer, 256-byte messages, window and prefetch 1,000, an ack for each message.
#
#   bench/cost.sh [SECONDS]
#       builds firemq, runs it, and measures transient and persistent messages
#   FIREMQ=path bench/cost.sh [SECONDS]
#       the same with a binary that exists
#   URL=amqp://... BROKER_PID=123 bench/cost.sh [SECONDS]
#       measures any AMQP 0-9-1 broker that runs already; start it with "taskset -c 0"
#   PROTOCOL=fire
#       the FireMQ protocol instead of AMQP 0-9-1
#   MAX_TRANSIENT=2.0 MAX_PERSISTENT=3.0
#       exit status 1 if it costs more microseconds
set -eu

seconds=${1:-10}
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
mine=
cleanup() {
	if [ -n "$mine" ]; then
		kill "$mine" 2>/dev/null || :
		wait "$mine" 2>/dev/null || :
	fi
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

die() {
	echo "cost.sh: $*" >&2
	exit 1
}

command -v taskset >/dev/null || die "taskset is missing: install util-linux"
[ "$(nproc)" -ge 2 ] || die "two cores are needed: one for the broker, one for the load"
firemq=${FIREMQ:-}
if [ -z "$firemq" ]; then
	firemq=$dir/firemq
	CGO_ENABLED=0 go build -o "$firemq" "$here/../cmd/firemq"
fi

if [ -z "${URL:-}" ]; then
	mkfifo "$dir/banner"
	if [ "${PROTOCOL:-amqp}" = fire ]; then
		set -- --amqp off --fire 127.0.0.1:0
	else
		set -- --amqp 127.0.0.1:0 --fire off
	fi
	taskset -c 0 "$firemq" "$@" --http off --data "$dir/data" --log-level error >"$dir/banner" &
	mine=$!
	# The banner ends with the data directory; a broker that does not start closes the pipe.
	while read -r word rest; do
		case "$word $rest" in
		*://*) URL=${rest##* } ;;
		Data*) break ;;
		esac
	done <"$dir/banner"
	[ -n "${URL:-}" ] || die "the broker did not start"
	BROKER_PID=$mine
fi
[ -n "${BROKER_PID:-}" ] || die "BROKER_PID is missing: the process of the broker at $URL"

# measure NAME LIMIT FLAGS... prints a line, and fails above LIMIT microseconds.
measure() {
	name=$1 limit=$2
	shift 2
	taskset -c 1 "$firemq" bench --url "$URL" --broker-pid "$BROKER_PID" --quiet --json \
		--duration "$seconds" --warmup 1 --size 256 --publishers 1 --consumers 1 --window 1000 --prefetch 1000 "$@" >"$dir/report"
	awk -v name="$name" -v limit="$limit" '
		# The first of each name: the averages come before the seconds and the parts.
		{ gsub(/[",]/, "") }
		NF == 2 && !($1 in v) { v[$1] = $2 }
		END {
			us = v["cpu_us_per_delivered:"]
			printf "%-11s %8.3f us of broker CPU per delivered message, %.0f/s published, %.0f/s delivered, %.2f us of client CPU, peak RSS %.1f MiB\n",
				name, us, v["publish_rate_s:"], v["consume_rate_s:"], v["client_cpu_us_per_delivered:"], v["peak_rss_bytes:"] / 1048576
			if (limit != "" && us > limit + 0) {
				printf "cost.sh: %s costs more than %s us\n", name, limit > "/dev/stderr"
				exit 1
			}
		}' "$dir/report"
}

measure transient "${MAX_TRANSIENT:-}"
measure persistent "${MAX_PERSISTENT:-}" --persistent
