#!/usr/bin/env bash
# What a `tools/call` costs through the hub, directly, and through public proxies, in one run; and how long a restart of the
# backend is felt. Takes a release binary: bench/overhead/run.sh target/release/bowline [SECONDS]. Installs the proxies by itself.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:?usage: bench/overhead/run.sh BINARY [SECONDS]}")
tools=$here/../../target/bench-overhead
cd "$here"
[[ node_modules/.package-lock.json -nt package-lock.json ]] || { npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.package-lock.json; }
if [[ ! -x $tools/venv/bin/fastmcp ]]; then
    mkdir -p "$tools"
    python3 -m venv "$tools/venv"
    "$tools/venv/bin/pip" install --quiet --disable-pip-version-check fastmcp==4.1.2
fi
rustc -O --edition 2024 -o "$tools/peer" peer.rs
cargo build --quiet --release --locked --manifest-path server/Cargo.toml --target-dir "$tools/server"
PATH=$PWD/node_modules/.bin:$PATH node run.mjs "$binary" "$(realpath "$tools")" "${2:-5}"
