# SPDX-License-Identifier: Apache-2.0
"""`steptape bench plugin` measures; what it measures is no matter of a test."""

import json

from steptape import bench_plugin


def test_a_row_for_each_runner_and_size(capsys):
    assert bench_plugin.main(["--steps", "20", "--requests", "1", "9", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["runner"], r["requests"]) for r in rows] == [
        ("V1", 1),
        ("V1", 9),
        ("V2", 1),
        ("V2", 9),
    ]
    assert all(r["c_call_us_median"] > 0 and r["dropped"] == 0 for r in rows)
