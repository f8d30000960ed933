# SPDX-License-Identifier: Apache-2.0
"""Functions that run right after a module's import."""

import importlib
import inspect
import sys

import pytest

from steptape import _hooks


@pytest.fixture
def module_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hooked_module.py").write_text("value = 1\n\n\ndef function():\n    return value\n")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "hooked_module"
    sys.modules.pop("hooked_module", None)


def finder(monkeypatch):
    made = _hooks._Finder()
    monkeypatch.setattr(_hooks, "_finder", made)
    return made


def test_after_the_import(module_file, monkeypatch):
    finder(monkeypatch)
    _hooks.after_import(module_file, lambda module: setattr(module, "value", 2))
    module = importlib.import_module(module_file)
    assert module.function() == 2
    assert "return value" in inspect.getsource(module.function)
    _hooks.after_import(module_file, lambda module: setattr(module, "value", 3))
    assert module.function() == 3  # it is imported already


def test_two_tools_that_do_the_same(module_file, monkeypatch):
    """Each asks all finders, the other included: neither may ask in circles."""
    for value in (10, 100):
        finder(monkeypatch)
        add = lambda module, value=value: setattr(module, "value", module.value + value)  # noqa: E731
        _hooks.after_import(module_file, add)
    assert importlib.import_module(module_file).value == 111


def test_an_error_stays_here(module_file, monkeypatch, caplog):
    finder(monkeypatch)
    _hooks.after_import(module_file, lambda module: 1 / 0)
    assert importlib.import_module(module_file).value == 1
    assert "hooked_module cannot be recorded" in caplog.text


def test_a_module_that_is_not_there(monkeypatch):
    finder(monkeypatch)
    _hooks.after_import("no_such_module_anywhere", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")
