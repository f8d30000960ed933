# SPDX-License-Identifier: Apache-2.0
"""Calls a function right after a module was imported, whoever imports it and when.

    after_import("vllm.v1.worker.gpu_model_runner", wrap)

Nothing is imported for it: a process that never imports the module pays for one dictionary lookup
per import.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable, Optional

logger = logging.getLogger("steptape")

Wrap = Callable[[ModuleType], None]


def run(wrap: Wrap, module: ModuleType) -> None:
    """An error in wrap is the recording's loss, not the engine's."""
    try:
        wrap(module)
    except Exception as error:
        logger.warning("steptape: %s cannot be recorded: %r", module.__name__, error)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.wraps: dict[str, Wrap] = {}

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]],
        target: Optional[ModuleType] = None,
    ) -> Optional[importlib.machinery.ModuleSpec]:
        wrap = self.wraps.get(fullname)
        if wrap is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._follow(spec, wrap)
                return spec
        return None

    @staticmethod
    def _follow(spec: importlib.machinery.ModuleSpec, wrap: Wrap) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            run(wrap, module)

        # The loader stays what it is (inspect and pickle look at it); only this one spec's changes.
        loader.exec_module = exec_module


_finder = _Finder()


def after_import(name: str, wrap: Wrap) -> None:
    module = sys.modules.get(name)
    if module is not None:
        run(wrap, module)
        return
    _finder.wraps[name] = wrap
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
