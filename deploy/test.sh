#!/usr/bin/env bash
# Lets real tools read what is in this folder: HAProxy, systemd, the schemas of Kubernetes and of Compose, and the server itself.
# Takes the server's binary. What the two nodes behind HAProxy do is tried by crates/bowline/tests/it/deploy.rs.
#
#   deploy/test.sh target/debug/bowline
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:?usage: deploy/test.sh BINARY}")
tools=${JUDGES_DIR:-$here/../target/judges}/deploy
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

source "$here/../.ci/need.sh"

need haproxy systemd-analyze=systemd
# Schemas that were published as packages, at the versions they were tried with. Of Compose, only its copy of the schema is needed.
need_venv "$tools" kubernetes-validate==1.37.0 pyyaml jsonschema
[[ -n "$(find "$tools" -name compose_spec.json)" ]] ||
    "$tools/bin/pip" install --quiet --disable-pip-version-check --no-deps docker-compose==1.29.2

for nodes in 127.0.0.1:1,127.0.0.1:2 bowline-a:8080,bowline-b:8080; do
    # Names that are not there yet are a warning, and not a reason not to start.
    BIND=127.0.0.1:8080 NODE_A=${nodes%,*} NODE_B=${nodes#*,} haproxy -c -f "$here/haproxy.cfg" 2>"$dir/said" ||
        fail "HAProxy does not take haproxy.cfg: $(cat "$dir/said")"
done

# The unit as it is, but for the programs, which are not where it expects them.
sed "s|/usr/local/bin/bowline|$binary|" "$here/bowline.service" >"$dir/bowline.service"
said=$(systemd-analyze verify "$dir/bowline.service" 2>&1) || fail "systemd does not take bowline.service: $said"
[[ -z $said ]] || fail "systemd says of bowline.service: $said"

"$tools/bin/kubernetes-validate" --strict "$here"/kubernetes/*.yaml
schema=$(find "$tools" -name compose_spec.json)
"$tools/bin/python" "$here/compose_check.py" "$schema" "$here/compose.yaml"

# The settings, and the same ones inside the manifest.
export BOWLINE_STORE__URL=redis://:secret@redis:6379 APP_TOKEN=app-token-for-this-test OPERATOR_TOKEN=operator-token-for-this-test
STATE_KEY=k1:$(head -c 32 /dev/urandom | base64)
export STATE_KEY
"$tools/bin/python" - "$here/kubernetes/bowline.yaml" >"$dir/bowline.toml" <<'PYTHON'
import sys, yaml
with open(sys.argv[1]) as text:
    settings = next(part for part in yaml.safe_load_all(text) if part["kind"] == "ConfigMap")
print(settings["data"]["bowline.toml"], end="")
PYTHON
"$binary" config check --config "$here/bowline.toml"
"$binary" config check --config "$dir/bowline.toml"
diff <(grep -v '^#' "$here/bowline.toml") "$dir/bowline.toml" || fail 'bowline.toml and its copy in kubernetes/bowline.yaml differ'
printf 'deploy: all is well\n'
