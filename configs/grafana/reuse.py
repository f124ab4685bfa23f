"""Dashboard *Reuse*: is the cache working, and if not, why."""

from slotwise.configs.grafana.panels import Areas, Lines, Number
from slotwise.configs.grafana.promql import grown, rate

NAME = "Reuse"
ABOUT = "How much of the prompts came from the cache, how much could have, and where the rest went."

_PROMPT = 'slotwise_prompt_tokens_total{profile=~"$profile",engine=~"$engine",source="SOURCE"}'
_CACHED = _PROMPT.replace("SOURCE", "cached")
_REPORTED = _PROMPT.replace('="SOURCE"', '=~"cached|evaluated"')
_ALL = _PROMPT.replace(',source="SOURCE"', "")
# These have no engine: they compare with all engines of the profile.
_OF_PROFILE = 'slotwise_prompt_tokens_total{profile=~"$profile",source=~"cached|evaluated"}'
_CACHED_OF_PROFILE = 'slotwise_prompt_tokens_total{profile=~"$profile",source="cached"}'
_BOUND = 'slotwise_reuse_bound_tokens_total{profile=~"$profile"}'
_EXPECTED = 'slotwise_expected_cached_tokens_total{profile=~"$profile"}'
_AVOIDED = 'slotwise_prefill_seconds_avoided_total{profile=~"$profile"}'
_RECOMPUTED = 'slotwise_recomputed_tokens_total{profile=~"$profile"}'
_NORMALIZED = 'slotwise_normalized_total{profile=~"$profile"}'


def _share(part: str, whole: str, by: str = "") -> str:
    """One as a share of the other over the interval of a curve."""
    labels = f" by ({by})" if by else ""
    parts = (f"sum{labels} (rate({series}[$__rate_interval]))" for series in (part, whole))
    return " / ".join(parts)


def _whole_share(part: str, whole: str) -> str:
    """The same over all the time that is looked at."""
    return f"{grown(part)} / {grown(whole)}"


PANELS = (
    Number(
        title="Reuse",
        about="Cached prompt tokens over all prompt tokens, as the engines report them.",
        unit="percentunit",
        queries={"reuse": _whole_share(_CACHED, _REPORTED)},
        width=6,
    ),
    Number(
        title="Bound",
        about="What a cache that never forgets would have served of the same prompts. No "
        "placement can do better; only other prompts can.",
        unit="percentunit",
        queries={"bound": _whole_share(_BOUND, _OF_PROFILE)},
        width=6,
    ),
    Number(
        title="Efficiency",
        about="Reuse over its bound: 100 % means that everything that could be reused was.",
        unit="percentunit",
        queries={"efficiency": _whole_share(_CACHED_OF_PROFILE, _BOUND)},
        width=6,
    ),
    Number(
        title="Prefill avoided",
        about="Seconds of reading prompts that the cache saved, by the cost model.",
        unit="s",
        queries={"avoided": grown(_AVOIDED)},
        width=6,
    ),
    Lines(
        title="Reuse, its bound, and efficiency",
        about="Far below the bound: see the causes below. A low bound: the prompts share little, "
        "or something in them changes each time.",
        unit="percentunit",
        queries={
            "reuse": _share(_CACHED_OF_PROFILE, _OF_PROFILE),
            "bound": _share(_BOUND, _OF_PROFILE),
            "efficiency": _share(_CACHED_OF_PROFILE, _BOUND),
        },
        top=1,
    ),
    Areas(
        title="Prompt tokens",
        about="Tokens a second by where they came from. Unknown: the engine did not say, since "
        "the request ended early.",
        unit="short",
        queries={"{{source}}": rate(_ALL, "source")},
    ),
    Areas(
        title="Recomputed tokens, by cause",
        about="new: never seen. changed: the conversation held something else there. elsewhere: "
        "another slot held it. evicted: displaced by another request. engine: it was there, "
        "the engine could not reuse it. min_one: one token is always computed.",
        unit="short",
        queries={"{{reason}}": rate(_RECOMPUTED, "reason")},
    ),
    Areas(
        title="Recomputed tokens, by section",
        about="Which part of the prompts was read again; of changes, the part in which they "
        "begin. A system text or tools here mean that a client alters them between two "
        "turns.",
        unit="short",
        queries={"{{section}}": rate(_RECOMPUTED, "section")},
    ),
    Lines(
        title="Reuse, by slot",
        about="A slot far below the others is the one that conversations take from each other.",
        unit="percentunit",
        queries={"{{engine}}:{{slot}}": _share(_CACHED, _REPORTED, "engine, slot")},
        top=1,
    ),
    Lines(
        title="Reuse, by rule",
        about="home, branch and session should be high, new and guest low; affinity is what none "
        "of them could place.",
        unit="percentunit",
        queries={"{{rule}}": _share(_CACHED, _REPORTED, "rule")},
        top=1,
    ),
    Lines(
        title="Reuse, by profile",
        about="Cached over all prompt tokens of each profile.",
        unit="percentunit",
        queries={"{{profile}}": _share(_CACHED, _REPORTED, "profile")},
        top=1,
    ),
    Lines(
        title="Prefill avoided, by profile",
        about="Seconds of prefill saved in each second, by the cost model.",
        unit="short",
        queries={"{{profile}}": rate(_AVOIDED, "profile")},
    ),
    Lines(
        title="Expected and reported",
        about="Tokens a second that slotwise expected from the cache, and those that the engine "
        "reported for the same requests. Apart: the engine holds something else than "
        "believed.",
        unit="short",
        queries={
            "expected": rate(_EXPECTED),
            "reported": rate(_CACHED_OF_PROFILE),
        },
    ),
    Lines(
        title="Requests evened out",
        about="Requests a second in which a part that changes each time was made equal to its "
        "like, so that what follows it can be reused.",
        unit="reqps",
        queries={"{{part}}": rate(_NORMALIZED, "part")},
    ),
)
