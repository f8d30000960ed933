# SPDX-License-Identifier: Apache-2.0
"""Steps as Arrow record batches.  Imported when it is asked for: pyarrow is optional."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from steptape._capture import UNKNOWN
from steptape._tape import GRAPH_MODES, LISTS, Ragged, Steps

NUMBERS = ("start_ns", "duration_ns", "padded_tokens", "padded_requests", "zeroed")
ROWS = {"request_id": pa.int64(), "query_len": pa.int32(), "num_computed_tokens": pa.int32()}


def schema(groups: int, blocks: bool, tables: bool, slots: bool) -> Any:
    fields = [pa.field("step_id", pa.int64(), nullable=False)]
    fields += [pa.field(name, pa.int64()) for name in NUMBERS]
    fields += [pa.field("graph_mode", pa.string()), pa.field("cpu_starts", pa.bool_())]
    fields += [pa.field(name, pa.list_(kind)) for name, kind in ROWS.items()]
    fields += [pa.field("prompt_len", pa.list_(pa.int32()))]
    fields += [pa.field("draft", pa.list_(pa.int32()))]
    fields += [pa.field(name, pa.list_(pa.int64())) for name in LISTS]
    fields += [pa.field("new_prompt_len", pa.list_(pa.int32()))]
    per_row = pa.list_(pa.list_(pa.int32()))
    for group in range(groups):
        if blocks:
            fields.append(pa.field(f"blocks_{group}", per_row))
        if tables:
            fields.append(pa.field(f"table_{group}", per_row))
        if slots:
            fields.append(pa.field(f"slots_{group}", pa.list_(pa.int64())))
    return pa.schema(fields)


def _offsets(offsets: Any) -> Any:
    return pa.array(offsets.astype(np.int32), pa.int32())


def _lists(offsets: Any, values: Any) -> Any:
    return pa.ListArray.from_arrays(_offsets(offsets), values)


def _ragged(lists: Ragged) -> Any:
    return _lists(lists.offsets, pa.array(lists.values))


def _draft(steps: Steps) -> Any:
    if steps.draft is None:
        return pa.nulls(len(steps), pa.list_(pa.int32()))
    rows = steps.row_offsets
    # A step says it for all of its rows or for none.
    said = [rows[s] == rows[s + 1] or steps.draft[rows[s]] >= 0 for s in range(len(steps))]
    lists = _lists(rows, pa.array(steps.draft))
    return pa.array(
        [value if known else None for value, known in zip(lists.to_pylist(), said)],
        pa.list_(pa.int32()),
    )


def record_batch(steps: Steps, kind: Any) -> Any:
    columns: dict[str, Any] = {"step_id": pa.array(steps.step_id)}
    for name in NUMBERS:
        values = getattr(steps, name)
        columns[name] = pa.array(values, mask=values == UNKNOWN)
    columns["graph_mode"] = pa.array(
        [GRAPH_MODES.get(int(m)) for m in steps.graph_mode], pa.string()
    )
    columns["cpu_starts"] = pa.array(steps.cpu_starts != 0, mask=steps.cpu_starts < 0)
    for name in ROWS:
        columns[name] = _lists(steps.row_offsets, pa.array(getattr(steps, name)))
    prompt = pa.array(steps.prompt_len, mask=steps.prompt_len < 0)
    columns["prompt_len"] = _lists(steps.row_offsets, prompt)
    columns["draft"] = _draft(steps)
    for name in LISTS:
        columns[name] = _ragged(getattr(steps, name))
    prompt = pa.array(steps.new_prompt_len, mask=steps.new_prompt_len < 0)
    columns["new_prompt_len"] = _lists(steps.new.offsets, prompt)
    for name, groups in (("blocks", steps.blocks), ("table", steps.tables)):
        for group, lists in enumerate(groups):
            columns[f"{name}_{group}"] = _lists(steps.row_offsets, _ragged(lists))
    for group, lists in enumerate(steps.slots):
        columns[f"slots_{group}"] = _ragged(lists)
    return pa.record_batch([columns[field.name] for field in kind], schema=kind)


def reader(batches: Iterator[Steps], groups: int, blocks: bool, tables: bool, slots: bool) -> Any:
    kind = schema(groups, blocks, tables, slots)
    return pa.RecordBatchReader.from_batches(kind, (record_batch(b, kind) for b in batches))
