#!/usr/bin/env bash
# Lets the real clients judge a server: ./test.sh BINARY [FILE…]. Installs what is locked, and fails if a part is missing.
set -euo pipefail

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

[[ $# -ge 1 ]] || fail 'say which server to judge: ./test.sh ../../target/debug/bowline'
[[ -x "$1" ]] || fail "$1 is not a program. Build it first: cargo build -p bowline"
binary=$(realpath "$1")
shift
files=()
for file in "$@"; do files+=("$(realpath "$file")"); done
cd "$(dirname "$0")"
command -v node >/dev/null || fail 'node is missing. Install Node.js 20 or later.'
command -v npm >/dev/null || fail 'npm is missing. Install it beside Node.js.'
major=$(node -p 'process.versions.node.split(".")[0]')
[[ "$major" -ge 20 ]] || fail "Node.js $major is too old. Install 20 or later."

# npm writes its own copy of the lock file last, so an installation that was cut is never newer.
if [[ ! node_modules/.package-lock.json -nt package-lock.json ]]; then
    printf '== installing the clients\n'
    npm ci --loglevel=error
    touch node_modules/.package-lock.json
fi

[[ ${#files[@]} -gt 0 ]] || files=(test/*.test.mjs)
printf '== %s judges of %s\n' "${#files[@]}" "$binary"
JUDGES_BINARY=$binary exec node --test --test-concurrency=1 --test-timeout=1200000 --test-reporter=spec "${files[@]}"
