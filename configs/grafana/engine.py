"""Dashboard *Engine*: what the llama-servers do, by their own word and by ours."""

from slotwise.configs.grafana.panels import Lines, Number
from slotwise.configs.grafana.promql import grown, rate

NAME = "Engine"
ABOUT = "Each llama-server: speed, busy slots, what they hold, restarts, and whether pins hold."
_E = '{engine=~"$engine"}'


def _by_engine(series: str, how: str = "sum") -> str:
    return f"{how} by (engine) ({series}{_E})"


def _rate(series: str, by: str = "engine") -> str:
    return rate(f"{series}{_E}", by)


PANELS = (
    Number(
        title="Up",
        about="1 while requests can be sent to the engine.",
        unit="short",
        queries={"{{engine}}": _by_engine("slotwise_engine_up", "min")},
        width=6,
    ),
    Number(
        title="Restarts",
        about="How often an engine came back in the time that is looked at.",
        unit="short",
        queries={"{{engine}}": grown(f"slotwise_engine_restarts_total{_E}", "engine")},
        width=6,
    ),
    Number(
        title="Slots it chose itself",
        about="Choices by LRU in the time that is looked at, by the engine's log. Should be 0: "
        "every request is pinned. Only engines that slotwise started are counted.",
        unit="short",
        queries={"{{engine}}": grown(f"slotwise_engine_lru_selections_total{_E}", "engine")},
        width=6,
    ),
    Number(
        title="Builds",
        about="How many engines run each build of llama.cpp.",
        unit="short",
        queries={"{{llama}}": "sum by (llama, version) (slotwise_build_info)"},
        width=6,
    ),
    Lines(
        title="Throughput",
        about="Tokens a second over all the time, idle time included: prompt tokens that were "
        "computed, and generated ones.",
        unit="short",
        queries={
            "{{engine}} prompt": _rate("llamacpp:prompt_tokens_total"),
            "{{engine}} generated": _rate("llamacpp:tokens_predicted_total"),
        },
    ),
    Lines(
        title="Speed at work",
        about="Tokens a second while the engine reads or generates, by its own clock, since the "
        "last scrape.",
        unit="short",
        queries={
            "{{engine}} prompt": _by_engine("llamacpp:prompt_tokens_seconds"),
            "{{engine}} generated": _by_engine("llamacpp:predicted_tokens_seconds"),
        },
    ),
    Lines(
        title="Busy slots",
        about="Slots at work by our count, requests at work by the engine's, and how many slots "
        "there are.",
        unit="short",
        queries={
            "{{engine}} busy": _by_engine("slotwise_slot_busy"),
            "{{engine}} by its own word": _by_engine("llamacpp:requests_processing"),
            "{{engine}} slots": _by_engine("slotwise_slot_busy", "count"),
        },
    ),
    Lines(
        title="Deferred in the engine",
        about="Requests that the engine makes wait by itself. Should be 0: slotwise sends nothing "
        "to a busy slot.",
        unit="short",
        queries={"{{engine}}": _by_engine("llamacpp:requests_deferred")},
    ),
    Lines(
        title="Slots in a batch",
        about="How many slots were at work in each step, the mean since the engine started. Near "
        "1: requests hardly ever run together.",
        unit="short",
        queries={"{{engine}}": _by_engine("llamacpp:n_busy_slots_per_decode")},
    ),
    Lines(
        title="Prompt tokens for each generated one",
        about="Of agents 50 and more: reading prompts is the work, and reuse is what counts. "
        "Below 10 the speed of generation matters more.",
        unit="short",
        queries={
            "{{engine}}": (
                f"{_rate('slotwise_prompt_tokens_total')} / "
                f"{_rate('llamacpp:tokens_predicted_total')}"
            )
        },
    ),
    Lines(
        title="Tokens held, by slot",
        about="Tokens whose KV each slot is believed to hold.",
        unit="short",
        queries={
            "{{engine}}:{{slot}}": f"sum by (engine, slot) (slotwise_slot_resident_tokens{_E})"
        },
    ),
    Lines(
        title="Longest conversation",
        about="The longest sequence the engine has seen since it started, in tokens. Far below "
        "the window of a slot: more, smaller slots would fit.",
        unit="short",
        queries={"{{engine}}": _by_engine("llamacpp:n_tokens_max", "max")},
    ),
    Lines(
        title="Restarts, by cause",
        about="How often an engine came back in the last quarter of an hour, by why it was lost.",
        unit="short",
        queries={
            "{{engine}} {{reason}}": grown(
                f"slotwise_engine_restarts_total{_E}", "engine, reason", over="15m"
            )
        },
    ),
    Lines(
        title="Pins that did not hold",
        about="How often in the last quarter of an hour the engine used, or held, something else "
        "than was pinned. Should be 0.",
        unit="short",
        queries={"{{engine}}": grown(f"slotwise_pin_mismatches_total{_E}", "engine", over="15m")},
    ),
)
