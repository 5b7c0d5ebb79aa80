#!/bin/sh
# Measures what the journal costs: bench/journal.sh. Lines for BENCHMARKS.md go to standard output.
#
#   DATA=FOLDER     where data directories are made, and removed: a temporary folder if not given
#   BIG=10000000    messages of 256 bytes that are held at the end; 0 leaves that out
#
# The real binary is measured, started on an empty directory for each line. Ready is from exec to the banner.
set -eu
cd "$(dirname "$0")/.."

tmp=$(mktemp -d)
data=$(mktemp -d "${DATA:-$tmp}/journal.XXXXXX")
pid=
cleanup() {
	[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
	rm -rf "$tmp" "$data"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
CGO_ENABLED=0 go build -trimpath -o "$tmp/firemq" ./cmd/firemq

# start starts a broker on the data and waits until it is ready.
start() {
	: >"$tmp/log" # or the last one's banner is found
	"$tmp/firemq" --amqp off --http off --fire 127.0.0.1:0 --data "$data/d" >>"$tmp/log" 2>&1 &
	pid=$!
	until grep -q '^ *Data ' "$tmp/log"; do
		kill -0 "$pid" || { cat "$tmp/log" >&2; exit 1; }
		sleep 0.01
	done
	url=fire://guest:guest@127.0.0.1:$(sed -n 's/^ *FireMQ .*:\([0-9]*\)$/\1/p' "$tmp/log")
}

# end sends the broker a signal and waits for it.
end() {
	kill "-$1" "$pid"
	wait "$pid" 2>/dev/null || true
	pid=
}

# ready is the time from the start to the banner, and the CPU time until then.
ready() {
	awk '{ printf "%d ms of CPU in ", ($14 + $15) * 10 }' "/proc/$pid/stat"
	sed -n 's/.* is ready in \([0-9]* ms\).*/\1/p' "$tmp/log"
}

# load runs firemq bench against the broker and keeps its report.
load() {
	"$tmp/firemq" bench --url "$url" --broker-pid "$pid" --persistent --warmup 0 --json --quiet "$@" >"$tmp/report"
}

# figure gives a number of the report by the last two parts of its path.
figure() {
	python3 -c 'import json, sys
v = json.load(open(sys.argv[1]))
for key in sys.argv[2].split("."): v = v[key]
print(v)' "$tmp/report" "$1"
}

# memory is what the broker has resident without mapped files, in MiB.
memory() { awk '/^RssAnon/ { printf "%.0f MiB", $2 / 1024 }' "/proc/$pid/status"; }

per() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.0f", a / b }'; }

echo "| figure | |"
echo "| --- | --- |"

{
	go test ./journal -run '^$' -bench '^BenchmarkCommit$/^1$' -benchtime 2000x
	go test ./journal -run '^$' -bench '^BenchmarkDisk$/^filled=true$/^352$' -benchtime 2000x
} | awk '
	/^BenchmarkCommit/ { commit = $3 }
	/^BenchmarkDisk/ { disk = $3 }
	END { printf "| a commit of one record; the same write and fdatasync alone | %.0f us; %.0f us: %.2f times |\n", commit / 1000, disk / 1000, commit / disk }'
go test ./journal -run '^$' -bench '^BenchmarkAppend/300$' | awk '
	/^BenchmarkAppend/ { for (i = 3; i < NF; i++) if ($(i + 1) == "ns/record") printf "| CPU to append a record of 300 bytes | %.0f ns |\n", $i }'

start
load --rate 1000 --duration 10s
echo "| publish to confirm at 1,000 messages a second | p50 $(figure confirm_latency.p50_us) us, p99 $(figure confirm_latency.p99_us) us |"
end TERM
rm -rf "$data/d"

# held fills a queue and tells about it.
held() {
	start
	load --consumers 0 --count "$1" --duration 10m --size "$2" --queue-name held --keep
	echo "| fill with $1 messages of $2 bytes | $(per "$(figure confirm_rate_s)" 1) a second, $(per "$1" "$(figure broker_usage.cpu_s)") a second of the broker's CPU |"
	echo "| held in memory then | $(memory) |"
}

held 2000000 256
end KILL
start
echo "| ready with them after kill -9 | $(ready) |"
end TERM
start
echo "| ready with them after a stop | $(ready) |"
end TERM
rm -rf "$data/d"
start
load --backlog 2000000 --drain --size 256
echo "| drain of 2000000 messages of 256 bytes | $(per "$(figure consume_rate_s)" 1) a second, $(per 2000000 "$(figure broker_usage.cpu_s)") a second of the broker's CPU |"
end TERM
rm -rf "$data/d"

held 1000000 1024
end TERM
rm -rf "$data/d"
if [ "${BIG:-10000000}" -gt 0 ]; then
	held "${BIG:-10000000}" 256
	end TERM
fi
