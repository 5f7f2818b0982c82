#!/usr/bin/env bash
# The MCP hub before judges that are not ours. With MCP_CONFORMANCE_BACKEND=URL, a server that itself passes the official
# conformance suite, the suite is run through the hub as well: both revisions, and the crossed eras against their baselines.
set -euo pipefail
binary=$(realpath "$1")
cd "$(dirname "$0")"
[[ node_modules/.package-lock.json -nt package-lock.json ]] || npm ci --no-audit --no-fund --loglevel=error
export PATH=$PWD/node_modules/.bin:$PATH

node sdk.mjs "$binary"

[[ -n "${MCP_CONFORMANCE_BACKEND:-}" ]] || exit 0
dir=$(mktemp -d)
trap 'kill "$server" 2>/dev/null; rm -rf "$dir"' EXIT
cat >"$dir/mcp.json" <<JSON
{"mcpServers": {
  "same": {"url": "$MCP_CONFORMANCE_BACKEND"},
  "legacy": {"url": "$MCP_CONFORMANCE_BACKEND", "era": "legacy"},
  "modern": {"url": "$MCP_CONFORMANCE_BACKEND", "era": "modern"}
}}
JSON
BOWLINE_HUB__SERVERS_FILE=$dir/mcp.json "$binary" serve --listen 127.0.0.1:0 --store memory: >"$dir/out" 2>/dev/null &
server=$!
until address=$(grep -o 'http://[0-9.:]*' "$dir/out"); do kill -0 "$server"; sleep 0.1; done
suite() {
    node node_modules/@modelcontextprotocol/conformance/dist/index.js server --url "$address/mcp/$1" --requirements "$2" "${@:3}"
}
suite same 2025-11-25
suite same 2026-07-28
suite legacy 2026-07-28 --expected-failures crossed-legacy-backend.yml
suite modern 2025-11-25 --expected-failures crossed-modern-backend.yml
