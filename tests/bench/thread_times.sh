#!/usr/bin/env bash
# What each thread of a program took of the processor: how the cost of the heartbeat and of the
# meters is told.
#
#   tests/bench/thread_times.sh COMMAND...
#
# Reads /proc/PID/task every second, prints the last that was seen: seconds of processor time, share
# of a core, times it was scheduled, name (as in `top -H`; threads of one name are the same lane's).
set -euo pipefail
export LC_ALL=C

if [[ $# -eq 0 ]]; then
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 2
fi
seen=$(mktemp)
trap 'rm -f "$seen" "$seen.new"' EXIT

"$@" &
program=$!
start_ns=$(date +%s%N)
while kill -0 "$program" 2>/dev/null; do
    : >"$seen.new"
    for task in /proc/"$program"/task/*; do
        { echo "$(date +%s%N) $(<"$task/schedstat") $(<"$task/comm")" >>"$seen.new"; } 2>/dev/null ||
            true
    done
    [[ -s $seen.new ]] && mv "$seen.new" "$seen"
    sleep 1
done
wait "$program" && status=0 || status=$?
awk -v start="$start_ns" '
    BEGIN { printf "%10s %8s %10s  %s\n", "seconds", "core", "scheduled", "thread" }
    {
        name = $5
        for (i = 6; i <= NF; i++) name = name " " $i
        printf "%10.3f %7.3f%% %10d  %s\n", $2 / 1e9, 100 * $2 / ($1 - start), $4, name
    }' "$seen"
exit "$status"
