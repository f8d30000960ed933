#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the tree to its own rules: who may include whom, where CUDA and CUPTI may appear, how long a
file and a function may be, that links of pages lead somewhere, and that nothing is left open.

    tests/layering/check.py [SOURCE_DIR]

Prints one line FILE:LINE: what is wrong for each breach and exits 1 when there is one.  The rules
read the text of the files, formatted as clang-format leaves them; no compiler is needed.
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
if ROOT.is_file():
    ROOT = ROOT.parents[2]

FOLDERS = ["traces", "kernels", "capture", "replay", "analysis", "tests"]
TOP_LEVEL = set(FOLDERS) | {
    "CMakeLists.txt", "CMakePresets.json", "steptape.c", "README.md", "LICENSE", "CHANGELOG.md",
    "CONTRIBUTING.md", "quickstart", "docs", "pyproject.toml"}
C_SUFFIXES = {".c", ".h", ".cu", ".cuh"}
SOURCE_SUFFIXES = C_SUFFIXES | {".py", ".sh", ".sql", ".cmake"}

# Folder -> folders it may include.  The longest prefix of a file's path counts.
ALLOWED = {
    "traces/base": ["traces/base"],
    "traces/format": ["traces/base", "traces/format"],
    "traces": ["traces"],
    "kernels": ["kernels", "traces/base"],
    "capture/cupti": ["capture/cupti", "capture/include", "traces/base", "traces/format"],
    "capture": ["capture", "traces"],
    "replay": ["replay", "kernels", "traces", "capture/cupti"],
    "analysis": ["analysis", "traces"],
    "tests": FOLDERS,
    "steptape.c": ["traces", "capture", "replay", "analysis"],
}
GENERATED = {"steptape_version.h"}
# Installed headers are included as their users include them.
INSTALLED = {
    f"steptape/{name}.h": f"kernels/include/steptape/{name}.h"
    for name in ("kernels", "kernels_attention", "kernels_base", "kernels_indices", "kernels_topk")
}
for name in ("capture", "inject", "tape"):
    INSTALLED[f"steptape/{name}.h"] = f"capture/include/steptape/{name}.h"
CUDA_HEADER = re.compile(r"^(cuda|cooperative_groups|curand|cub/|nv/)")
CUDA_PLACES = re.compile(r"^(kernels/.+\.cuh?|replay/backend_cuda[^/]*|capture/cupti/[^/]+\.cu)$")
CUPTI_PLACES = re.compile(r"^capture/cupti/")
MAX_FILE_LINES = 1000
MAX_FUNCTION_LINES = 80
# In pieces, so that this file passes.
LEFT_OPEN = re.compile("|".join(["TO" "DO", "FIX" "ME", r"(?<!X)XX" r"X(?!X)", r"\bHA" r"CK\b",
                                 "not imple" "mented", "place" "holder", r"\bfor n" r"ow\b"]))
INCLUDE = re.compile(r'^\s*#\s*include\s*(<([^>]+)>|"([^"]+)")')

breaches = []


def breach(path, line, what):
    breaches.append(f"{path.relative_to(ROOT)}:{line}: {what}")


def source_files():
    """Sources of the tree, build folders and version control left out."""
    yield ROOT / "steptape.c"
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in SOURCE_SUFFIXES and "__pycache__" not in path.parts:
                yield path


def allowed_for(name):
    prefixes = [p for p in ALLOWED if name == p or name.startswith(p + "/")]
    return ALLOWED[max(prefixes, key=len)]


def resolve_quoted(path, line, name, target):
    """A quoted include names a file by its path in the tree; edges are checked on that path."""
    target = INSTALLED.get(target, target)
    if target in GENERATED:
        return None
    if ".." in pathlib.PurePosixPath(target).parts:
        breach(path, line, f'"{target}": include by the path from the top, never upwards')
        return None
    if not (ROOT / target).is_file():
        breach(path, line, f'"{target}": there is no such file from the top of the tree')
        return None
    if not any(target.startswith(p + "/") for p in allowed_for(name)):
        breach(path, line, f'"{target}": {name.split("/")[0]} may include only '
                           f'{", ".join(allowed_for(name))}')
    return target


def check_includes(path, name, lines, graph):
    for number, text in enumerate(lines, 1):
        match = INCLUDE.match(text)
        if not match:
            continue
        system, quoted = match.group(2), match.group(3)
        base = (system or quoted).split("/")[-1]
        if base.startswith("cupti") and (system or not (ROOT / quoted).is_file()):
            if not CUPTI_PLACES.match(name):
                breach(path, number, f"{base}: CUPTI headers stay in capture/cupti/")
        elif system and CUDA_HEADER.match(system) and not CUDA_PLACES.match(name):
            breach(path, number, f"{system}: CUDA headers stay in kernels/*/*.cu and "
                                 "replay/backend_cuda.*")
        if quoted:
            target = resolve_quoted(path, number, name, quoted)
            if target:
                graph.setdefault(name, []).append((number, target))


def check_cycles(graph):
    state = {}

    def visit(name, chain):
        state[name] = "open"
        for number, target in graph.get(name, []):
            if state.get(target) == "open":
                breach(ROOT / name, number, "include cycle: " + " -> ".join(
                    chain[chain.index(target):] + [target]))
            elif target not in state:
                visit(target, chain + [target])
        state[name] = "done"

    for name in graph:
        if name not in state:
            visit(name, [name])


def check_c_functions(path, lines):
    """A body opens with a line in column 0 that ends in '{' (or is '{') and closes with '}' there."""
    start = None
    for number, text in enumerate(lines, 1):
        if start is None:
            if text.rstrip().endswith("{") and not re.match(
                    r'^(\s|#|/|extern "C"|namespace\b|(typedef |static |const |extern )*'
                    r"(struct|enum|union)\b[^()]*\{|.*=\s*\{)", text):
                start = number
        elif text.startswith("}"):
            length = number - start + 1
            if length > MAX_FUNCTION_LINES:
                breach(path, start, f"a function of {length} lines, {MAX_FUNCTION_LINES} at most")
            start = None


def check_python_functions(path, text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                breach(path, node.lineno, f"a function of {length} lines, "
                                          f"{MAX_FUNCTION_LINES} at most")


def check_guard(path, name, lines):
    guards = [m.group(1) for t in lines if (m := re.match(r"#ifndef (\w+)$", t))]
    stem = re.sub(r"\W", "_", path.stem).upper()
    if not guards or not re.match(rf"(ST|STEPTAPE)_(\w+_)?{stem}_H$", guards[0]):
        breach(path, 1, f"the include guard should be ST_<FOLDER>_{stem}_H")
    if re.search(r"^\s*typedef struct", "\n".join(lines), re.M):
        breach(path, 1, "structs are not typedef'd")


def check_text(path, name, text, lines):
    if len(lines) > MAX_FILE_LINES:
        breach(path, len(lines), f"{len(lines)} lines, {MAX_FILE_LINES} at most")
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:3]):
        breach(path, 1, "the SPDX line is missing")
    for number, line in enumerate(lines, 1):
        match = LEFT_OPEN.search(line)
        if match:
            breach(path, number, f"'{match.group(0)}': finish it, or say what is open and why")
        if line != line.rstrip():
            breach(path, number, "white space at the end of the line")
    if text and not text.endswith("\n"):
        breach(path, len(lines), "no newline at the end")


def check_folders():
    # Tapes and lists may lie there: the commands of README.md leave them.
    for entry in sorted(ROOT.iterdir()):
        if not entry.name.startswith((".", "build", "Testing", "venv")) \
                and entry.name not in TOP_LEVEL \
                and (entry.is_dir() or entry.suffix in SOURCE_SUFFIXES | {".md"}):
            breach(entry, 1, "does not belong at the top of the tree")
    for folder in FOLDERS:
        if not (ROOT / folder / "README.md").is_file():
            breach(ROOT / folder, 1, "the folder has no README.md")


def check_links():
    """Links of the pages lead to files of the tree."""
    pages = sorted(ROOT.glob("*.md"))
    for folder in FOLDERS + ["docs"]:
        pages += sorted((ROOT / folder).rglob("*.md"))
    for page in pages:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for target in re.findall(r"\]\(([^)#\s]+)", line):
                if "://" not in target and not (page.parent / target).exists():
                    breach(page, number, f"{target} is not there")


def main():
    graph = {}
    count = 0
    check_folders()
    check_links()
    for path in source_files():
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        count += 1
        check_text(path, name, text, lines)
        if path.suffix in C_SUFFIXES:
            check_includes(path, name, lines, graph)
            check_c_functions(path, lines)
        if path.suffix == ".h":
            check_guard(path, name, lines)
        if path.suffix == ".py":
            check_python_functions(path, text)
    check_cycles(graph)
    print("\n".join(breaches + [f"{count} files, {len(breaches)} breaches"]))
    return 1 if breaches else 0


sys.exit(main())
