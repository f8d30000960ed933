# SPDX-License-Identifier: Apache-2.0
"""The facts of a tape as Parquet, for `steptape bench codec`: bytes a column, each at its best.

usage: python3 -c SCRIPT PROGRAM TAPE    prints one JSON object {column: bytes}

Every column is written alone with zstd level 19 and without a dictionary, plain, delta-coded and
with its bytes split, and the smallest file counts, so that Parquet is not held back by a choice of
ours.
"""
import io
import json
import subprocess
import sys

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    sys.exit(1)  # the program says what is needed

ENCODINGS = ("PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT")
program, tape = sys.argv[1:3]
lines = subprocess.Popen([program, "dump", tape], stdout=subprocess.PIPE, text=True).stdout
groups = len(json.loads(next(lines))["groups"])
columns = {}


def add(name, values):
    columns.setdefault(name, []).extend(values)


for line in lines:
    step = json.loads(line)
    for key in ("t_ns", "dur_ns", "padded_tokens", "padded_reqs", "zeroed"):
        add(key, [step.get(key)])
    add("mode", [{"NONE": 0, "PIECEWISE": 1, "FULL": 2}.get(step["mode"])])
    for key in ("req", "new", "finished", "preempted", "resumed"):
        add(key + "_count", [len(step[key])])
    for key in ("req", "qlen", "start", "new", "prompt_len", "finished", "preempted", "resumed"):
        add(key, step[key])
    add("draft", step.get("draft") or [])
    for g in range(groups):
        for ids in step["blocks"][g]:
            add(f"blocks{g}", ids)
        add(f"blocks{g}_count", map(len, step["blocks"][g]))


def size(values, encoding):
    table = pa.table({"c": pa.array(values)})
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", compression_level=19, use_dictionary=False,
                   column_encoding={"c": encoding}, write_statistics=False, store_schema=False,
                   row_group_size=1 << 24, data_page_size=1 << 26)
    return out.tell()


result = {}
for name, values in columns.items():
    wide = any(v is not None and abs(v) > 2147483647 for v in values)
    array = pa.array(values, pa.int64() if wide else pa.int32())
    result[name] = min(size(array, e) for e in ENCODINGS)
    print(f"parquet: {name} {result[name]}", file=sys.stderr)
print(json.dumps(result))
