"""The command `arenic`."""

import sys

from . import _native


def main() -> None:
    """Runs the command line, and ends the program with its exit code."""
    sys.exit(_native.main(["arenic", *sys.argv[1:]]))
