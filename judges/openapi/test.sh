#!/usr/bin/env bash
# Lets schemathesis judge a live server by its own /openapi.json: what it answers must be what the document says, whatever it is
# asked. Takes the binary; needs Python 3.10 or later. Ends in about a minute.
#
#   judges/openapi/test.sh target/debug/bowline [ARGUMENTS OF schemathesis run]
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:?usage: judges/openapi/test.sh BINARY [ARGUMENTS]}")
shift
tools=${BOWLINE_JUDGES:-$here/../../target/judges}/openapi
dir=$(mktemp -d)
server=

finish() {
    [[ -z $server ]] || kill "$server" 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

# A virtual environment of its own, made anew when what it should hold changes.
need_schemathesis() {
    local wanted
    wanted=$(cat "$here/requirements.txt" "$here/constraints.txt")
    [[ -x $tools/bin/schemathesis && -f $tools/holds && "$(cat "$tools/holds")" == "$wanted" ]] && return
    if ! python3 -m venv --help >/dev/null 2>&1 || ! python3 -m ensurepip --version >/dev/null 2>&1; then
        if command -v apt-get >/dev/null && [[ "$(id -u)" == 0 ]]; then
            apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv
        else
            fail 'python3 with venv is missing. Install Python 3.10 or later, then try again.'
        fi
    fi
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" -c "$here/constraints.txt"
    printf '%s\n' "$wanted" >"$tools/holds"
}

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

need_schemathesis
start_server
cd "$dir"
verdict=0
PYTHONDONTWRITEBYTECODE=1 SCHEMATHESIS_HOOKS="$here/hooks.py" "$tools/bin/schemathesis" --config-file "$here/schemathesis.toml" run "$address/openapi.json" \
    --auth-wfc "$here/people.yaml" "$@" || verdict=$?
kill -0 "$server" 2>/dev/null || fail "the server died: $(tail -n 50 "$dir/err")"
if grep -i 'panicked' "$dir/out" "$dir/err"; then
    fail 'the server panicked'
fi
exit "$verdict"
