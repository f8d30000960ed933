# SPDX-License-Identifier: Apache-2.0
"""The module tree of vLLM, as far as a plug-in sees it: what is in it comes from steptape._fake."""

__version__ = "0.32.0"
