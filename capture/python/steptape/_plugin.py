# SPDX-License-Identifier: Apache-2.0
"""What the engines' plug-ins share: which part of a recording a process writes, how the recording
ends, and what is read of an engine's objects."""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import weakref
from typing import Any, Optional

logger = logging.getLogger("steptape")


def get(root: Any, path: str, default: Any = None) -> Any:
    """root.a.b of "a.b"; default where a link is missing or None."""
    for name in path.split("."):
        root = getattr(root, name, None)
        if root is None:
            return default
    return root


def model_name(path: Optional[str]) -> Optional[str]:
    """The name of a model: the last part of a local folder, for a path says where it lay."""
    if not path:
        return None
    return (
        os.path.basename(path.rstrip("/")) if os.path.isabs(path) or os.path.exists(path) else path
    )


def is_recorded(rank: int) -> bool:
    """Of the ranks that run the same batches, the first alone, unless all are asked for."""
    return not rank or os.environ.get("STEPTAPE_ALL_RANKS") == "1"


def part_name(data: int, pipeline: int, rank: int) -> Optional[str]:
    """Which part of a recording by many processes: None for the first, else "dp1-pp2-rank3"."""
    parts = [f"{name}{n}" for name, n in (("dp", data), ("pp", pipeline), ("rank", rank)) if n]
    return "-".join(parts) or None


def part_path(path: str, part: Optional[str]) -> str:
    """The tape of a part of the recording of path: "x.rank1.tape" of "x.tape"."""
    return path if part is None else f"{path[: -len('.tape')]}.{part}.tape"


def ring_bytes() -> int:
    """STEPTAPE_RING_BYTES; 0: the recorder's own."""
    text = os.environ.get("STEPTAPE_RING_BYTES") or "0"
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"STEPTAPE_RING_BYTES={text}: a number was expected") from None


def log_stop(reason: object) -> str:
    """Says in the log why recording stops; gives what the tape is to say."""
    text = str(reason)
    if isinstance(reason, BaseException):
        text = f"{type(reason).__name__}: {reason}"
    logger.warning("steptape: recording stops, the engine goes on: %s", text)
    return text


def close(recording: Any) -> None:
    """An error is the recording's loss, not the engine's."""
    try:
        recording.close()
    except Exception as error:
        logger.warning("steptape: %s", error)


def close_at_end(owner: object, recording: Any) -> None:
    """Closes the recording when its owner is collected, when the process ends, or when one that
    multiprocessing forked does, which runs no atexit functions; whichever comes first.  None of
    them keeps the owner alive."""
    finalizer = weakref.finalize(owner, close, recording)
    multiprocessing.util.Finalize(None, finalizer, exitpriority=100)
