#!/usr/bin/env bash
# Arenas on a machine with several NUMA nodes, one of them without CPUs, one plugged in after boot:
# an emulated machine, so that any computer can run this.
#
#   tests/numa_vm/run.sh WORK_DIR [x86_64|aarch64]
#
# Needs qemu-system, cpio, a C compiler for the architecture, and in WORK_DIR what fetch.sh puts
# there; exits 77 and says what is missing otherwise.  Exits 0 if all checks passed.
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 ]]; then
    echo "usage: run.sh WORK_DIR [x86_64|aarch64]" >&2
    exit 2
fi
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
arch=${2:-x86_64}

skip() {
    echo "SKIPPED: $*"
    exit 77
}

case $arch in
x86_64)
    machine=(-machine q35 -cpu max)
    # Memory for a slot is plugged in at boot but stays offline until the program asks for it.
    plugged=(-object "memory-backend-ram,id=p0,size=256M"
        -device "pc-dimm,id=d0,memdev=p0,node=3")
    plugged_node=(-numa "node,nodeid=3")
    console=ttyS0
    ;;
aarch64)
    machine=(-machine virt -cpu cortex-a72)
    plugged=() # needs ACPI
    plugged_node=()
    console=ttyAMA0
    ;;
*)
    echo "run.sh: no machine for $arch" >&2
    exit 2
    ;;
esac

compiler=${arch}-linux-gnu-gcc
kernel=${LS_VM_KERNEL:-$work/vmlinuz-$arch}
for tool in "qemu-system-$arch" cpio "$compiler"; do
    command -v "$tool" >/dev/null || skip "no $tool"
done
[[ -r $kernel ]] || skip "no kernel at $kernel (tests/numa_vm/fetch.sh $work $arch fetches one)"
[[ -r $work/numa-$arch/lib/libnuma.a ]] ||
    skip "no libnuma in $work/numa-$arch (tests/numa_vm/fetch.sh $work $arch fetches it)"

root=$work/root-$arch
rm -rf "$root"
mkdir -p "$root"
"$compiler" -std=c11 -O1 -g -static -fopenmp -Wall -Wextra -Werror \
    -D_POSIX_C_SOURCE=200809L -DLS_HAVE_NUMA=1 \
    -I"$source_dir/topology" -I"$source_dir/src/base" -isystem "$work/numa-$arch/include" \
    "$source_dir"/tests/numa_vm/init.c "$source_dir"/topology/arena*.c \
    "$source_dir"/topology/{host_memory,sysfs_text}.c "$source_dir"/src/base/status.c \
    -L"$work/numa-$arch/lib" -lnuma -o "$root/init"
(cd "$root" && echo init | cpio --quiet -o -H newc) >"$work/initramfs-$arch"

log=$work/console-$arch.log
timeout "${LS_VM_SECONDS:-600}" "qemu-system-$arch" "${machine[@]}" -accel tcg -smp 2 \
    -m 1536M,slots=2,maxmem=4G -nodefaults -no-user-config -no-reboot -display none \
    -serial "file:$log" \
    -object memory-backend-ram,id=m0,size=512M -numa node,nodeid=0,cpus=0,memdev=m0 \
    -object memory-backend-ram,id=m1,size=512M -numa node,nodeid=1,cpus=1,memdev=m1 \
    -object memory-backend-ram,id=m2,size=512M -numa node,nodeid=2,memdev=m2 \
    "${plugged_node[@]}" "${plugged[@]}" \
    -kernel "$kernel" -initrd "$work/initramfs-$arch" \
    -append "console=$console quiet panic=-1 swiotlb=noforce" </dev/null ||
    echo "qemu-system-$arch ended with status $?"
tr -d '\r' <"$log" | grep -aE '^(kernel|node [0-9]|ok|FAILED|skipped|numa_vm:|        )' || true
if ! tr -d '\r' <"$log" | grep -aq '^numa_vm: passed'; then
    echo "FAILED; the machine's console is $log"
    exit 1
fi
