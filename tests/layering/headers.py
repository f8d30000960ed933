#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles headers alone: each header as C11, and each one that device code includes, directly or
not, as C++17 too, since nvcc rejects `restrict`, `_Static_assert`, `_Atomic` and int -> enum.

    headers.py SOURCE_DIR BUILD_DIR CC CXX CUDA_INCLUDE_DIR|none [INCLUDE_DIR...]

Headers that need CUDA's own are left out where there are none.
"""
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

source, build = pathlib.Path(sys.argv[1]), sys.argv[2]
cc, cxx = sys.argv[3], sys.argv[4]
cuda_dir = None if sys.argv[5] == "none" else sys.argv[5]
include_dirs = [str(source), build, *sys.argv[6:], *filter(None, [cuda_dir])]
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
FOLDERS = ["traces", "kernels", "capture", "replay", "analysis"]


def files(*suffixes):
    return [p for f in FOLDERS for p in sorted((source / f).rglob("*")) if p.suffix in suffixes]


def device_headers():
    found, queue = set(), files(".cu", ".cuh")
    while queue:
        for name in INCLUDE.findall(queue.pop().read_text(encoding="utf-8")):
            path = next((p for p in (source / name, source / "kernels/include" / name)
                         if p.is_file()), source / name)
            if path.suffix == ".h" and path.is_file() and path not in found:
                found.add(path)
                queue.append(path)
    return found


def needs_cuda(header):
    return re.search(r"^\s*#\s*include\s*<cuda", header.read_text(encoding="utf-8"), re.M)


def compile_alone(job):
    header, command = job
    options = [*command, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]
    for folder in include_dirs:
        options.append("-I" + folder)
    text = f'#include "{header.relative_to(source).as_posix()}"\n'
    done = subprocess.run([*options, "-"], input=text, capture_output=True, text=True, check=False)
    return header, command, done


device = device_headers()
installed = {h for h in files(".h") if "/steptape/" in h.as_posix().replace(source.as_posix(), "")}
usable = [h for h in files(".h") if cuda_dir or not needs_cuda(h)]
jobs = [(h, [cc, "-std=c11", "-x", "c"]) for h in usable]
jobs += [(h, [cxx, "-std=c++17", "-x", "c++"]) for h in usable if h in device | installed]
bad = 0
with ThreadPoolExecutor(2) as pool:
    for header, command, done in pool.map(compile_alone, jobs):
        if done.returncode:
            bad += 1
            print(f"{header.relative_to(source)} as {command[1]}:\n{done.stderr}")
print(f"{len(jobs)} compilations, {len(device)} headers of device code, "
      f"{len(files('.h')) - len(usable)} left out without CUDA, {bad} failed")
sys.exit(1 if bad else 0)
