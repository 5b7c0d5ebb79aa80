#!/bin/sh
# What a scrape and a look at the management pages cost, each second: the broker's CPU time per message and its
# throughput beside those of a broker that nobody watches. The broker is on core 0; the load and who watches on core 1.
#
#   bench/scrape.sh [SECONDS [PAIRS]]    10 and 5 if not given; a pair is a run without and one with, in turn
#   FIREMQ=path                          a binary that exists, instead of one that is built
#   QUEUES=100                           queues, beside the load's
#   PERSISTENT=1                         persistent messages
#   LIMIT=2                              exit status 1 if the median of the pairs changes by more percent
set -eu

seconds=${1:-10}
pairs=${2:-5}
queues=${QUEUES:-100}
limit=${LIMIT:-2}
here=$(dirname "$0")
dir=$(mktemp -d)
broker= watcher=
end() {
	if [ -n "$1" ]; then
		kill "$1" 2>/dev/null || :
		wait "$1" 2>/dev/null || :
	fi
}
cleanup() {
	end "$watcher"
	end "$broker"
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

die() {
	echo "scrape.sh: $*" >&2
	exit 1
}

for tool in taskset curl; do
	command -v $tool >/dev/null || die "$tool is missing"
done
[ "$(nproc)" -ge 2 ] || die "two cores are needed: one for the broker, one for the load"
firemq=${FIREMQ:-}
if [ -z "$firemq" ]; then
	firemq=$dir/firemq
	CGO_ENABLED=0 go build -o "$firemq" "$here/../cmd/firemq"
fi

mkfifo "$dir/banner"
taskset -c 0 "$firemq" --amqp 127.0.0.1:0 --fire off --http 127.0.0.1:0 --data "$dir/data" --log-level error >"$dir/banner" &
broker=$!
url= http=
# The banner ends with the data directory; a broker that does not start closes the pipe.
while read -r word rest; do
	case "$word $rest" in
	*amqp://*) url=${rest##* } ;;
	Management*) http=$rest ;;
	Data*) break ;;
	esac
done <"$dir/banner"
[ -n "$url" ] && [ -n "$http" ] || die "the broker did not start"

awk -v n="$queues" 'BEGIN {
	printf "{\"queues\": ["
	for (i = 0; i < n; i++) printf "%s{\"name\": \"q%d\", \"vhost\": \"/\", \"durable\": true, \"auto_delete\": false, \"arguments\": {}}", i ? ", " : "", i
	print "]}"
}' >"$dir/definitions.json"
curl -sf -u guest:guest -H 'Content-Type: application/json' -d "@$dir/definitions.json" "$http/api/definitions" || die "the queues could not be declared"

# What is asked each second, for a minute longer than a run.
awk -v http="$http" -v rounds=$((seconds + 60)) 'BEGIN {
	print "user = guest:guest\nsilent\nshow-error\nfail-early\nfail\ncompressed\nrate = 3/s"
	split("metrics api/overview api/queues?page=1&page_size=100&sort=messages", paths, " ")
	for (i = 0; i < rounds; i++)
		for (j = 1; j <= 3; j++) printf "url = \"%s/%s\"\noutput = /dev/null\n", http, paths[j]
}' >"$dir/requests"

# measure FILE appends the broker's CPU time per message and the messages per second.
measure() {
	set -- "$1" ${PERSISTENT:+--persistent}
	file=$1
	shift
	taskset -c 1 "$firemq" bench --url "$url" --broker-pid "$broker" --quiet --json --duration "$seconds" --warmup 1 "$@" >"$dir/report"
	awk '
		# The first of each name: the averages come before the seconds and the parts.
		{ gsub(/[",]/, "") }
		NF == 2 && !($1 in v) { v[$1] = $2 }
		END { print v["cpu_us_per_delivered:"], v["consume_rate_s:"] }' "$dir/report" >>"$dir/$file"
}

watched() {
	taskset -c 1 curl -K "$dir/requests" & # over one connection
	watcher=$!
	measure with
	kill -0 "$watcher" 2>/dev/null || die "the broker was not watched all the time"
	end "$watcher"
	watcher=
}

i=0
while [ "$i" -lt "$pairs" ]; do
	if [ $((i % 2)) = 0 ]; then
		measure without
		watched
	else
		watched
		measure without
	fi
	i=$((i + 1))
done

paste -d ' ' "$dir/without" "$dir/with" | awk -v limit="$limit" '
	function median(a, n,   i, j, x) {
		for (i = 2; i <= n; i++) {
			x = a[i]
			for (j = i - 1; j > 0 && a[j] > x; j--) a[j + 1] = a[j]
			a[j + 1] = x
		}
		return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
	}
	{
		cpu[NR] = ($3 / $1 - 1) * 100
		rate[NR] = ($4 / $2 - 1) * 100
		printf "pair %d: %.3f us of CPU per message, watched %.3f (%+.1f %%); %.0f messages/s, watched %.0f (%+.1f %%)\n", NR, $1, $3, cpu[NR], $2, $4, rate[NR]
	}
	END {
		c = median(cpu, NR)
		r = median(rate, NR)
		printf "median: CPU per message %+.1f %%, messages/s %+.1f %%\n", c, r
		if (c > limit || r < -limit) {
			printf "scrape.sh: more than %s %%\n", limit > "/dev/stderr"
			exit 1
		}
	}'
