# SPDX-License-Identifier: Apache-2.0
"""Plug-ins are found by entry point, filtered by VLLM_PLUGINS, and called in every process."""

import os
from importlib.metadata import entry_points


def load_general_plugins():
    allowed = os.environ.get("VLLM_PLUGINS")
    points = entry_points()
    if hasattr(points, "select"):
        found = points.select(group="vllm.general_plugins")
    else:  # Python 3.9
        found = points.get("vllm.general_plugins", ())
    for plugin in found:
        if allowed is None or plugin.name in allowed.split(","):
            plugin.load()()
