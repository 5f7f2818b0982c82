#!/usr/bin/env bash
# Runs everything about the console: types, whether the committed build is what the sources give, and the page in a real browser.
# Needs what sdk/typescript/test.sh needs; the console is built from the SDK's sources.
set -euo pipefail
cd "$(dirname "$0")"

source ../.ci/need.sh

need_node
need_chromium
need_packages ../sdk/typescript
need_packages .

npm run typecheck

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
npx vite build --outDir "$fresh" --emptyOutDir --logLevel warn
diff -r "$fresh" dist >/dev/null || fail 'console/dist is not what the sources give. Run npm run build in console/ and commit it.'

npm test

# The pictures can be made, of every page; how the curves look is not for a test.
PICTURES_ALL=1 PICTURES_CURVE_SECONDS=4 ./pictures.sh "$fresh/pictures"
