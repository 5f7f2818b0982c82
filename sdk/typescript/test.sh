#!/usr/bin/env bash
# Runs everything about the SDK: types, build, tests, examples. Needs Node.js 20, Python 3, Chromium and a built server
# (`cargo build -p bowline`, or BOWLINE_BIN).
set -euo pipefail
cd "$(dirname "$0")"

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

# Installs a Debian package where that is allowed; elsewhere says what is missing.
need() {
    command -v "$1" >/dev/null && return
    if command -v apt-get >/dev/null && [[ "$(id -u)" == 0 ]]; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "$2" >/dev/null
        return
    fi
    fail "$1 is missing. Install it (Debian: $2), then run this again."
}

need npm npm
need python3 python3
[[ -n "${CHROMIUM:-}" ]] || need chromium chromium
export CHROMIUM="${CHROMIUM:-$(command -v chromium)}"

# A Python with nothing but websockets in it, for the Python example.
venv=../python/.venv
if ! "$venv/bin/python" -c 'import websockets' 2>/dev/null; then
    python3 -m venv "$venv" || fail 'python3 cannot make a virtual environment. Install python3-venv.'
    "$venv/bin/pip" install --quiet 'websockets>=13,<17' || fail 'websockets could not be installed with pip.'
fi

npm ci --no-audit --no-fund
npm run typecheck
npm run build
npm test
