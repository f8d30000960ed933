# SPDX-License-Identifier: Apache-2.0
"""steptape records what a serving engine's scheduler did, step by step, into a tape.

    steptape.Recorder     records the steps of any engine: numpy arrays in, a tape out
    steptape.Tape         reads a tape: steps as numpy arrays or Arrow record batches
    steptape.recover      makes the tapes of recordings that were interrupted

The plug-ins of engines are steptape.vllm_plugin and steptape.sglang_plugin.
"""

from steptape._capture import UNKNOWN, recover
from steptape._errors import StepTapeError
from steptape._recorder import BlockTable, Recorder, Stats
from steptape._tape import Ragged, Step, Steps, Tape
from steptape._version import __version__

__all__ = [
    "UNKNOWN",
    "BlockTable",
    "Ragged",
    "Recorder",
    "Stats",
    "Step",
    "StepTapeError",
    "Steps",
    "Tape",
    "__version__",
    "recover",
]
