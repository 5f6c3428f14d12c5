# shellcheck shell=bash
# Sourced by the other scripts: install the Debian or Ubuntu packages that they need.

# True if this package, of whatever architecture, is installed.
package_installed() {
    dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed
}

# require_packages NAME...: installs those that are missing, after printing them.  Asks nothing.
# Without root and without a sudo that needs no password it prints the command and exits 1.
require_packages() {
    local name
    local -a missing=() root=()
    if ! command -v dpkg-query apt-get >/dev/null; then
        echo "not a Debian or Ubuntu system: please have the equivalents of: $*" >&2
        return 0
    fi
    for name in "$@"; do
        package_installed "$name" || missing+=("$name")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    echo "packages to install: ${missing[*]}"
    if [[ $(id -u) -ne 0 ]]; then
        if ! sudo -n true 2>/dev/null; then
            echo "this needs root; please run, then start again:" >&2
            echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends" \
                "${missing[*]}" >&2
            exit 1
        fi
        root=(sudo -n)
    fi
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
}

# require_architecture NAME: lets dpkg install packages of this other architecture too.  Status 1,
# after saying why and with the system as it was, where the package sources have none of it.
require_architecture() {
    local -a root=()
    if dpkg --print-foreign-architectures | grep -qx "$1" || dpkg --print-architecture | grep -qx "$1"
    then
        return 0
    fi
    if [[ $(id -u) -ne 0 ]]; then
        if ! sudo -n true 2>/dev/null; then
            echo "this needs root; please run, then start again: sudo dpkg --add-architecture $1" >&2
            exit 1
        fi
        root=(sudo -n)
    fi
    "${root[@]}" dpkg --add-architecture "$1"
    if "${root[@]}" apt-get update -qq && [[ -n $(apt-cache madison "libc6:$1") ]]; then
        return 0
    fi
    "${root[@]}" dpkg --remove-architecture "$1"
    "${root[@]}" apt-get update -qq
    echo "the package sources of this system have nothing for $1 (Ubuntu keeps it on another" \
        "server, to be added by hand)" >&2
    return 1
}

# cudnn_frontend FOLDER: has pip put the headers of cuDNN's frontend there, and prints where they are;
# prints nothing if it cannot.
cudnn_frontend() {
    [[ -e $1/include/cudnn_frontend.h ]] ||
        python3 -m pip install --quiet --no-deps --target "$1" nvidia-cudnn-frontend==1.32.0 >&2 || true
    [[ ! -e $1/include/cudnn_frontend.h ]] || (cd "$1/include" && pwd)
}

# What a build of the longspan binary needs, its optional parts included.
# shellcheck disable=SC2034  # used by those who source this
build_packages=(gcc libc6-dev cmake ninja-build pkg-config libyaml-dev libcjson-dev libdnnl-dev
    libhwloc-dev libnuma-dev)

# What the cross-build for aarch64 needs besides, and to run it.
# shellcheck disable=SC2034
aarch64_packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libgomp1:arm64
    libyaml-dev:arm64 libcjson-dev:arm64 libhwloc-dev:arm64 libnuma-dev:arm64 libcmocka-dev:arm64)
# The same for the emulation of CUDA, where there are CUDA's headers.
# shellcheck disable=SC2034
aarch64_emulation_packages=(g++-aarch64-linux-gnu libstdc++6:arm64)
