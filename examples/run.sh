#!/usr/bin/env bash
# Runs every example against a broker on localhost, or the one at AMQP_URL and FIREMQ_URL.
# Needs Python 3, Node.js 20, Go and Rust; installs the clients into .cache/ and node_modules folders.
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent examples-deps

run() {
  echo "== $*"
  timeout 30 "$@"
}
for program in hello work_queues publish_subscribe routing topics rpc; do
  run .cache/venv/bin/python "examples/python/$program.py"
  run node "examples/javascript/$program.mjs"
  run node "examples/typescript/dist/$program.js"
  run go run "./examples/go/$program"
  run ".cache/cargo/debug/$program"
done
run go run ./examples/go/amqp_hello
