# SPDX-License-Identifier: Apache-2.0
"""The command `steptape` of the wheel: becomes the program that the package carries."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    program = pathlib.Path(__file__).resolve().parent / "_native" / "bin" / "steptape"
    if not program.is_file():
        sys.exit(f"steptape: {program} is not there: this package was not installed from a wheel")
    os.execv(program, ["steptape", *sys.argv[1:]])
