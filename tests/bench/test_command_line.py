"""What a measurement's option takes, and what it says of all else."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from slotwise.bench.trace.report import count, counts, mapping, port, seconds, url


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (port, "0", 0),
        (port, "65535", 65535),
        (count, "7", 7),
        (counts, "1,20", [1, 20]),
        (seconds, "0.5", 0.5),
        (url, "http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        (url, "https://[::1]", "https://[::1]"),
        (mapping, "", {}),
        (mapping, "{home: {enabled: false}}", {"home": {"enabled": False}}),
    ],
)
def test_what_is_meant_is_read(read: Callable[[str], Any], text: str, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (port, "65536"),
        (port, "000000000199999"),
        (port, "-1"),
        (count, "0"),
        (count, "1" * 5000),
        (counts, "1,,2"),
        (seconds, "nan"),
        (url, "foo"),
        (url, "127.0.0.1:8000"),
        (url, "http://:8000"),
        (url, "http://host:99999"),
        (url, "http://[::1"),
        (mapping, "1"),
        (mapping, "[" * 3000),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(
    read: Callable[[str], Any], text: str
) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^expected .*, got "):
        read(text)
