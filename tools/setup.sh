#!/usr/bin/env bash
# Checks what arenic needs from the system, and installs what is missing on Debian.
#
#   tools/setup.sh build       what `cargo build` needs
#   tools/setup.sh tests       what tests need beside it: a C++ compiler, which the emulator of CUDA calls
#   tools/setup.sh highs       what the feature `highs` needs beside it
#   tools/setup.sh python      a Python that can make virtual environments (node tests, benchmarks)
#   tools/setup.sh extensions  what `torch.compile` needs to build extensions of Python (benchmarks)
#   tools/setup.sh mpi         an MPI library and its launcher (ranks, feature `mpi`)
#   tools/setup.sh browser     a Chromium that programs can drive (tests of `arenic report`)
set -euo pipefail

RUST_MINIMUM=1.89
PYTHON_MINIMUM=3.11

fail() {
    printf 'arenic: %s\n' "$@" >&2
    exit 1
}

# True where version $1 is at least version $2.
at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# Rust's linker, and the few crates with C or assembly in them, need a C compiler.
links() {
    local out
    out=$(mktemp) || return 1
    local ok=0
    echo 'int main(void) { return 0; }' | cc -x c - -o "$out" 2>/dev/null || ok=1
    rm -f "$out"
    return $ok
}

compiles_cxx() {
    local out
    out=$(mktemp) || return 1
    local ok=0
    echo 'int main() { return 0; }' | c++ -x c++ - -o "$out" 2>/dev/null || ok=1
    rm -f "$out"
    return $ok
}

has_libclang() {
    local folders=("${LIBCLANG_PATH:-}" /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib
        /usr/local/lib)
    local folder
    for folder in "${folders[@]}"; do
        [ -n "$folder" ] && compgen -G "$folder/libclang.so*" >/dev/null && return
        [ -n "$folder" ] && compgen -G "$folder/libclang-[0-9]*.so*" >/dev/null && return
    done
    return 1
}

makes_venvs() {
    python3 -c 'import venv, ensurepip' 2>/dev/null
}

has_headers() {
    [ -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]
}

# Installs packages by apt-get, as root or through sudo.
install() {
    echo "arenic: missing, to be installed by apt-get: $*" >&2
    local as_root=()
    command -v apt-get >/dev/null || fail "this system has no apt-get; please install: $*"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            fail "not root, and there is no sudo; please have someone run: apt-get install $*"
        as_root=(sudo)
        # Without a terminal nobody can type a password.
        [ -t 0 ] || as_root+=(-n)
    fi
    { "${as_root[@]}" apt-get update -qq &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$@" >/dev/null; } ||
        fail "apt-get failed; please install: $*"
}

setup_build() {
    command -v cargo >/dev/null ||
        fail "there is no cargo; install Rust $RUST_MINIMUM or newer, see https://rustup.rs"
    local rust
    rust=$(rustc --version | cut -d ' ' -f 2)
    at_least "${rust%%-*}" "$RUST_MINIMUM" ||
        fail "Rust $rust is too old: $RUST_MINIMUM or newer is needed (rustup update)"
    links || install gcc libc6-dev
    links || fail "cc cannot link a program"
}

setup_tests() {
    compiles_cxx || install g++
    compiles_cxx || fail "c++ cannot link a program"
}

# HiGHS is C++, built by cmake; its bindings are made by bindgen, which loads libclang.
setup_highs() {
    local missing=()
    compiles_cxx || missing+=(g++)
    command -v cmake >/dev/null || missing+=(cmake)
    has_libclang || missing+=(libclang-dev)
    [ "${#missing[@]}" -eq 0 ] || install "${missing[@]}"
}

setup_python() {
    makes_venvs || install python3 python3-venv
    makes_venvs || fail "python3 cannot make virtual environments (python3 -m venv)"
    local python
    python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    at_least "$python" "$PYTHON_MINIMUM" ||
        fail "Python $python is too old for the pinned packages: $PYTHON_MINIMUM or newer is needed"
}

# What `torch.compile` writes is built against Python's headers.
setup_extensions() {
    has_headers || install python3-dev
    has_headers || fail "python3 has no headers (Python.h)"
    compiles_cxx || install g++
}

# The bindings of MPI are made by bindgen, which loads libclang.
setup_mpi() {
    local missing=()
    command -v mpicc >/dev/null || missing+=(libopenmpi-dev)
    command -v mpirun >/dev/null || missing+=(openmpi-bin)
    has_libclang || missing+=(libclang-dev)
    [ "${#missing[@]}" -eq 0 ] || install "${missing[@]}"
}

setup_browser() {
    local missing=()
    command -v chromium >/dev/null || missing+=(chromium)
    command -v chromedriver >/dev/null || missing+=(chromium-driver)
    [ "${#missing[@]}" -eq 0 ] || install "${missing[@]}"
}

case "${1:-}" in
build) setup_build ;;
tests) setup_tests ;;
highs) setup_highs ;;
python) setup_python ;;
browser) setup_browser ;;
extensions) setup_extensions ;;
mpi) setup_mpi ;;
*) fail "usage: tools/setup.sh build|tests|highs|python|extensions|browser|mpi" ;;
esac
