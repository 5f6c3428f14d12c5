#!/usr/bin/env bash
# Fetch what run.sh needs and a package manager has: a kernel and libnuma, of either architecture,
# from the sources that this machine's apt is set up for.  Installs nothing; downloads some 30 MB.
#
#   tests/numa_vm/fetch.sh DIR [x86_64|aarch64]
#
# Leaves DIR/vmlinuz-ARCH and DIR/numa-ARCH/{include,lib}.
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 ]]; then
    echo "usage: fetch.sh DIR [x86_64|aarch64]" >&2
    exit 2
fi
mkdir -p "$1"
dir=$(cd "$1" && pwd)
arch=${2:-x86_64}
case $arch in
x86_64) deb_arch=amd64 ;;
aarch64) deb_arch=arm64 ;;
*)
    echo "fetch.sh: no kernel for $arch" >&2
    exit 2
    ;;
esac

# apt with lists of its own, so that another architecture needs no change to this system.
apt_dir=$dir/apt-$arch
mkdir -p "$apt_dir/lists/partial" "$apt_dir/cache/archives/partial" "$apt_dir/debs"
options=(-qq -o "APT::Architecture=$deb_arch" -o "APT::Architectures::=$deb_arch"
    -o "Dir::State::Lists=$apt_dir/lists" -o "Dir::Cache=$apt_dir/cache"
    -o Dir::State::status=/dev/null -o APT::Sandbox::User=root -o Acquire::Languages=none)
apt-get "${options[@]}" update
kernel=$(apt-cache "${options[@]}" depends "linux-image-cloud-$deb_arch" |
    awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')
if [[ -z $kernel ]]; then
    echo "fetch.sh: apt knows no package linux-image-cloud-$deb_arch" >&2
    exit 1
fi
(cd "$apt_dir/debs" && apt-get "${options[@]}" download "$kernel" libnuma-dev)
for deb in "$apt_dir"/debs/*.deb; do dpkg-deb -x "$deb" "$apt_dir/root"; done
cp "$apt_dir"/root/boot/vmlinuz-* "$dir/vmlinuz-$arch"
mkdir -p "$dir/numa-$arch/include" "$dir/numa-$arch/lib"
cp "$apt_dir"/root/usr/include/numa*.h "$dir/numa-$arch/include/"
cp "$apt_dir"/root/usr/lib/*/libnuma.a "$dir/numa-$arch/lib/"
rm -rf "$apt_dir"
echo "$dir/vmlinuz-$arch: $kernel"
