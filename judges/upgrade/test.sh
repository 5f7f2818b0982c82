#!/usr/bin/env bash
# A rolling upgrade under load: builds the version before this one and replaces two nodes of it, one after the other, by this one.
# Usage: judges/upgrade/test.sh BINARY [COMMIT]; without a commit it is the parent of HEAD.
set -euo pipefail
cd "$(dirname "$0")/../.."

binary=$(realpath "$1")
target=$(realpath "${CARGO_TARGET_DIR:-target}")

# Where there is no history (an archive, a shallow clone) nodes of this very version are replaced by it: a rolling restart.
commit=$(git rev-parse --verify --quiet "${2:-HEAD^}^{commit}") || commit=

previous=$binary
if [[ -z $commit ]]; then
    printf 'the commit before this one is missing (git fetch --unshallow brings it): a rolling restart is tried instead\n'
else
    previous=$target/previous/$commit/bowline
    printf 'from %s\n' "$(git log -1 --format='%h %s' "$commit")"
fi

# A build of its own sources with the dependencies that are built already. It takes the place of the binary, which is put back.
if [[ ! -x $previous ]]; then
    sources=$(dirname "$previous")
    rm -rf "$target/previous"
    mkdir -p "$sources/src"
    git archive "$commit" | tar -x -C "$sources/src"
    cp "$binary" "$target/previous/current"
    (cd "$sources/src" && CARGO_TARGET_DIR=$target cargo build --quiet -p bowline --bin bowline)
    mv "$target/debug/bowline" "$sources/bowline"
    cp "$target/previous/current" "$target/debug/bowline"
    rm -rf "$sources/src"
fi

NODES_PREVIOUS=$previous cargo test --quiet -p bowline --test it -- --ignored --nocapture rolling_upgrade
