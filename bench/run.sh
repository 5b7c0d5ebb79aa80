#!/bin/sh
# Compares FireMQ with every broker that is found, and makes the tables and figures of BENCHMARKS.md.
#
#   bench/run.sh [SECONDS [RUNS]]           20 and 3 if not given
#   bench/run.sh growth [SECONDS [RUNS]]    what a message costs FireMQ while queues, connections, a backlog, cores grow
#   bench/run.sh profile [SECONDS]          where FireMQ's CPU time goes under each load, and which locks are waited for
#   bench/run.sh tables [FOLDER]            the document again, from results that exist
#
# Brokers take turns in every scenario. As processes they have core 0 and the load has core 1; where a Docker
# engine answers, each broker is a container with CPUS CPUs and MEMORY memory. What is not found is left out:
#
#   rabbitmq-server as Debian installs it
#   RABBITMQ_ROOT=DIR     another RabbitMQ, in a root folder, as root: debootstrap testing DIR, mount its proc,
#                         then chroot DIR apt-get install rabbitmq-server
#   LAVINMQ="command"     LavinMQ; it is measured with its defaults and with tcp_nodelay
#   NATS=nats-server      for reference; "make nats" puts it into .cache/bin
#
#   BROKERS="firemq ..." SCENARIOS="transient ..."    only these
#   ENGINE=native|docker CPUS=4 MEMORY=2g             where they run
#   BROKER_CORES=0 LOAD_CORES=1                       what is pinned where; empty: not at all
#   MESSAGES=200000                                   of a backlog; if not given 100,000 a second, at most 2,000,000
#
# Reports of all runs and CSV files are in bench/results/DATE. With every broker here, "bench/run.sh 2 3" takes
# some eleven minutes.
set -eu
cd "$(dirname "$0")/.."

what=run
case ${1:-} in
growth | profile | tables)
	what=$1
	shift
	;;
esac
if [ "$what" = tables ]; then
	exec go run ./bench/compare tables "$@"
fi
if [ "${ENGINE:-}" != docker ] && [ "${BROKER_CORES-0}${LOAD_CORES-1}" != "" ]; then
	command -v taskset >/dev/null || { echo "run.sh: taskset is missing: install util-linux" >&2; exit 1; }
	[ "$(nproc)" -ge 2 ] || { echo "run.sh: two cores are needed: one for the broker, one for the load" >&2; exit 1; }
fi
[ -n "${NATS:-}" ] || [ ! -x .cache/bin/nats-server ] || export NATS=.cache/bin/nats-server
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
CGO_ENABLED=0 go build -trimpath -o "$dir/firemq" ./cmd/firemq
go build -o "$dir/compare" ./bench/compare
if [ "$what" = profile ]; then
	out=$("$dir/compare" folder)
	go build -o "$dir/profile" ./bench/profile
	"$dir/profile" -firemq "$dir/firemq" -seconds "${1:-5}" -csv "$out/profile.csv" \
		-presets "transient transient-4x4 persistent persistent-4x4 persistent-1k fanout queues latency latency-persistent drain"
else
	"$dir/compare" "$what" -firemq "$dir/firemq" -seconds "${1:-20}" -runs "${2:-3}" ${MESSAGES:+-messages "$MESSAGES"}
fi
"$dir/compare" tables
