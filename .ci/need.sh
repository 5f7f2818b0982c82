# For the scripts that run tests: what they need is installed where that is allowed, on Debian as root; elsewhere it is named.

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

# Programs, each as PROGRAM or as PROGRAM=PACKAGE where Debian's package has another name.
need() {
    local missing=() item
    for item in "$@"; do
        command -v "${item%%=*}" >/dev/null || missing+=("${item##*=}")
    done
    ((${#missing[@]} == 0)) || debian "${missing[@]}" || fail "missing: ${missing[*]}. Install that, then run this again."
}

# Installs packages; returns false where that cannot be done.
debian() {
    command -v apt-get >/dev/null && [[ "$(id -u)" == 0 ]] || return 1
    printf 'installing %s\n' "$*"
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# On a person's machine a missing component of Rust is installed; under CI=true it is a fault of the image, and fails.
need_component() {
    local component=$1
    cargo "$2" --version >/dev/null 2>&1 && return
    [[ "${CI:-}" != true ]] || fail "$component is missing. Add it to the CI image."
    command -v rustup >/dev/null || fail "$component is missing, and so is rustup. Install Rust from https://rustup.rs."
    rustup component add "$component"
}

# Node.js 20 or later. Where it is older (Debian 12 has 18), npm brings one for the tests alone, into the target folder of this repository.
need_node() {
    need node=nodejs npm
    local major own
    major=$(node -p 'process.versions.node.split(".")[0]')
    ((major >= 20)) && return
    own=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/target/node
    [[ -x $own/node_modules/node/bin/node ]] || npm install --prefix "$own" --no-audit --no-fund --loglevel=error node@22
    export PATH=$own/node_modules/node/bin:$PATH
}

# Installs what the lock file of a folder names, unless that is done. npm writes its own copy of the lock file last, so an installation
# that was cut is never newer.
need_packages() {
    [[ $1/node_modules/.package-lock.json -nt $1/package-lock.json ]] && return
    (cd "$1" && npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.package-lock.json)
}

need_chromium() {
    [[ -n "${CHROMIUM:-}" ]] || need chromium
    export CHROMIUM="${CHROMIUM:-$(command -v chromium)}"
}

# need_venv FOLDER ARGUMENTS OF pip install: a virtual environment, made anew when what it should hold changes: the arguments, and the
# files among them. Debian's Python cannot make one without a package of its own.
need_venv() {
    local folder=$1 wanted
    shift
    wanted=$(printf '%s\n' "$*"; for file in "$@"; do [[ ! -f $file ]] || cat "$file"; done)
    [[ -x $folder/bin/python && -f $folder/holds && "$(cat "$folder/holds")" == "$wanted" ]] && return
    need python3
    rm -rf "$folder"
    python3 -m venv "$folder" >/dev/null 2>&1 || { debian python3-venv && python3 -m venv --clear "$folder"; } ||
        fail 'python3 cannot make a virtual environment. Install Python 3.10 or later with venv, then run this again.'
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" || fail "pip could not install $*"
    printf '%s\n' "$wanted" >"$folder/holds"
}
