#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs command-line tests: shell scripts with what they should print beside them.

    run.py --program build/steptape [--rewrite] CASE.sh...

    CASE.sh             run by `sh -eu` in an empty folder; `steptape` is the program under test
    CASE.exit           expected exit status; 0 without the file; 77 from the script is a skip
    CASE.stdout.exact   expected output, to the byte
    CASE.stdout.glob    or line by line with * ? [...]; a line `...` stands for any lines
    CASE.stderr.exact, CASE.stderr.glob   the same for stderr
    Without a file the stream is not compared.

A script finds $DATA (tests/cli/data), $SOURCE (the tree) and $BUILD (the folder of the program).
--rewrite stores what came out: in the .exact files that exist, in the .exit file, and in a new
.stdout.exact for a case that has no expectation at all.
"""
import argparse
import fnmatch
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT_S = 900


def run_script(script, program):
    with tempfile.TemporaryDirectory(prefix="steptape-cli-") as folder:
        work = pathlib.Path(folder, "work")
        bin_folder = pathlib.Path(folder, "bin")
        work.mkdir()
        bin_folder.mkdir()
        (bin_folder / "steptape").symlink_to(program)
        env = {**os.environ, "LC_ALL": "C", "TERM": "dumb", "DATA": str(HERE / "data"),
               "SOURCE": str(HERE.parents[1]), "BUILD": str(program.parent),
               "PATH": f"{bin_folder}:{os.environ['PATH']}"}
        return subprocess.run(["sh", "-eu", str(script)], cwd=work, env=env, timeout=TIMEOUT_S,
                              stdin=subprocess.DEVNULL, capture_output=True, check=False)


def glob_matches(pattern, text):
    """Line by line; `...` stands for any number of lines."""
    reach = {0}
    for p in pattern:
        if p == "...":
            reach = set(range(min(reach), len(text) + 1)) if reach else set()
        else:
            reach = {i + 1 for i in reach if i < len(text) and fnmatch.fnmatchcase(text[i], p)}
    return len(text) in reach


def compare_stream(script, stream, got):
    exact = script.with_suffix(f".{stream}.exact")
    glob = script.with_suffix(f".{stream}.glob")
    if exact.exists() and got != exact.read_bytes():
        return f"{stream} differs from {exact.name}"
    if glob.exists():
        lines = got.decode(errors="replace").splitlines()
        if not glob_matches(glob.read_text().splitlines(), lines):
            return f"{stream} does not match {glob.name}"
    return None


def expected_exit(script):
    path = script.with_suffix(".exit")
    return int(path.read_text()) if path.exists() else 0


def rewrite(script, done):
    streams = {"stdout": done.stdout, "stderr": done.stderr}
    if not any(script.with_suffix(f".{s}.{k}").exists()
               for s in streams for k in ("exact", "glob")):
        script.with_suffix(".stdout.exact").touch()
    for stream, got in streams.items():
        exact = script.with_suffix(f".{stream}.exact")
        if exact.exists():
            exact.write_bytes(got)
    if done.returncode != expected_exit(script):
        script.with_suffix(".exit").write_text(f"{done.returncode}\n")


def run_case(script, program, rewriting):
    """0, 1 or 77."""
    done = run_script(script, program)
    if done.returncode == 77 and expected_exit(script) != 77:
        print(f"skip {script.stem}: {done.stderr.decode(errors='replace').strip()}")
        return 77
    if rewriting:
        rewrite(script, done)
    faults = [compare_stream(script, "stdout", done.stdout),
              compare_stream(script, "stderr", done.stderr)]
    if done.returncode != expected_exit(script):
        faults.append(f"exit {done.returncode}, {expected_exit(script)} expected")
    faults = [f for f in faults if f]
    print(f"{'FAIL' if faults else 'ok  '} {script.stem}")
    if faults:
        print("\n".join(faults))
        for name, got in (("stdout", done.stdout), ("stderr", done.stderr)):
            print(f"--- {name}\n{got.decode(errors='replace')[-4000:]}")
    return 1 if faults else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--rewrite", action="store_true")
    parser.add_argument("cases", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    results = [run_case(c.resolve(), args.program.resolve(), args.rewrite) for c in args.cases]
    if 1 in results:
        return 1
    return 77 if all(r == 77 for r in results) else 0


sys.exit(main())
