#!/usr/bin/env bash
# Trains a GPT of 0.16 million parameters on a novel, from its forward model alone, and evaluates it on the last
# tenth. Fails unless it knows more of the next character than the one before it says.
#     models/text/demo.sh [FOLDER with train.npz and test.npz]
set -euo pipefail
cd "$(dirname "$0")/../.."

ARENIC=${ARENIC:-target/release/arenic}
DATA=${1:-target/text}
STEPS=${STEPS:-1200}

$ARENIC compile models/text/gpt.onnx --dim batch=32 --loss cross_entropy --optimizer adamw --lr 0.002 \
    --lr-schedule cosine --warmup-steps 50 --total-steps "$STEPS" --compare -o "$DATA/gpt.arenic"
$ARENIC run "$DATA/gpt.arenic" --data "$DATA/train.npz" --steps "$STEPS" --shuffle 1 --save "$DATA/gpt.safetensors"
lines=$($ARENIC eval "$DATA/gpt.arenic" --data "$DATA/test.npz" --init "$DATA/gpt.safetensors" --json)

loss=$(sed -n 's/.*"loss": *\([0-9.eE+-]*\).*/\1/p' <<<"$lines")
bigrams=$(python3 models/text/text.py entropy)
awk -v loss="$loss" -v bigrams="$bigrams" 'BEGIN {
    printf "%.3f nats per character on text it has not seen; with one character known: %s\n", loss, bigrams
    if (loss == "" || loss >= bigrams) exit 1
}'
