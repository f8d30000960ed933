# SPDX-License-Identifier: Apache-2.0
"""An engine that only schedules: it has the names and shapes that the plug-in reads in vLLM, and
none of its code.  For `steptape bench plugin` and the tests; it needs numpy and no model."""
