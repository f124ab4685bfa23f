"""Writes the dashboards into ``dashboards/`` beside it.

    python -m slotwise.configs.grafana.generate

Each is a page of one module, a list of panels with their queries; the JSON is committed, and a test
holds it to this script byte for byte.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from slotwise.configs.grafana import engine, memory, reuse, scheduling
from slotwise.configs.grafana.panels import page

FOLDER = Path(__file__).parent / "dashboards"
PAGES = (reuse, scheduling, memory, engine)


def files() -> dict[str, str]:
    """The text of each file, by its name."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    made = ((told.NAME, page(told.NAME, told.ABOUT, told.PANELS)) for told in PAGES)
    return {f"{name.lower()}.json": encoder.encode(dashboard) + "\n" for name, dashboard in made}


def main() -> None:
    """Writes them all."""
    parser = argparse.ArgumentParser(
        prog="python -m slotwise.configs.grafana.generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.parse_args()  # there is nothing to choose, but help to be had and a slip to be named
    for name, text in files().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
