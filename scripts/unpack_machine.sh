#!/usr/bin/env bash
# Makes the folder of a machine that is packed in one text file, as those of tests/machines are, for
# `longspan topo --from DIR`.
#
#   scripts/unpack_machine.sh FILE.tree DIR
#
# A line is PATH = TEXT, with \n and \t in the text.  {A-B} in the path makes a file for each number;
# in the text {} is that number, {mask} a CPU mask of that one bit, {mask:A-B} one of those bits.
set -euo pipefail
export LC_ALL=C

usage() {
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

fail() {
    echo "unpack_machine.sh: $*" >&2
    exit 2
}

case ${1-} in
-h | --help)
    usage
    exit 0
    ;;
esac
if [[ $# -ne 2 || $1 == -* || -z $2 ]]; then
    usage >&2
    exit 2
fi
tree=$1
out=$2
[[ -f $tree && -r $tree ]] || fail "$tree: no such file, or it cannot be read"
[[ ! -e $out ]] || fail "$out is there already; want a new folder"

# mask FIRST LAST: sets $mask, as the kernel writes it: words of 32 bits, the highest first.
mask() {
    local first=$1 last=$2 word low high bits
    mask=
    for ((word = last / 32; word >= 0; word--)); do
        low=$((first > word * 32 ? first - word * 32 : 0))
        high=$((last < word * 32 + 31 ? last - word * 32 : 31))
        bits=$((low > high ? 0 : ((1 << (high - low + 1)) - 1) << low))
        printf -v bits %08x "$bits"
        mask+=$bits,
    done
    mask=${mask%,}
}

# expand TEXT NUMBER: sets $text.
expand() {
    text=${1//'{}'/$2}
    while [[ $text =~ \{mask(:([0-9]+)-([0-9]+))?\} ]]; do
        mask "${BASH_REMATCH[2]:-$2}" "${BASH_REMATCH[3]:-$2}"
        text=${text//"${BASH_REMATCH[0]}"/$mask}
    done
    text=${text//'\n'/$'\n'}
    text=${text//'\t'/$'\t'}
}

# All lines are read and all folders made before any file is written: a process for each of
# thousands of folders would take most of the time.
paths=()
texts=()
n_line=0
while IFS= read -r line || [[ -n $line ]]; do
    n_line=$((n_line + 1))
    [[ -n $line && $line != '#'* ]] || continue
    path=${line%%" = "*}
    [[ $line == *" = "* && $path == /* && $path/ != */../* ]] ||
        fail "$tree:$n_line: want PATH = TEXT, the path from / and without .."
    numbers=(0)
    range=$'\n' # no path has it
    if [[ $path =~ \{([0-9]+)-([0-9]+)\} ]]; then
        range=${BASH_REMATCH[0]}
        mapfile -t numbers < <(seq "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}")
    fi
    for number in "${numbers[@]}"; do
        expand "${line#*" = "}" "$number"
        paths+=("$out${path/"$range"/$number}")
        texts+=("$text")
    done
done <"$tree"
[[ ${#paths[@]} -gt 0 ]] || fail "$tree has no line PATH = TEXT"

printf '%s\0' "${paths[@]%/*}" | sort -zu | xargs -0 mkdir -p --
for i in "${!paths[@]}"; do
    printf '%s\n' "${texts[i]}" >"${paths[i]}"
done
echo "$out: ${#paths[@]} files; longspan topo --from $out"
