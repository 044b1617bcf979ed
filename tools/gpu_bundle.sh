#!/usr/bin/env bash
# Makes target/gpu-bundle: a folder that a machine with a GPU, Python and no Rust can check arenic with.
#
#   tools/gpu_bundle.sh ARENIC WHEEL [GRAPHS PYTHON]
#
# ARENIC is the binary, WHEEL the Python package; GRAPHS a folder with the steps that benchmarks are of, where they
# are wanted, which are tried on the CPU before by PYTHON, which has PyTorch.
# Kernels are compiled here, so NVRTC must be found (LD_LIBRARY_PATH). Test programs are built as
# `make test` builds them.
set -euo pipefail
cd "$(dirname "$0")/.."

ARENIC=$(realpath "${1:?usage: tools/gpu_bundle.sh ARENIC WHEEL [GRAPHS PYTHON]}")
WHEEL=${2:?usage: tools/gpu_bundle.sh ARENIC WHEEL [GRAPHS PYTHON]}
GRAPHS=${3:-}
PYTHON=${4:-python3}
TARGET=${CARGO_TARGET_DIR:-target}
NODE_TESTS=${ARENIC_NODE_TESTS:-target/node-tests}
# MB of 10^6 bytes of the bundle and of what the repository tracks, together: both are often sent.
MAXIMUM_MB=60
RUNS=(mlp_b4_sgdm mlp_b4_adamw small_cnn_b4_sgdm tiny_resnet_b4_sgdm tiny_resnet_b4_adamw
    gpt_tiny_b4_sgdm gpt_tiny_b4_adamw)
# Half of its arena is less than one convolution of this step needs.
NOT_BELOW_70=small_cnn_b4_sgdm
BOTH=(--target cuda --target cpu)
# Of the arena without a limit.
PERCENTS=(70 50 40)

fail() {
    echo "arenic: $*" >&2
    exit 1
}

[ -f "$NODE_TESTS/index.json" ] || fail "there is no $NODE_TESTS; \`make node-tests\` writes it"
mkdir -p "$TARGET"
BUNDLE=$TARGET/gpu-bundle
rm -rf "$BUNDLE"
mkdir -p "$BUNDLE"/{models,tests,python/tests}

echo '== the binary, the package, models and reference runs'
cp "$WHEEL" "$BUNDLE"
cp python/tests/{conftest,test_gpu}.py "$BUNDLE/python/tests"
cp benches/gpu/{run-gpu-checks.sh,checks.py,benchmarks.py,README.md} benches/records.py "$BUNDLE"
# Records of what is measured there say what it was measured of.
(cd benches && python3 -c 'import records; print(records.commit() or "")') >"$BUNDLE/commit"
cp models/papers/networks.py "$BUNDLE"
packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
mkdir "$packed"/{arenic,artifacts,tests}
strip -o "$packed/arenic/arenic" "$ARENIC"
# A folder as an archive, as small as can be.
pack() {
    XZ_OPT=-9e tar -C "$packed" --owner=0 --group=0 -cJf "$BUNDLE/$1.tar.xz" "$1"
}
pack arenic
cp -r models/step models/forward models/digits "$BUNDLE/models"
rm -f "$BUNDLE"/models/{digits,forward}/{*.py,*.txt,*.sh}
cp -r tests/runs "$BUNDLE/tests"

echo '== the test programs'
built=$(cargo test --workspace --locked --no-run --test cuda --test onnx_nodes --message-format=json |
    sed -n 's/.*"src_path":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2/p')
while read -r source program; do
    case $source in
    */runtime/tests/cuda/main.rs) name=operators ;;
    */tests/cuda/main.rs) name=steps ;;
    */tests/onnx_nodes/main.rs) name=node_tests ;;
    *) continue ;;
    esac
    strip -o "$packed/tests/$name" "$program"
done <<<"$built"
for name in operators steps node_tests; do
    [ -x "$packed/tests/$name" ] || fail "cargo has not built the test program $name"
done
cp -r "$NODE_TESTS" "$packed/tests/node-tests"
pack tests

# Compiles a step without long searches; prints the arena in bytes, the first target's.
compile() {
    local out
    out=$("$ARENIC" compile "$@" --effort 2 --json) || exit 1
    sed -n 's/.*"arena_bytes":\([0-9]*\).*/\1/p' <<<"$out" | head -n 1
}

echo '== artifacts'
for run in "${RUNS[@]}"; do
    model=models/step/ref_$run.onnx
    arena=$(compile "$model" "${BOTH[@]}" -o "$packed/artifacts/${run}_100.arenic")
    for percent in "${PERCENTS[@]}"; do
        [ "$run" != "$NOT_BELOW_70" ] || [ "$percent" -ge 70 ] || continue
        compile "$model" --target cuda --device-memory $((arena * percent / 100)) \
            -o "$packed/artifacts/${run}_$percent.arenic" >/dev/null
    done
    echo "$run: $arena bytes"
done
for model in step:32:digits forward:357:digits_test; do
    IFS=: read -r file batch name <<<"$model"
    arena=$(compile "models/digits/digits_$file.onnx" --dim "batch=$batch" "${BOTH[@]}" \
        -o "$packed/artifacts/${name}_100.arenic")
    echo "$name: $arena bytes"
done

pack artifacts

if [ -n "$GRAPHS" ]; then
    echo '== benchmarks, tried on the CPU'
    tools/try_benchmarks.sh "$ARENIC" "$GRAPHS" "$PYTHON"
    mkdir "$packed/benchmarks"
    for graph in "$GRAPHS"/*_b*.onnx; do
        for precision in f32 tf32 bf16; do
            case $precision in
            f32) how=() ;;
            tf32) how=(--math tf32) ;;
            bf16) how=(--precision bf16) ;;
            esac
            out=$packed/benchmarks/$(basename "$graph" .onnx)_$precision.arenic
            "$ARENIC" compile "$graph" --target cuda "${how[@]}" --device h100 -o "$out"
        done
    done
    pack benchmarks
fi

"$BUNDLE/run-gpu-checks.sh" --list >/dev/null
rm -rf "$BUNDLE"/__pycache__ "$BUNDLE"/unpacked
bytes=$(du -sb "$BUNDLE" | cut -f 1)
tracked=$(git ls-files -z | xargs -0 cat | wc -c)
glibc=$(objdump -T "$packed/arenic/arenic" "$packed"/tests/{operators,steps,node_tests} |
    grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
printf '%s: %d bytes, %d with what is tracked; needs %s or newer (build it on a system as old as those it is for)\n' \
    "$BUNDLE" "$bytes" $((bytes + tracked)) "${glibc/_/ }"
[ $((bytes + tracked)) -lt $((MAXIMUM_MB * 1000000)) ] || fail "that is more than $MAXIMUM_MB MB together"
