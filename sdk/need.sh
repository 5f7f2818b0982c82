# For the test scripts of the SDK and the console: what they need is installed where that is allowed, else it is named.

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

# Installs a Debian package; returns false where that cannot be done.
debian() {
    command -v apt-get >/dev/null && [[ "$(id -u)" == 0 ]] || return 1
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

# A program, and the Debian package that has it.
need() {
    command -v "$1" >/dev/null || debian "$2" || fail "$1 is missing. Install it (Debian: $2), then run this again."
}

need_chromium() {
    [[ -n "${CHROMIUM:-}" ]] || need chromium chromium
    export CHROMIUM="${CHROMIUM:-$(command -v chromium)}"
}

# A virtual environment in a folder. Debian's Python cannot make one without a package of its own.
need_venv() {
    need python3 python3
    python3 -m venv "$1" >/dev/null 2>&1 && return
    debian python3-venv && python3 -m venv --clear "$1" || fail 'python3 cannot make a virtual environment. Install python3-venv.'
}
