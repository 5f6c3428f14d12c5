#!/usr/bin/env bash
# Copies what `longspan topo --from DIR` reads of this machine into a new folder: small text files
# of /proc and /sys.  Host name, serial numbers, network addresses and mounted file systems are not
# among them.
#
#   scripts/snapshot_machine.sh DIR
#
# Where lstopo is installed, DIR/lstopo.xml is what it writes.  `tar czf machine.tgz DIR` makes one
# file of it, to be looked at elsewhere.
set -euo pipefail
shopt -s nullglob
export LC_ALL=C

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

case ${1-} in
-h | --help)
    usage
    exit 0
    ;;
esac
if [[ $# -ne 1 || $1 == -* || -z $1 ]]; then
    usage >&2
    exit 2
fi
out=$1
if [[ -e $out ]]; then
    echo "snapshot_machine.sh: $out is there already; want a new folder" >&2
    exit 2
fi

# put PATH TEXT: writes it below the folder.
put() {
    [[ -d $out${1%/*} ]] || mkdir -p "$out${1%/*}"
    printf '%s\n' "$2" >"$out$1"
}

# copy PATH...: those that can be read; many in /sys exist and fail.
copy() {
    local path text
    for path; do
        [[ -f $path && -r $path ]] || continue
        text=
        { IFS= read -r -d '' text <"$path"; } 2>/dev/null || [[ -n $text ]] || continue
        put "$path" "${text%$'\n'}"
    done
}

# keep PATH PATTERN: the lines that match.
keep() {
    put "$1" "$(grep -E -- "$2" "$1" || true)"
}

# words PATH PATTERN: the words that match.
words() {
    put "$1" "$(tr ' ' '\n' <"$1" | grep -E -- "$2" | tr '\n' ' ' || true)"
}

# copy_up FOLDER TOP FILE...: from a folder and all above it, to the top.
copy_up() {
    local folder=$1 top=$2 file
    shift 2
    while :; do
        for file; do copy "$folder/$file"; done
        [[ $folder != "$top" && $folder == "$top"/* ]] || break
        folder=${folder%/*}
    done
}

copy_cgroups() {
    local controllers path
    while IFS=: read -r _ controllers path; do
        path=${path%/}
        case ,$controllers, in
        ,,) copy_up "/sys/fs/cgroup$path" /sys/fs/cgroup \
            memory.max memory.high memory.current memory.stat ;;
        *,memory,*) copy_up "/sys/fs/cgroup/memory$path" /sys/fs/cgroup/memory \
            memory.limit_in_bytes memory.usage_in_bytes memory.stat ;;
        esac
    done </proc/self/cgroup
}

mkdir -p "$out"
copy /proc/cpuinfo /proc/meminfo /proc/zoneinfo /proc/self/{limits,cgroup} \
    /proc/sys/kernel/{osrelease,numa_balancing} "/boot/config-$(uname -r)"
words /proc/cmdline '^(init_on_alloc|numa_balancing|hugepages|default_hugepagesz)='
keep /proc/mounts '^(proc|sysfs|cgroup2?|cgroup) '
keep /proc/self/mountinfo ' - cgroup2? '
copy /sys/devices/system/{cpu,node}/{online,possible,present} \
    /sys/devices/system/cpu/cpu[0-9]*/{topology,cache/index*}/* \
    /sys/devices/system/cpu/cpu[0-9]*/{online,cpu_capacity,cpufreq/scaling_governor} \
    /sys/devices/system/node/node[0-9]*/{cpumap,cpulist,meminfo,distance} \
    /sys/devices/system/node/node[0-9]*/hugepages/*/*
copy /sys/kernel/mm/transparent_hugepage/* /sys/kernel/mm/hugepages/*/*
copy /sys/bus/pci/devices/*/{vendor,device,class,numa_node,local_cpus} \
    /sys/bus/pci/devices/*/{max_link_speed,current_link_speed,current_link_width}
copy /proc/driver/nvidia/{params,version} /proc/driver/nvidia/gpus/*/numa_status
for information in /proc/driver/nvidia/gpus/*/information; do
    keep "$information" '^(Model|IRQ|Bus Type|Bus Location):' # not the GPU's UUID
done
copy /sys/module/nvidia/version /sys/module/nvidia_uvm/parameters/*
copy /sys/class/hwmon/hwmon*/{,device/}power*_{oem_info,cap,cap_max} \
    /sys/class/powercap/intel-rapl:*/{name,constraint_0_power_limit_uw}
copy_cgroups
mkdir -p "$out/sys/bus/pci/devices"

for lstopo in lstopo-no-graphics lstopo; do
    command -v "$lstopo" >/dev/null || continue
    HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES=1 "$lstopo" --of xml "$out/lstopo.xml" >/dev/null 2>&1 ||
        echo "snapshot_machine.sh: $lstopo failed; $out/lstopo.xml is not there" >&2
    break
done
echo "$out: $(find "$out" -type f | wc -l) files; longspan topo --from $out"
