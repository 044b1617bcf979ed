#!/usr/bin/env bash
# Runs everything of this bundle on a GPU and writes report.json: see run-gpu-checks.sh --help.
set -euo pipefail
cd "$(dirname "$0")"
command -v python3 >/dev/null || { echo 'these checks need python3, 3.9 or newer' >&2; exit 1; }
exec python3 checks.py "$@"
