#!/bin/sh
# Deploys the shop of examples/boutique on this machine and puts it under load. `make demo` builds it and runs
# this script. `nearpath` and `nearpath-watchdog` must be in PATH. The demo uses loopback and a temporary folder,
# which it removes. DEMO_SECONDS: duration of the load (8). DEMO_KEEP=1: the shop runs until Ctrl-C.
set -eu
cd "$(dirname "$0")/.."
stack=examples/boutique/stack.yml
work=$(mktemp -d "${TMPDIR:-/tmp}/nearpath-demo.XXXXXX")
log=$work/up.log
up=

stop() {
  trap - EXIT INT TERM
  if [ -n "$up" ]; then
    kill -TERM "$up" 2>/dev/null || true
    wait "$up" || true
  fi
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

# Prints the error with the related logs, and exits.
fail() {
  echo "demo: $1" >&2
  if kill -0 "$up" 2>/dev/null; then
    nearpath ls >&2 || true
    for name in ${2:-}; do
      echo "--- nearpath logs $name (last lines)" >&2
      timeout 10 nearpath logs "$name" --tail 20 >&2 || true
    done
  fi
  echo "--- nearpath up (last lines)" >&2
  tail -n 40 "$log" >&2
  echo "--- \`nearpath doctor\` checks this machine" >&2
  exit 1
}

# Two free ports.
ports=$(python3 - <<'PYTHON'
import socket
probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(probe.getsockname()[1] for probe in probes))
PYTHON
)
listen=127.0.0.1:${ports% *} admin=127.0.0.1:${ports#* }
export OPENFAAS_URL="http://$listen"

echo "== nearpath up: controller, node and gateway in one process, on $listen"
nearpath up --data-dir "$work/data" --listen "$listen" --admin-listen "$admin" --insecure >"$log" 2>&1 &
up=$!
tries=0
until python3 -c "import urllib.request; urllib.request.urlopen('http://$admin/healthz', timeout=2)" 2>/dev/null; do
  kill -0 "$up" 2>/dev/null || fail "nearpath up exited"
  tries=$((tries + 1))
  [ "$tries" -lt 200 ] || fail "nearpath up is not ready"
  sleep 0.05
done

echo "== nearpath deploy -f $stack"
nearpath deploy -f "$stack" || fail "some functions are not ready"

seconds=${DEMO_SECONDS:-8}
echo
echo "== load on the shop for $seconds seconds"
examples/boutique/load.py --url "$OPENFAAS_URL/function/frontend" \
  --users 8 --wait-min 0.05 --wait-max 0.25 --duration "$seconds" || fail "requests failed" "frontend checkout"

echo
echo "== calls of each function"
nearpath ls
cat <<TEXT

To continue, run \`make up\` in one terminal (or DEMO_KEEP=1 make demo), and in another:
  nearpath deploy -f $stack
  nearpath ls                                    list functions
  nearpath describe frontend                     show instances and their start times by phase
  nearpath logs -f email                         follow a log
  nearpath invoke currency -X GET --path /supported
  curl http://127.0.0.1:8080/function/frontend/product/OLJCESPC7Z
  curl http://127.0.0.1:8082/metrics             calls, status codes and latencies per function
TEXT

if [ -n "${DEMO_KEEP:-}" ]; then
  echo
  echo "The shop runs until Ctrl-C: export OPENFAAS_URL=$OPENFAAS_URL; metrics: http://$admin/metrics"
  wait "$up" || true
fi
