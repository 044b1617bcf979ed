#!/usr/bin/env python3
"""A library that stands in for the driver's, with which cuDNN plans attentions without a GPU.

    stand_in.py FOLDER

Writes FOLDER/libcuda.so.1. cuDNN wants every function of the driver to be there before it says whether it takes an
attention. Its plans then compile kernels and load them: that seems to succeed, and nothing can be run. CUDA's runtime, which
would ask for more, finds no device.
"""

import os
import pathlib
import re
import site
import subprocess
import sys

# Functions that do more than to succeed.
DRIVER = r"""
static int loaded;
extern "C" {
int cuInit() { return 100; }  // CUDA_ERROR_NO_DEVICE
int cuLibraryLoadData(void** library) { *library = &loaded; return 0; }
int cuLibraryGetKernel(void** kernel) { *kernel = &loaded; return 0; }
}
"""


def library_of_cudnn(name):
    """A file of cuDNN's package."""
    found = [f for p in site.getsitepackages() for f in pathlib.Path(p).glob(f"nvidia/cudnn/lib/{name}")]
    return found[0] if found else sys.exit(f"there is no {name} here: pip install nvidia-cudnn-cu13")


def driver():
    """The text, in C++, of the functions that cuDNN looks for."""
    names = re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", library_of_cudnn("libcudnn_engines_runtime_compiled.so.9").read_bytes())
    others = {name.decode() for name in names} - set(re.findall(r"\bcu[A-Z]\w+", DRIVER))
    return DRIVER + "\n".join(f'extern "C" int {name}() {{ return 0; }}' for name in sorted(others))


def build(folder, soname, text):
    """Builds a library of this name, of C++, in a folder, and gives its path."""
    library = pathlib.Path(folder) / soname
    how = ["-shared", "-fPIC", f"-Wl,-soname,{soname}", "-x", "c++", "-", "-o", str(library)]
    subprocess.run([os.environ.get("CXX") or "c++", *how], input=text, text=True, check=True)
    return library


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    build(sys.argv[1], "libcuda.so.1", driver())
