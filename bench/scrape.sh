#!/bin/sh
# What a scrape and a look at the page of queues, each second, cost a broker under load: its throughput and CPU time per
# message beside those of the seconds before and after, when nobody watches. The broker is on core 0; the load and who
# watches on core 1. One line is printed, with 95 % confidence intervals, and where the figures of each window are.
#
#   bench/scrape.sh [PAIRS [SECONDS]]    40 and 2 if not given; a pair is a window without and one with
#   QUEUES=100 CONNECTIONS=100           beside the load's, with next to no messages; QUEUES=10000 is a large broker
#   PERSISTENT=1                         persistent messages
#   LIMIT=2                              exit status 1 unless the interval of the throughput is within so many percent
#   FIREMQ=path                          a binary that exists, instead of one that is built
#   BROKER_CORES=0 LOAD_CORES=1
set -eu
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
command -v taskset >/dev/null || { echo "scrape.sh: taskset is missing: install util-linux" >&2; exit 1; }
go build -o "$dir/compare" ./bench/compare
firemq=${FIREMQ:-$dir/firemq}
[ -n "${FIREMQ:-}" ] || CGO_ENABLED=0 go build -trimpath -o "$firemq" ./cmd/firemq
taskset -c "${LOAD_CORES:-1}" "$dir/compare" watched -firemq "$firemq" -pairs "${1:-40}" -window "${2:-2}" \
	-queues "${QUEUES:-100}" -connections "${CONNECTIONS:-100}" -most "${LIMIT:-2}" ${PERSISTENT:+-persistent}
