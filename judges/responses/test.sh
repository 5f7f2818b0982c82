#!/usr/bin/env bash
# Lets the official openai packages of npm and PyPI judge a server: ./test.sh BINARY. Installs what is locked.
set -euo pipefail

source "$(dirname "$0")/../../.ci/need.sh"

[[ $# -ge 1 ]] || fail 'say which server to judge: ./test.sh ../../target/debug/bowline'
[[ -x "$1" ]] || fail "$1 is not a program. Build it first: cargo build -p bowline"
binary=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
tools=${JUDGES_DIR:-$here/../../target/judges}/responses
cd "$here"
need_node
need_packages .
need_venv "$tools" -r requirements.txt

JUDGES_BINARY=$binary JUDGES_PYTHON=$(realpath -s "$tools")/bin/python \
    exec node --test --test-concurrency=1 --test-timeout=120000 --test-reporter=spec test/*.test.mjs
