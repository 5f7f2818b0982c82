#!/usr/bin/env bash
# A rolling upgrade under load: builds the version before this one and replaces two nodes of it, one after the other, by this one.
# Usage: judges/upgrade/test.sh BINARY [COMMIT]; without a commit it is the parent of HEAD.
set -euo pipefail
cd "$(dirname "$0")/../.."

binary=$(realpath "$1")
target=$(realpath "${CARGO_TARGET_DIR:-target}")

skip() {
    # On a person's machine a tree without history is no fault; in CI it would be a check that never runs.
    printf '%s\n' "$1" >&2
    [[ "${CI:-}" != true ]] || exit 1
    exit 0
}

git rev-parse --is-inside-work-tree >/dev/null 2>&1 || skip 'no upgrade is tried: this is no git checkout.'
commit=$(git rev-parse --verify --quiet "${2:-HEAD^}^{commit}") ||
    skip 'no upgrade is tried: the commit before this one is missing. Fetch the history (git fetch --unshallow).'

# A build of its own sources with the dependencies that are built already. It takes the place of the binary, which is put back.
sources=$target/previous/$commit
if [[ ! -x $sources/bowline ]]; then
    rm -rf "$target/previous"
    mkdir -p "$sources/src"
    git archive "$commit" | tar -x -C "$sources/src"
    cp "$binary" "$target/previous/current"
    (cd "$sources/src" && CARGO_TARGET_DIR=$target cargo build --quiet -p bowline --bin bowline)
    mv "$target/debug/bowline" "$sources/bowline"
    cp "$target/previous/current" "$target/debug/bowline"
    rm -rf "$sources/src"
fi

printf 'from %s\n' "$(git log -1 --format='%h %s' "$commit")"
NODES_PREVIOUS=$sources/bowline cargo test --quiet -p bowline --test nodes_faults -- --nocapture rolling_upgrade
