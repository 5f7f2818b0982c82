#!/usr/bin/env bash
# Runs everything about the SDK: types, build, tests, examples. Needs Node.js 20, Python 3, Chromium and a built server
# (`cargo build -p bowline`, or BOWLINE_BIN).
set -euo pipefail
cd "$(dirname "$0")"

source ../need.sh

need npm npm
need_chromium

# A Python with nothing but websockets in it, for the Python example.
venv=../python/.venv
if ! "$venv/bin/python" -c 'import websockets' 2>/dev/null; then
    need_venv "$venv"
    "$venv/bin/pip" install --quiet 'websockets>=13,<17' || fail 'websockets could not be installed with pip.'
fi

npm ci --no-audit --no-fund
npm run typecheck
npm run build
npm test
