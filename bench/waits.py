"""No wait without its bound: every one that the rules know, with the longest that was seen.

    python -m slotwise.bench.waits

The very scheduler that serves, in virtual time. The *soak*: ten minutes in which one key sends 100
requests at once, another one each 3 s, side jobs come each 4 s, and more agents live than there are
slots, with guests between their turns. The *corners*: for each bound a few requests that run into
it, such as the copy of a request that runs for long.

A wait counts by how long its request had waited when that reason was given for the last time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from slotwise.bench import cost_model, wait_scenes
from slotwise.bench.command_line import parser_of
from slotwise.bench.report import markdown_table, percentile
from slotwise.bench.simulation import Run
from slotwise.bench.wait_scenes import Scene
from slotwise.bench.watched import Bound, Longest, bounds, watched
from slotwise.policies.params import Params


def longest(scene: Scene) -> tuple[Longest, Run]:
    """Serve a scene; returns the longest wait of every kind."""
    cost = cost_model.load(scene.cost)
    params = replace(scene.params, cost=cost.as_policy())
    return watched(scene.workload, scene.slots, params, cost)


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row per bound, and a row per group of clients in the soak."""
    soaked, run = longest(wait_scenes.soak())
    corners = {scene.name: longest(scene)[0] for scene in wait_scenes.corners()}
    rows = [_row(bound, soaked, corners.get(bound.name, Longest())) for bound in bounds(Params())]
    return rows, _clients(run)


def _row(bound: Bound, soaked: Longest, corner: Longest) -> dict[str, Any]:
    return {
        "wait": bound.name,
        "knob": bound.knob,
        "bound s": bound.seconds,
        "soak, requests": soaked.requests(bound),
        "soak, longest s": round(soaked.seconds(bound), 2),
        "corner, longest s": round(corner.seconds(bound), 2),
        "within": "yes" if soaked.kept(bound) and corner.kept(bound) else "NO",
    }


def _clients(run: Run) -> list[dict[str, Any]]:
    waits: dict[str, list[float]] = {}
    refused: dict[str, int] = {}
    for served in run.served:
        client = served.ask.client
        waits.setdefault(client, []).append(served.begun - served.arrived)
        refused[client] = refused.get(client, 0) + served.refused
    return [
        {
            "key": client,
            "requests": len(seconds),
            "from arrival to slot, p50 s": round(percentile(seconds, 50) or 0.0, 2),
            "p95 s": round(percentile(seconds, 95) or 0.0, 2),
            "longest s": round(max(seconds), 2),
            "answered 429": refused[client],
        }
        for client, seconds in sorted(waits.items())
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 where a wait went past its bound."""
    parser = parser_of("slotwise.bench.waits", __doc__)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)
    rows, clients = measure()
    if options.json:
        print(orjson.dumps({"waits": rows, "soak": clients}).decode())
    else:
        print(f"{markdown_table(rows)}\n\nThe soak, by who asked:\n\n{markdown_table(clients)}")
    return int(any(row["within"] != "yes" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
