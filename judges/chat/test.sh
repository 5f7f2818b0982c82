#!/usr/bin/env bash
# Lets the real clients judge a server: ./test.sh BINARY [FILE…]. Installs what is locked.
set -euo pipefail

source "$(dirname "$0")/../../.ci/need.sh"

[[ $# -ge 1 ]] || fail 'say which server to judge: ./test.sh ../../target/debug/bowline'
[[ -x "$1" ]] || fail "$1 is not a program. Build it first: cargo build -p bowline"
binary=$(realpath "$1")
shift
files=()
for file in "$@"; do files+=("$(realpath "$file")"); done
cd "$(dirname "$0")"
need_node
need_packages .

[[ ${#files[@]} -gt 0 ]] || files=(test/*.test.mjs)
printf '== %s judges of %s\n' "${#files[@]}" "$binary"
JUDGES_BINARY=$binary exec node --test --test-concurrency=1 --test-timeout=1200000 --test-reporter=spec "${files[@]}"
