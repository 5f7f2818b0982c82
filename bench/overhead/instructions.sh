#!/usr/bin/env bash
# How many instructions the hub runs for one `tools/call`, counted by valgrind, which a busy machine does not change.
# Takes a release binary: bench/overhead/instructions.sh target/release/bowline [FOLDER], where the profiles are left for callgrind_annotate.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:?usage: bench/overhead/instructions.sh BINARY [FOLDER]}")
tools=$here/../../target/bench-overhead
profiles=${2:-$(mktemp -d)}
calls=2000
mkdir -p "$tools" "$profiles"
rustc -O --edition 2024 -o "$tools/peer" "$here/peer.rs"
cargo build --quiet --release --locked --manifest-path "$here/server/Cargo.toml" --target-dir "$tools/server"

started=()
trap 'for one in "${started[@]}"; do kill "$one" 2>/dev/null || true; done' EXIT
port_of() { # LOG: waits for the port at which a program says that it listens
    for _ in $(seq 600); do
        grep -oE '(listening|serving) at \S+:[0-9]+' "$1" | grep -oE '[0-9]+$' && return
        sleep 0.1
    done
    return 1
}
"$tools/peer" backend 0 >"$profiles/loop.log" & started+=($!)
"$tools/server/release/backend" 0 >"$profiles/rmcp.log" & started+=($!)
servers=$profiles/mcp.json
cat >"$servers" <<END
{ "mcpServers": {
    "loop": { "url": "http://127.0.0.1:$(port_of "$profiles/loop.log")/mcp" },
    "rmcp": { "url": "http://127.0.0.1:$(port_of "$profiles/rmcp.log")/mcp" },
    "program": { "command": "$tools/peer", "args": ["stdio"] } } }
END
BOWLINE_HUB__SERVERS_FILE=$servers BOWLINE_LOG__LEVEL=warn "$tools/peer" under-valgrind valgrind --quiet --tool=callgrind --callgrind-out-file="$profiles/profile" \
    "$binary" serve --listen 127.0.0.1:0 --store memory: >"$profiles/hub.log" 2>&1 & hub=$!
started+=("$hub")
port=$(port_of "$profiles/hub.log")

echo "| behind the hub | instructions for each call |"
echo "|---|---|"
for server in loop rmcp program; do
    url=http://127.0.0.1:$port/mcp/$server
    "$tools/peer" calls "$url" 300
    callgrind_control --zero "$hub" >/dev/null 2>&1
    "$tools/peer" calls "$url" $calls
    callgrind_control --dump="$server" "$hub" >/dev/null 2>&1
    profile=$(grep -lE "^desc: Trigger: .*$server" "$profiles"/profile.* | tail -1)
    total=$(sed -nE 's/^(totals|summary): ([0-9]+).*/\2/p' "$profile" | tail -1)
    mv "$profile" "$profiles/$server.callgrind"
    echo "| $server | $((total / calls)) |"
done
