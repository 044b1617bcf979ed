#!/usr/bin/env bash
# Runs what of this bundle has no result yet, on a GPU: see run-gpu-checks.sh --help. Paths are those of
# whoever calls it.
set -euo pipefail
command -v python3 >/dev/null || { echo 'these checks need python3, 3.9 or newer' >&2; exit 1; }
exec python3 "$(dirname "$(realpath "$0")")/checks.py" "$@"
