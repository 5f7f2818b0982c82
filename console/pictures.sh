#!/usr/bin/env bash
# Makes the pictures of docs/pictures, or of the folder that is given: the pages in a real browser, in front of a real server with real
# work. PICTURES_ALL=1 makes more than the documents show. Needs a built server (`cargo build -p bowline`, or BOWLINE_BIN).
set -euo pipefail
cd "$(dirname "$0")"

source ../.ci/need.sh

need_node
need_chromium
need_packages ../sdk/typescript
need_packages .
folder=${1:-../docs/pictures}
mkdir -p "$folder"
PICTURES=$(realpath "$folder") npx vitest run --config vitest.pictures.ts
