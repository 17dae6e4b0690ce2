"""What the doctor says of the instructions a processor has for bfloat16."""

from __future__ import annotations

import pytest

from dspark import processor
from dspark.cli import machine


@pytest.mark.parametrize(
    ("flags", "widening"),
    [
        ("sse4_2", None),
        ("avx2", None),
        ("avx2 fma", "AVX2"),
        ("avx2 fma avx512f avx512_vnni", "AVX-512"),
    ],
)
def test_the_widest_vectors_that_multiply_floats_widen_weights(
    monkeypatch: pytest.MonkeyPatch, flags: str, widening: str | None
) -> None:
    monkeypatch.setattr(processor, "cpuinfo", lambda: {"flags": flags})
    found = machine.read_machine()
    assert (found.widening, found.bf16_flags) == (widening, ())


def test_instructions_for_bfloat16_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "cpuinfo", lambda: {"flags": "avx512f amx_bf16 avx512_bf16"})
    assert machine.read_machine().bf16_flags == ("avx512_bf16", "amx_bf16")
