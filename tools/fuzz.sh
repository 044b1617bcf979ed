#!/usr/bin/env bash
# Fuzzes for some minutes in all, on the stable toolchain, with libFuzzer.
#
#   tools/fuzz.sh MINUTES [TARGET...]
#
# As many targets run at once as there are processors. Prints what each target did. Inputs that did
# harm are in fuzz/artifacts; what was learnt stays in target/fuzz/corpus. Ends with 1 where there is
# a new crash, time-out or one with too much memory.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:?how many minutes}
shift
host=$(rustc -vV | sed -n 's/^host: //p')
# What `cargo fuzz --sanitizer none` passes; with --target they are not for build scripts.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
--cfg fuzzing" CARGO_TARGET_DIR=target/fuzz \
    cargo build --locked --profile fuzz --target "$host" -p arenic-fuzz --features libfuzzer --bins

if [ $# -eq 0 ]; then
    set -- fuzz/fuzz_targets/*.rs
    set -- "${@##*/}"
    set -- "${@%.rs}"
fi
at_once=$(nproc)
seconds=$((minutes * 60 * at_once / $#))
[ $seconds -gt 0 ] || seconds=1
logs=target/fuzz/logs
rm -rf "$logs"
mkdir -p fuzz/artifacts "$logs"

# Runs one target for its time, and prints a line.
fuzz() {
    local target=$1 executions=0 crashes=0 start=$SECONDS left log code ran took
    mkdir -p "target/fuzz/corpus/$target"
    # libFuzzer ends with the first crash; then it goes on, with other choices.
    while left=$((start + seconds - SECONDS)) && [ $left -gt 0 ] && [ $crashes -lt 10 ]; do
        log=$logs/$target.$crashes.log
        code=0
        "target/fuzz/$host/fuzz/$target" "target/fuzz/corpus/$target" "fuzz/corpus/$target" \
            -max_total_time=$left -timeout=10 -rss_limit_mb=3072 -max_len=65536 \
            -print_final_stats=1 -artifact_prefix="fuzz/artifacts/$target-" \
            >"$log" 2>&1 || code=$?
        ran=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        [ -n "$ran" ] || ran=$(sed -n 's/^#\([0-9]*\).*/\1/p' "$log" | tail -n 1)
        executions=$((executions + ${ran:-0}))
        [ $code -ne 0 ] || break
        crashes=$((crashes + 1))
        echo "$log" >>"$logs/failed"
    done
    took=$((SECONDS - start))
    printf '%-14s %12d %8d %10d %8d\n' "$target" $executions $took \
        $((executions / (took > 0 ? took : 1))) $crashes
}

# One that is killed leaves none of them running.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
printf '%-14s %12s %8s %10s %8s\n' target executions seconds per_second crashes
for target; do
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
    fuzz "$target" &
done
wait
if [ -e "$logs/failed" ]; then
    echo "inputs that did harm are in fuzz/artifacts, messages in:" >&2
    cat "$logs/failed" >&2
    exit 1
fi
