#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs SQL tests: a question about a tape, and the rows that answer it.

    run.py --program build/steptape --make-result build/... [--extension build/steptape.so] [--rewrite] CASE.sql...

    CASE.sql            one statement; -- @NAME lines in front choose what it is asked of:
        -- @fixture FILE     a result tape made by FILE.fixture.sql (default: CASE.fixture.sql)
        -- @steps FILE       a tape imported from tests/cli/data/FILE
        -- @param NAME=VALUE a parameter; may be repeated
        -- @section NAME     the statement is that of `steptape report --section NAME`
        -- @report           the table of `steptape report`, in CASE.expected.txt, instead of rows
    CASE.expected.csv   the rows, with a line of names

Each statement is run by `steptape query` and by the stock sqlite3 program with the extension loaded;
both have to give these rows.  --rewrite stores what `steptape query` gave.
"""
import argparse
import csv
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIMEOUT_S = 900


def fail(message):
    raise SystemExit(message)


def run(*command, text=None):
    done = subprocess.run([str(c) for c in command], input=text, capture_output=True, text=True,
                          timeout=TIMEOUT_S, check=False)
    if done.returncode or done.stderr:
        fail(f"{' '.join(map(str, command))[:200]}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Case:
    def __init__(self, path):
        self.path = path
        self.text = path.read_text()
        self.directives = re.findall(r"^-- @(\w+) *(.*)$", self.text, re.MULTILINE)

    def get(self, name, default=None):
        return next((value for key, value in self.directives if key == name), default)

    def params(self):
        return [value for key, value in self.directives if key == "param"]

    def sql(self):
        section = self.get("section")
        return (ROOT / "analysis" / f"report_{section}.sql").read_text() if section else self.text

    def make_tape(self, options, folder):
        tape = folder / "case.tape"
        if self.get("steps"):
            run(options.program, "-q", "import", ROOT / "tests" / "cli" / "data" / self.get("steps"),
                "-o", tape)
            return tape
        name = self.get("fixture", self.path.stem)
        fixture = self.path.with_name(f"{name}.fixture.sql").read_text()
        run(options.make_result, tape, text=fixture)
        return tape


def numbers_equal(a, b):
    """Stock sqlite3 writes 15 digits of a real."""
    try:
        return a == b or ("." in a + b and f"{float(a):.12g}" == f"{float(b):.12g}")
    except ValueError:
        return False


def compare_with_stock(case, options, tape, csv_text):
    stock = shutil.which("sqlite3")
    if not stock or not options.extension:
        return
    entry = options.extension.removesuffix(".so")
    script = [f".load {entry}", ".headers on", ".mode csv"]
    script += [".parameter set :{} {}".format(*p.split("=", 1)) for p in case.params()]
    out = run(stock, "-bail", "-readonly", tape, text="\n".join(script) + "\n" + case.sql() + "\n")
    ours, theirs = (list(csv.reader(io.StringIO(text))) for text in (csv_text, out))
    if len(ours) == 1 and not theirs:
        return  # sqlite3 prints no names without rows
    if len(ours) != len(theirs):
        fail(f"steptape query gives {len(ours) - 1} rows, sqlite3 {len(theirs) - 1}")
    for number, (a, b) in enumerate(zip(ours, theirs)):
        if len(a) != len(b) or not all(map(numbers_equal, a, b)):
            fail(f"row {number}: steptape query gives {a}, sqlite3 {b}")


def run_case(case, options, folder):
    tape = case.make_tape(options, folder)
    if case.get("report") is not None:
        expected = case.path.with_suffix(".expected.txt")
        got = run(options.program, "report", tape)
        wide = [line for line in got.splitlines() if len(line) > 100]
        if wide:
            fail(f"more than 100 columns: {wide[0]}")
    else:
        expected = case.path.with_suffix(".expected.csv")
        params = [f"--param={p}" for p in case.params()]
        got = run(options.program, "query", tape, "-", "--format=csv", *params, text=case.sql())
        compare_with_stock(case, options, tape, got)
    if case.get("section"):
        section = run(options.program, "report", tape, "--format=csv",
                      f"--section={case.get('section')}")
        if section != got:
            fail("report and query differ on the same section")
    if options.rewrite:
        expected.write_text(got)
    elif got != expected.read_text():
        fail(f"{expected.name} expected, but got:\n{got}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--make-result", required=True)
    parser.add_argument("--extension")
    parser.add_argument("--rewrite", action="store_true")
    parser.add_argument("case", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    os.environ["LC_ALL"] = "C"
    failures = 0
    for path in options.case:
        with tempfile.TemporaryDirectory(prefix="steptape-sql-") as folder:
            try:
                run_case(Case(path), options, pathlib.Path(folder))
            except SystemExit as e:
                failures += 1
                print(f"{path.name}: {e}", file=sys.stderr)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
