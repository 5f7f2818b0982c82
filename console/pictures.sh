#!/usr/bin/env bash
# Makes the pictures of docs/pictures, or of the folder that is given: the pages in a real browser, in front of a real server with real
# work. Needs what sdk/typescript/test.sh needs, and a built server (`cargo build -p bowline`, or BOWLINE_BIN).
set -euo pipefail
cd "$(dirname "$0")"

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

# Installs a Debian package where that is allowed; elsewhere says what is missing.
need() {
    command -v "$1" >/dev/null && return
    if command -v apt-get >/dev/null && [[ "$(id -u)" == 0 ]]; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "$2" >/dev/null
        return
    fi
    fail "$1 is missing. Install it (Debian: $2), then run this again."
}

need npm npm
[[ -n "${CHROMIUM:-}" ]] || need chromium chromium
export CHROMIUM="${CHROMIUM:-$(command -v chromium)}"
for folder in ../sdk/typescript .; do
    [[ -d $folder/node_modules ]] || (cd "$folder" && npm ci --no-audit --no-fund)
done
folder=${1:-../docs/pictures}
mkdir -p "$folder"
PICTURES=$(realpath "$folder") npx vitest run --config vitest.pictures.ts
