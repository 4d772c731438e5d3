#!/bin/sh
# The shop from nothing to a sale: starts the database, deploys the functions to a running `nearpath up`, gets a product
# photographed and sold, and prints what happened. In another terminal beforehand:
#
#   nearpath up --insecure
#
# Needs `nearpath` in PATH. OPENFAAS_URL: where it listens. Database and functions are gone afterwards; DEMO_KEEP=1 leaves them up
# until Ctrl-C. DEMO_SECONDS: how long users go through the three chains (5).
set -eu
cd "$(dirname "$0")"
export OPENFAAS_URL="${OPENFAAS_URL:-http://127.0.0.1:8080}"
work=$(mktemp -d "${TMPDIR:-/tmp}/nearpath-retail.XXXXXX")
chmod 755 "$work" # the database runs as a user of its own
functions=$(sed -n '/^functions:/,/^chains:/s/^  \([a-z-]*\):$/\1/p' stack.yml)
deployed= pause= secret=

stop() {
  trap - EXIT INT TERM
  [ -z "$pause" ] || kill "$pause" 2>/dev/null || true
  # shellcheck disable=SC2086
  [ -z "$deployed" ] || nearpath rm $functions >/dev/null 2>&1 || true
  [ -z "$secret" ] || curl -fsS -X DELETE "$OPENFAAS_URL/system/secrets" -d '{"name": "retail-password"}' >/dev/null || true
  [ ! -f "$work/database/port" ] || ./database stop "$work/database" || true
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

fail() {
  echo "demo: $1" >&2
  case $1 in *"cannot be reached"*) echo "Was it started with --no-sandbox? Then say so here, too: RETAIL_HOST=127.0.0.1 $0" >&2 ;; esac
  exit 1
}

# What a function answers, in a line; a refusal ends the demo.
show() {
  name=$1
  shift
  answer=$(nearpath invoke "$name" "$@" 2>&1) || fail "$name: $answer"
  echo "  $name: $answer"
}
post() { show "$1" -d "$2" --path "${3:-/}" -H 'Content-Type: application/json'; }
get() { show "$1" -X GET --path "$2" -d ''; }

# A field of the last answer.
field() { printf '%s' "$answer" | sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p"; }
connections() { grep 'connection authorized: user=retail' "$work/database/log" | grep -vc application_name=psql || true; }

command -v nearpath >/dev/null || fail "nearpath is not in PATH: make build, then export PATH=\"\$PWD/target/release:\$PATH\""
nearpath ls >/dev/null || fail "start it in another terminal: nearpath up --insecure"

if [ ! -d services/packages/pg8000 ]; then
  echo "== pip install --target services/packages -r requirements.txt"
  python3 -m pip install --quiet --disable-pip-version-check --no-warn-conflicts --root-user-action=ignore --target services/packages -r requirements.txt
fi

echo "== database start: PostgreSQL on loopback, in a folder of its own"
variables=$(./database start "$work/database")
eval "$variables"
echo "  $RETAIL_DATABASE, $(./database sql "$work/database" 'SELECT count(*) FROM product_catalog') products"

echo "== the secret retail-password: with it the node logs in at the database; no function sees it"
secret=created
curl -fsS -X POST "$OPENFAAS_URL/system/secrets" -d "{\"name\": \"retail-password\", \"value\": \"$RETAIL_PASSWORD\"}" >/dev/null || fail "the secret was not taken"

echo "== nearpath deploy -f stack.yml"
deployed=yes
[ -z "${RETAIL_HOST:-}" ] || export RETAIL_PASS="$RETAIL_PASSWORD" # functions without a sandbox log in by themselves
nearpath deploy -f stack.yml --timeout 120s || fail "not every function got ready"

echo "== ann adds a card and looks at the boots"
post product-purchase-add-cc '{"user": "ann", "number": "4111 1111 1111 1111", "expires": "2099-12"}'
get product-catalog-api '/products?category=boots'

echo "== the shop asks for a photo of the hiking boot: assign, message, record"
post photo-request '{"id": "boot-1", "name": "Hiking boot"}'
assignment=$(field assignment)
timeout 10 nearpath logs photo-message --tail 1 || true

echo "== the photographer sends it: receive, success, report"
post photo-acquire "{\"assignment\": \"$assignment\", \"photo\": \"aGVsbG8=\"}"
post product-catalog-builder '{"id": "boot-1", "image": "boot-1.jpg"}' /image

echo "== ann buys the boot: price, card, sale"
before=$(connections)
post product-purchase '{"id": "boot-1", "user": "ann"}'
echo "  two of its functions connected, for which the node opened $(($(connections) - before)) connections to the database, for everything so far $(connections)"

echo "== two users go through the three chains for ${DEMO_SECONDS:-5} seconds"
before=$(connections)
python3 load.py --users 2 --duration "${DEMO_SECONDS:-5}" || fail "requests failed"
echo "connections to the database meanwhile: $(($(connections) - before)), for 10 accesses a round that open one each"
nearpath pool ls

if [ -n "${DEMO_KEEP:-}" ]; then
  echo "The shop stays up until Ctrl-C. Its database: $RETAIL_DATABASE, user retail, password $RETAIL_PASSWORD"
  while :; do
    sleep 60 &
    pause=$!
    wait $pause
  done
fi
