# SPDX-License-Identifier: Apache-2.0
"""The version of the project, which CMakeLists.txt states."""

__version__ = "0.1.0"
