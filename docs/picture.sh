#!/usr/bin/env bash
# Draws docs/src/images/report.png: the report's page of VGG-16's training step, by Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
ARENIC=${ARENIC:-target/release/arenic}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$ARENIC" compile models/structure/joint_vgg16_b32_adamop.onnx --plan-only -o "$made/vgg16.arenic"
"$ARENIC" report "$made/vgg16.arenic" -o "$made/vgg16.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$made/profile" \
    --window-size=1200,760 --screenshot="$PWD/docs/src/images/report.png" "file://$made/vgg16.html"
