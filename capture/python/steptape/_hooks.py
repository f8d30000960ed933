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
import threading
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
        self._looking = threading.local()

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]],
        target: Optional[ModuleType] = None,
    ) -> Optional[importlib.machinery.ModuleSpec]:
        wrap = self.wraps.get(fullname)
        # Another finder of this kind asks all finders too, and so this one once more.
        if wrap is None or getattr(self._looking, "name", None) == fullname:
            return None
        self._looking.name = fullname
        try:
            return self._find(wrap, fullname, path, target)
        finally:
            self._looking.name = None

    def _find(
        self,
        wrap: Wrap,
        fullname: str,
        path: Optional[Sequence[str]],
        target: Optional[ModuleType],
    ) -> Optional[importlib.machinery.ModuleSpec]:
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
        execute: Any = getattr(loader, "exec_module", None)
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
