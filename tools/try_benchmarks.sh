#!/usr/bin/env bash
# Runs benches/gpu/benchmarks.py from end to end on the CPU, with a step so small that it takes a minute or two:
# what is wrong with it shows before there is a GPU.
#
#   tools/try_benchmarks.sh ARENIC GRAPHS PYTHON
#
# GRAPHS is a folder with tiny.onnx (models/papers/make_graphs.py --for-gpu); PYTHON has PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."
ARENIC=$(realpath "${1:?usage: tools/try_benchmarks.sh ARENIC GRAPHS PYTHON}")
GRAPHS=$(realpath "$2")
PYTHON=$(realpath -s "$3")

bundle=$(mktemp -d)
trap 'rm -rf "$bundle"' EXIT
cp benches/gpu/{checks,benchmarks}.py benches/records.py models/papers/networks.py "$bundle"
mkdir "$bundle"/{arenic,benchmarks,results}
cp "$ARENIC" "$bundle/arenic/arenic"
"$ARENIC" compile "$GRAPHS/tiny.onnx" --target cpu --effort 0.1 -o "$bundle/benchmarks/tiny_f32.arenic"
"$ARENIC" compile "$GRAPHS/tiny.onnx" --target cpu --effort 0.1 --precision bf16 -o "$bundle/benchmarks/tiny_bf16.arenic"
for archive in arenic benchmarks; do
    tar -C "$bundle" -cJf "$bundle/$archive.tar.xz" "$archive"
    rm -r "${bundle:?}/$archive"
done
for precision in f32 bf16; do
    for how in arenic eager compile; do
        "$PYTHON" "$bundle/benchmarks.py" measure tiny "$precision" "$how" --device cpu --steps 3 \
            -o "$bundle/results/$precision-$how.json"
    done
done
"$PYTHON" "$bundle/benchmarks.py" trace tiny f32 --device cpu -o "$bundle/trace.json"
"$PYTHON" "$bundle/benchmarks.py" table "$bundle"/results/*.json
"$PYTHON" "$bundle/checks.py" --list >/dev/null
