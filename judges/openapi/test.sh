#!/usr/bin/env bash
# Lets schemathesis judge a live server by its own /openapi.json: what it answers must be what the document says, whatever it is
# asked. Takes the binary; needs Python 3.10 or later. Ends in about a minute.
#
#   judges/openapi/test.sh target/debug/bowline [ARGUMENTS OF schemathesis run]
set -euo pipefail
source "$(dirname "$0")/../../.ci/need.sh"

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:?usage: judges/openapi/test.sh BINARY [ARGUMENTS]}")
shift
tools=${JUDGES_DIR:-$here/../../target/judges}/openapi
dir=$(mktemp -d)
server=

finish() {
    [[ -z $server ]] || kill "$server" 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT

# Three people, so that the judge can look for what one of them sees of another's. The limits are generous: being asked
# thousands of things in a minute is the point.
start_server() {
    cat >"$dir/bowline.toml" <<'TOML'
listen = "127.0.0.1:0"
[store]
url = "memory:"
[auth]
mode = "tokens"
tokens = [
    { token = "alice-secret", principal = "alice" },
    { token = "bob-secret", principal = "bob" },
    { token = "root-secret", principal = "root", admin = true },
]
[limits]
tasks_per_principal_max = 100000
TOML
    (cd "$dir" && exec "$binary" serve --config "$dir/bowline.toml") >"$dir/out" 2>"$dir/err" &
    server=$!
    for _ in $(seq 300); do
        address=$(sed -n 's|.*serving at \(http://[^ ]*[^/ ]\)/*$|\1|p' "$dir/out" | head -n 1)
        [[ -z $address ]] || return 0
        kill -0 "$server" 2>/dev/null || fail "the server did not start: $(cat "$dir/out" "$dir/err")"
        sleep 0.1
    done
    fail 'the server does not say where it serves'
}

need_venv "$tools" -r "$here/requirements.txt" -c "$here/constraints.txt"
start_server
cd "$dir"
verdict=0
judge() {
    PYTHONDONTWRITEBYTECODE=1 SCHEMATHESIS_HOOKS="$here/hooks.py" "$tools/bin/schemathesis" \
        --config-file "$here/schemathesis.toml" run "$address/openapi.json" --auth-wfc "$here/people.yaml" "$@" || verdict=1
}

# First each operation by itself; then stories, in which what one answers is what the next is asked. Sessions, tasks and responses have
# stories of their own, because together they are so many that some would never be told.
judge --phases examples,coverage,fuzzing "$@"
judge --phases stateful --include-path-regex '^/api/chat/sessions' "$@"
judge --phases stateful --include-path-regex '^/api/chat/(tasks|operations)' "$@"
judge --phases stateful --include-path-regex '^/v1/' "$@"

kill -0 "$server" 2>/dev/null || fail "the server died: $(tail -n 50 "$dir/err")"
if grep -i 'panicked' "$dir/out" "$dir/err"; then
    fail 'the server panicked'
fi
exit "$verdict"
