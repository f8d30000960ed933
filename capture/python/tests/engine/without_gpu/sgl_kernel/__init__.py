# SPDX-License-Identifier: Apache-2.0
"""Stands for SGLang's kernel library where there is no GPU: its names are there to be imported, and
to call one is an error.  SGLang's own code for the CPU is in torch."""

import importlib.abc
import importlib.machinery
import sys


class Missing:
    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"{self._name} is not here")


def names_of(module):
    def find(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{module}.{name}")

    return find


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith(f"{__name__}."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = names_of(module.__name__)


__version__ = "99"
__getattr__ = names_of(__name__)
sys.meta_path.append(Finder())
