#!/usr/bin/env bash
# The MCP hub before judges that are not ours: ./test.sh BINARY. Installs what is locked.
set -euo pipefail
binary=$(realpath "$1")
cd "$(dirname "$0")"
if [[ ! node_modules/.package-lock.json -nt package-lock.json ]]; then
    npm ci --no-audit --no-fund --loglevel=error
    touch node_modules/.package-lock.json
fi
# The suite needs a newer Node.js than the rest; npm brings it.
export PATH=$PWD/node_modules/.bin:$PATH

node sdk.mjs "$binary"
node conformance.mjs "$binary"
