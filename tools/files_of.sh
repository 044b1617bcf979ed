#!/usr/bin/env bash
# Counts the files that commits touch: what it takes to add a function, an operator, a backend.
#
#   tools/files_of.sh COMMIT...
#
# Files of sources, of tests, and such that a test writes are counted apart. ARCHITECTURE.md has
# the counts of the examples in the history.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || { echo "usage: $0 COMMIT..." >&2; exit 2; }
for commit in "$@"; do
    git show --no-patch --format='%h %s' "$commit"
    git show --name-only --format= "$commit" | sort -u | awk '
        /^OPERATORS\.md$|^snapshots\// { written++; print "  written  " $0; next }
        /(^|\/)tests(\/|\.rs$)/ { tests++; print "  test     " $0; next }
        { sources++; print "  source   " $0 }
        END { printf "  %d of sources, %d of tests, %d written by tests\n", sources, tests, written }'
done
