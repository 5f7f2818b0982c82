#!/usr/bin/env bash
# The MCP hub before judges that are not ours: ./test.sh BINARY. Installs what is locked, and fails if a part is missing.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:?usage: judges/mcp/test.sh BINARY}")
tools=${JUDGES_DIR:-$here/../../target/judges}/mcp
cd "$here"

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

# A virtual environment of its own, made anew when what it should hold changes.
need_python_packages() {
    [[ -x $tools/bin/python && -f $tools/holds ]] && cmp -s requirements.txt "$tools/holds" && return
    if ! python3 -m venv --help >/dev/null 2>&1 || ! python3 -m ensurepip --version >/dev/null 2>&1; then
        if command -v apt-get >/dev/null && [[ "$(id -u)" == 0 ]]; then
            apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv
        else
            fail 'python3 with venv is missing. Install Python 3.10 or later, then try again.'
        fi
    fi
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt
    cp requirements.txt "$tools/holds"
}

if [[ ! node_modules/.package-lock.json -nt package-lock.json ]]; then
    npm ci --no-audit --no-fund --loglevel=error
    touch node_modules/.package-lock.json
fi
need_python_packages
# The suite needs a newer Node.js than the rest; npm brings it.
export PATH=$PWD/node_modules/.bin:$PATH
# What the judges say is what matters here.
export BOWLINE_LOG__LEVEL=${BOWLINE_LOG__LEVEL:-warn}

node sdk.mjs "$binary"
node servers.mjs "$binary" "$(realpath -s "$tools")/bin/python"
node conformance.mjs "$binary"
