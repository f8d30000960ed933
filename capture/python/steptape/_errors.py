# SPDX-License-Identifier: Apache-2.0
"""What the package raises."""

from __future__ import annotations


class StepTapeError(Exception):
    """The library refused: a file that is no tape, a recording that is already running, a step
    that contradicts the one before."""
