#!/usr/bin/env bash
# Compiles the digits CNN, trains it and measures it on images it has not seen.
# Every command is shown as one would type it. Fails below 95 % test accuracy.
set -euo pipefail
cd "$(dirname "$0")/../.."

ARENIC=${ARENIC:-target/release/arenic}
MODELS=models/digits
OUT=${OUT:-out}
MINIMUM=95
mkdir -p "$OUT"

say() { printf '\n%s\n' "$*"; }

# Shows a command, with long ones broken before options, then runs it.
step() {
    local shown='$' word length=1
    for word in "$@"; do
        case $word in
        *'*'*) word="'$word'" ;;
        esac
        if [ "$length" -gt 60 ] && [[ $word = -* ]]; then
            shown+=$' \\\n   '
            length=3
        fi
        shown+=" $word"
        length=$((length + 1 + ${#word}))
    done
    printf '%s\n' "$shown"
    "$@"
}

say "1. Compile the training step: forward, backward and update, 32 images at a time."
step "$ARENIC" compile $MODELS/digits_step.onnx --dim batch=32 -o "$OUT/digits.arenic"

say "2. Train: 20 times through 1,440 images, all of it inside that arena."
start=$(date +%s.%N)
step "$ARENIC" run "$OUT/digits.arenic" --data $MODELS/train.npz --set lr=0.02 \
    --epochs 20 --shuffle 1 --save "$OUT/digits.safetensors"
seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT

# Evaluates weights on images that training has not seen.
evaluate() {
    step "$ARENIC" run "$OUT/digits_test.arenic" --data $MODELS/test.npz \
        --init "$1" --skip 'm.*' --json | tee "$lines"
    local accuracy
    accuracy=$(sed -n 's/.*"accuracy": *\([0-9.eE+-]*\).*/\1/p' "$lines")
    awk -v accuracy="$accuracy" -v how="$2" -v minimum="$MINIMUM" 'BEGIN {
        percent = 100 * accuracy
        printf "\ntest accuracy %.1f %% after %s\n", percent, how
        if (percent < minimum) { printf "that is below %s %%\n", minimum; exit 1 }
    }'
}

say "3. Compile the forward half for the 357 test images, and evaluate the trained weights."
step "$ARENIC" compile $MODELS/digits_forward.onnx --dim batch=357 -o "$OUT/digits_test.arenic"
evaluate "$OUT/digits.safetensors" "$seconds s of training"

say "4. Train in half of that memory: in micro-batches of the same 32 rows, as many as the limit asks for."
step "$ARENIC" compile $MODELS/digits_step.onnx --dim batch=32 --memory half \
    --accumulate auto -o "$OUT/digits_half.arenic"
step "$ARENIC" run "$OUT/digits_half.arenic" --data $MODELS/train.npz --set lr=0.02 \
    --epochs 20 --shuffle 1 --save "$OUT/digits_half.safetensors"
evaluate "$OUT/digits_half.safetensors" "training in half of the memory"
