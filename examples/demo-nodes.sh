#!/bin/sh
# Runs the shop of examples/boutique on three machines: network namespaces with one node each. Under load, one
# node is killed and comes back. At the end it prints the paths of each edge, and the failures. `make demo-nodes`
# builds it and runs this script as root. `nearpath` and `nearpath-watchdog` must be in PATH. It uses a temporary
# folder and namespaces called `npdemo-…`, which it removes. DEMO_SECONDS: duration of the load (15).
set -eu
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "demo: root is necessary for network namespaces" >&2; exit 1; }
# Not in /tmp, which functions have for themselves.
work=$(mktemp -d /var/tmp/nearpath-demo-nodes.XXXXXX)
network=npdemo-$$
bridge=npd$(($$ % 100000))
pid_a='' pid_b='' pid_c=''

stop() {
  trap - EXIT INT TERM
  for pid in $pid_a $pid_b $pid_c; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in $pid_a $pid_b $pid_c; do wait "$pid" 2>/dev/null || true; done
  for name in a b c switch; do ip netns delete "$network-$name" 2>/dev/null || true; done
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

fail() {
  echo "demo: $1" >&2
  for name in a b c; do
    echo "--- node $name (last lines)" >&2
    tail -n 20 "$work/$name.log" >&2 || true
  done
  exit 1
}

address() {
  case $1 in a) echo 10.78.0.1 ;; b) echo 10.78.0.2 ;; c) echo 10.78.0.3 ;; esac
}

# Creates a namespace with an address behind the bridge, which is in a namespace, too.
machine() {
  ip netns add "$network-$1"
  ip -n "$network-$1" link set lo up
  ip -n "$network-switch" link add "$bridge$1" type veth peer name eth0 netns "$network-$1"
  ip -n "$network-switch" link set "$bridge$1" master "$bridge" up
  ip -n "$network-$1" address add "$(address "$1")/24" dev eth0
  ip -n "$network-$1" link set eth0 up
  # Instances may use addresses outside; nothing answers there.
  ip -n "$network-$1" route add default via 10.78.0.254
}

# Starts node $1, and sets pid_$1.
start() {
  ip netns exec "$network-$1" nearpath node --name "$1" --source "$work/app" --data-dir "$work/data-$1" \
    --node-certificates "$work/ca/nodes/$1" --access-log "$work/access-$1-$(date +%s)" \
    --listen 0.0.0.0:8080 --admin-listen 0.0.0.0:8082 >>"$work/$1.log" 2>&1 &
  eval "pid_$1=$!"
}

# Reads a metric of node $1.
metrics() {
  ip netns exec "$network-switch" python3 - "http://$(address "$1"):8082/metrics" <<'PYTHON'
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=2).read().decode())
PYTHON
}

# Waits until node $1 knows $2 others.
await_peers() {
  tries=0
  until [ "$(metrics "$1" 2>/dev/null | grep -c '^nearpath_peer_up{.*} 1.0$')" = "$2" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 150 ] || fail "node $1 does not know $2 others"
    sleep 0.2
  done
}

echo "== three machines: namespaces $network-a, -b and -c, with certificates of \`nearpath ca\`"
ip netns add "$network-switch"
ip -n "$network-switch" link add "$bridge" type bridge
ip -n "$network-switch" address add 10.78.0.254/24 dev "$bridge"
ip -n "$network-switch" link set "$bridge" up
for name in a b c; do machine "$name"; done
nearpath ca init --dir "$work/ca" >/dev/null
nearpath ca issue --dir "$work/ca" a b c >/dev/null

echo "== one folder for all: the shop, with the nodes of each function"
mkdir "$work/app"
cp -r examples/boutique/services "$work/app/services"
python3 examples/demo_nodes.py place examples/boutique/stack.yml "$work/app/stack.yml"
cat >"$work/app/nodes.yml" <<YAML
nodes:
  a: {address: 10.78.0.1}
  b: {address: 10.78.0.2}
  c: {address: 10.78.0.3}
YAML
for name in a b c; do start "$name"; done
for name in a b c; do await_peers "$name" 2; done
echo "== waiting until the shop answers at node a"
tries=0
until ip netns exec "$network-switch" python3 examples/demo_nodes.py check "http://10.78.0.1:8080/function/frontend"; do
  tries=$((tries + 1))
  [ "$tries" -lt 60 ] || fail "the shop does not answer"
  sleep 0.5
done

seconds=${DEMO_SECONDS:-15}
echo "== load on the shop for $seconds seconds; node b is killed after a third of it, and comes back after two"
ip netns exec "$network-switch" python3 examples/boutique/load.py --url http://10.78.0.1:8080/function/frontend \
  --users 8 --wait-min 0.05 --wait-max 0.25 --duration "$seconds" >"$work/load.txt" 2>&1 &
load=$!
sleep $((seconds / 3))
echo "   kill -9 of node b"
kill -KILL "$pid_b"
wait "$pid_b" 2>/dev/null || true
await_peers a 1
echo "   node a has noticed it: no calls go there"
sleep $((seconds / 3))
start b
await_peers a 2
echo "   node b is back"
failed=0
wait "$load" || failed=$?
echo
cat "$work/load.txt"
for name in a b c; do
  eval "pid=\$pid_$name"
  kill -TERM "$pid" && { wait "$pid" || true; }
  eval "pid_$name="
done
echo
python3 examples/demo_nodes.py table "$work" 10.78.0.1 10.78.0.2 10.78.0.3
[ "$failed" = 0 ] || echo "Requests that were inside node b failed; all others did not."
