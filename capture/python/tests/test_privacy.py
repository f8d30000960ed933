# SPDX-License-Identifier: Apache-2.0
"""No prompt, no token id and no request name is in the bytes of a recording or its tape."""

import random
import re
import zlib

import pytest
from conftest import program

from steptape._fake.scheduler import Settings

STREAM = 1 << 18  # bytes that a packed column here stays below
SECRET = "planted-request-name"


def planted_prompt(rng):
    return [rng.randrange(90_000_000, 99_000_000) for _ in range(60)]


def inflated(data):
    """The bytes of a file, and of every zlib stream in it."""
    yield data
    for match in re.finditer(rb"\x78[\x01\x5e\x9c\xda]", data):
        try:
            yield zlib.decompressobj().decompress(data[match.start() : match.start() + STREAM])
        except zlib.error:
            continue


def traces_of(files, prompts):
    found = []
    needles = {SECRET.encode(): "the request's name"}
    for prompt in prompts[::3]:
        for token in prompt[::20]:
            needles[str(token).encode()] = "a token id as text"
            needles[token.to_bytes(4, "little")] = "a token id as an integer"
            varint = bytes([token & 127 | 128, token >> 7 & 127 | 128, token >> 14 & 127 | 128])
            needles[varint + bytes([token >> 21])] = "a token id as a varint"
    pattern = re.compile(b"|".join(re.escape(n) for n in needles))
    for path in files:
        for data in inflated(path.read_bytes()):
            found += [(path.name, needles[m.group()]) for m in pattern.finditer(data)]
    return found


@pytest.mark.parametrize("runner", ("V1", "V2"))
def test_nothing_of_a_prompt_is_in_the_bytes(record, tmp_path, monkeypatch, runner):
    rng = random.Random(5)
    monkeypatch.setenv("STEPTAPE_RING_BYTES", str(1 << 20))
    engine = record(Settings(runner=runner, num_blocks=90, drafts=2))
    prompts = [planted_prompt(rng) for _ in range(40)]
    for number, prompt in enumerate(prompts):
        engine.scheduler.add(f"{SECRET}-{number}", prompt, 8)
    for _ in range(60):
        engine.step()
    recording = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert any(p.suffix == ".ring" for p in recording)
    assert traces_of(recording, prompts) == []
    engine.run(0)
    engine.runner.shutdown()
    assert traces_of([engine.tape], prompts) == []
    dumped = tmp_path / "dump.jsonl"
    dumped.write_text(program("dump", engine.tape).stdout)
    assert dumped.stat().st_size > 1000
    assert traces_of([dumped], prompts) == []
    planted = tmp_path / "planted"
    planted.write_bytes(zlib.compress(b"x" * 99 + prompts[3][20].to_bytes(4, "little")))
    assert traces_of([planted], prompts)  # the search finds what it looks for
