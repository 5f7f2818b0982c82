#!/usr/bin/env bash
# The MCP hub before judges that are not ours: ./test.sh BINARY. Installs what is locked, and fails if a part is missing.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:?usage: judges/mcp/test.sh BINARY}")
tools=${JUDGES_DIR:-$here/../../target/judges}/mcp
cd "$here"

source "$here/../../.ci/need.sh"
need_node
need_packages .
need_venv "$tools" -r requirements.txt
# The suite needs a newer Node.js than the rest; npm brings it.
export PATH=$PWD/node_modules/.bin:$PATH
# What the judges say is what matters here.
export BOWLINE_LOG__LEVEL=${BOWLINE_LOG__LEVEL:-warn}

node sdk.mjs "$binary"
node servers.mjs "$binary" "$(realpath -s "$tools")/bin/python"
node conformance.mjs "$binary"
