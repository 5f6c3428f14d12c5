#!/usr/bin/env bash
# Collect the demo's text: the C headers that this system carries, and its licence texts.
#
#   scripts/corpus.sh OUT_DIR
#
# Takes every *.h of the packages linux-libc-dev and libc6-dev and /usr/share/common-licenses/*,
# symlinks resolved, one file per content (sha256), in the byte order of the paths; every 20th is
# held out.  Writes OUT_DIR/train.list and valid.list (the paths) and the texts themselves as
# OUT_DIR/train/NNNNN-NAME and OUT_DIR/valid/NNNNN-NAME, so that the order of names is the order
# of paths.
set -euo pipefail
export LC_ALL=C

held_out_every=20

fail() {
    echo "corpus.sh: $*" >&2
    exit 1
}

# The files that these packages own, whatever architecture qualifies their names.
package_files() {
    local name
    for name in "$@"; do
        dpkg -L "$name:$(dpkg --print-architecture)" 2>/dev/null || dpkg -L "$name" 2>/dev/null ||
            fail "package $name is not installed; install it with: apt-get install $name"
    done
}

# Real paths, sorted, one per content: the first path of each content stays.  A path that the
# package names but this installation lacks is passed over.
sources() {
    {
        package_files linux-libc-dev libc6-dev | grep '\.h$'
        find /usr/share/common-licenses -mindepth 1 -maxdepth 1
    } | { xargs -d '\n' realpath -e -q -- || true; } | sort -u | xargs -d '\n' sha256sum -- |
        awk '{ hash = $1; sub(/^[^ ]+ [ *]/, ""); if (!(hash in seen)) { seen[hash]; print } }'
}

# Copies the files of a list into a folder as NNNNN-NAME; one cp per folder of links is fast.
copy_list() {
    local list=$1 folder=$2 links=$2.links index=0 path
    local -a paths
    rm -rf "$folder" "$links"
    mapfile -t paths <"$list"
    mkdir -p "$links"
    for path in "${paths[@]}"; do
        printf '%s\0%s/%05d-%s\0' "$path" "$links" "$index" "${path##*/}"
        index=$((index + 1))
    done | xargs -0 -n 2 -P 2 ln -s
    cp -rL --no-preserve=all "$links" "$folder"
    rm -rf "$links"
}

main() {
    [[ $# -eq 1 && $1 != -* ]] || {
        echo "usage: corpus.sh OUT_DIR" >&2
        exit 2
    }
    local out=$1 split
    command -v dpkg >/dev/null || fail "dpkg is missing: this needs Debian or Ubuntu"
    mkdir -p "$out"
    out=$(cd "$out" && pwd)
    sources >"$out/all.list.tmp"
    [[ $(wc -l <"$out/all.list.tmp") -ge $held_out_every ]] || fail "found too few files"
    awk -v every=$held_out_every 'NR % every != 0' "$out/all.list.tmp" >"$out/train.list"
    awk -v every=$held_out_every 'NR % every == 0' "$out/all.list.tmp" >"$out/valid.list"
    rm "$out/all.list.tmp"
    for split in train valid; do
        copy_list "$out/$split.list" "$out/$split"
        echo "$split: $(wc -l <"$out/$split.list") files," \
            "$(cat "$out/$split"/* | wc -c) bytes in $out/$split"
    done
}

main "$@"
