#!/usr/bin/env bash
# Runs everything about the SDK: types, build, tests, examples. Needs Node.js 20, Python 3, Chromium and a built server
# (`cargo build -p bowline`, or BOWLINE_BIN).
set -euo pipefail
cd "$(dirname "$0")"

source ../../.ci/need.sh

need_node
need_chromium
need_packages .
# A Python with nothing but websockets in it, for the Python example.
need_venv ../python/.venv 'websockets>=13,<17'

npm run typecheck
npm run build
npm test
