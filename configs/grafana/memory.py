"""Dashboard *Memory*: who holds it, how far the floors are, what gave way."""

from slotwise.configs.grafana.panels import Areas, Lines
from slotwise.configs.grafana.promql import grown, rate

NAME = "Memory"
ABOUT = "The machine's memory: who holds it, how near the floors are, what waits and what gave way."
_AVAILABLE, _RESERVED = "slotwise_memory_available_bytes", "slotwise_memory_reserved_bytes"


def _or_said(expr: str, label: str, said: str) -> str:
    """A line for who has none of it, so that the panel says so instead of being empty; ``on()``,
    since else it would stand beside those that there are."""
    return f'{expr} or on() label_replace(vector(0), "{label}", "{said}", "", "")'


PANELS = (
    Areas(
        title="Who holds it",
        about="slotwise, each engine, all others, and free_lists: freed, but on the kernel's "
        "lists of each CPU and not available yet. Together MemTotal - MemAvailable. Page cache is "
        "not in it: it counts as available.",
        unit="bytes",
        queries={
            "{{part}}": _or_said(
                "sum by (part) (slotwise_memory_part_bytes)", "part", "memory is not told"
            )
        },
    ),
    Lines(
        title="Available, and the floors",
        about="Below the floor nothing new starts; below the hard floor memory is taken back. "
        "What is promised is what running requests may still take.",
        unit="bytes",
        queries={
            "available": f"min({_AVAILABLE})",
            "less what is promised": f"min({_AVAILABLE} - {_RESERVED})",
            "floor": "max(slotwise_memory_floor_bytes)",
            "hard floor": "max(slotwise_memory_hard_floor_bytes)",
        },
    ),
    Areas(
        title="An engine's memory, by kind",
        about="anon and shmem: the process; device: what a GPU holds, taken at load and in no "
        "process's pages; file: page cache, which counts as available.",
        unit="bytes",
        queries={
            "{{engine}} {{part}}": _or_said(
                'sum by (engine, part) (slotwise_engine_memory_bytes{engine=~"$engine"})',
                "engine",
                "no engine of ours runs",
            )
        },
    ),
    Lines(
        title="Reserved",
        about="What running requests may still make grow: checkpoints, copies into the RAM cache, "
        "scratch, buffers.",
        unit="bytes",
        queries={"reserved": f"max({_RESERVED})"},
    ),
    Lines(
        title="Memory taken back",
        about="How often in the last quarter of an hour, by level: an idle slot's checkpoints, a "
        "small model, the RAM cache, an engine.",
        unit="short",
        queries={
            "{{level}}, {{result}}": grown("slotwise_reclaims_total", "level, result", over="15m")
        },
    ),
    Lines(
        title="Bytes given back",
        about="What each level gave back in a second, by the next reading of memory.",
        unit="Bps",
        queries={"{{level}}": rate("slotwise_reclaimed_bytes_total", "level")},
    ),
    Areas(
        title="Admissions",
        about="Requests a second: admitted at once, after a wait for memory, timed out waiting "
        "for it, or refused because their model gave way.",
        unit="reqps",
        queries={"{{result}}": rate("slotwise_admissions_total", "result")},
    ),
    Lines(
        title="Small models",
        about="1 for the state of each: pending, loading, loaded, unloaded for want of memory, or "
        "off until somebody asks for it.",
        unit="short",
        queries={
            "{{role}} {{state}}": _or_said(
                "sum by (role, state) (slotwise_role_state)",
                "role",
                "no small model is configured",
            )
        },
        top=1,
    ),
    Lines(
        title="Age of the last reading",
        about="Seconds since memory was read. When it is stale nothing new is admitted.",
        unit="s",
        queries={"age": "max(slotwise_memory_sample_age_seconds)"},
    ),
)
