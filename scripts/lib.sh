# What the scripts beside it share. To be read in by bash from the top of the repository; does nothing by itself.
# shellcheck shell=bash

# The crates of the workspace.
crates() {
    local manifest
    for manifest in timertask*/Cargo.toml examples/Cargo.toml; do
        sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n 1
    done
}

# The folder of a crate.
folder() {
    [ "$1" = timertask-examples ] && echo examples || echo "$1"
}

# The features that the crate declares, `default` apart.
features() {
    awk '/^\[/ { inside = ($0 == "[features]") } inside && /^[a-z0-9_-]+ *=/ { sub(/ *=.*/, ""); if ($0 != "default") print }' \
        "$(folder "$1")/Cargo.toml"
}

# Whether the crate goes to the registry.
published() {
    ! grep -q '^publish = false' "$(folder "$1")/Cargo.toml"
}

debian_root() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

# install PACKAGE WHAT: on Debian as root; elsewhere says what is missing.
install() {
    if ! debian_root; then
        echo "missing: $2. On Debian it is the package $1 (as root this script installs it); please install it." >&2
        return 1
    fi
    echo "installing $1 ($2)"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null || {
        echo "could not install $1 ($2)" >&2
        return 1
    }
}

# What every step needs.
require_tools() {
    local bad=0 tool least have
    least=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
        echo "missing: Rust $least or newer. Debian's own is too old; install the stable toolchain with rustup." >&2
        return 1
    fi
    have=$(rustc --version | awk '{print $2}')
    if [ "$(printf '%s\n' "$least" "$have" | sort -V | head -n 1)" != "$least" ]; then
        echo "too old: rustc $have; $least or newer is needed (rustup update stable)" >&2
        bad=1
    fi
    for tool in rustfmt clippy; do
        cargo "${tool/rustfmt/fmt}" --version >/dev/null 2>&1 || {
            echo "missing: $tool (rustup component add $tool)" >&2
            bad=1
        }
    done
    command -v cc >/dev/null || install build-essential "a C compiler, for the SQLite that is built in" || bad=1
    return $bad
}

# Only once the Redis crate has tests; they start servers of their own.
need_redis_server() {
    [ -d timertask-redis/tests ] || return 0
    command -v redis-server >/dev/null || install redis-server "the server that the tests of timertask-redis start"
}
