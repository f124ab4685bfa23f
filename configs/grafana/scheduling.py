"""Dashboard *Scheduling*: who waits, for what, and what it costs."""

from slotwise.configs.grafana.panels import Areas, Heat, Lines
from slotwise.configs.grafana.promql import grown, rate

NAME = "Scheduling"
ABOUT = "Who waits and why, how long until the first token, and what the rules cost and save."
_P = '{profile=~"$profile"}'


def _rate(series: str, by: str) -> str:
    return rate(f"{series}{_P}", by)


def _buckets(series: str) -> str:
    return grown(f"{series}_bucket{_P}", "le", over="$__rate_interval")


def _quantile(share: float, series: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{series}_bucket', 'le')})"


PANELS = (
    Areas(
        title="Waiting, by reason",
        about="Requests that wait now. max_running and slots_busy: more asks than may run. "
        "home_busy: for the slot that holds the conversation. memory: no room above the "
        "floor.",
        unit="short",
        queries={"{{reason}}": f"sum by (reason) (slotwise_requests_waiting{_P})"},
    ),
    Areas(
        title="Answers, by status",
        about="Answers a second by HTTP status. 429: a queue or a key is at its limit. 499: the "
        "client left. 503: the engine is not ready, or memory was waited for too long.",
        unit="reqps",
        queries={"{{code}}": _rate("slotwise_requests_total", "code")},
    ),
    Heat(
        title="Wait",
        about="Seconds from arrival to dispatch or refusal.",
        unit="s",
        queries={"{{le}}": _buckets("slotwise_queue_wait_seconds")},
    ),
    Heat(
        title="Time to first token",
        about="Seconds from arrival to the first token, the wait included.",
        unit="s",
        queries={"{{le}}": _buckets("slotwise_time_to_first_token_seconds")},
    ),
    Lines(
        title="Time to first token, p50 and p95",
        about="Half of the requests, and 19 of 20, had their first token sooner than this.",
        unit="s",
        queries={
            "p50": _quantile(0.5, "slotwise_time_to_first_token_seconds"),
            "p95": _quantile(0.95, "slotwise_time_to_first_token_seconds"),
        },
    ),
    Lines(
        title="Time per output token, p50 and p95",
        about="Seconds between the tokens of an answer, as the engine times it. It grows with how "
        "many run at once and with how long their conversations are.",
        unit="s",
        queries={
            "p50": _quantile(0.5, "slotwise_time_per_output_token_seconds"),
            "p95": _quantile(0.95, "slotwise_time_per_output_token_seconds"),
        },
    ),
    Areas(
        title="Placements, by rule",
        about="Answers a second by the rule that placed them. Much affinity or new: conversations "
        "find their slot taken.",
        unit="reqps",
        queries={"{{rule}}": _rate("slotwise_requests_total", "rule")},
    ),
    Areas(
        title="Regret, by what stood in the way",
        about="Seconds lost in each second against the best slot at once, by the cost model: "
        "busy, held for its owner, memory, fairness, or the cap on conversations.",
        unit="short",
        queries={"{{reason}}": _rate("slotwise_regret_seconds_total", "reason")},
    ),
    Areas(
        title="Slots kept for their owners",
        about="Seconds of waiting in each second while an idle slot was kept. returned: the owner "
        "came. Mostly expired: the holds cost more than they save.",
        unit="short",
        queries={"{{result}}": _rate("slotwise_hold_seconds_total", "result")},
    ),
    Lines(
        title="Waits for a busy home",
        about="Requests a second that waited for the slot of their conversation, and were placed "
        "there or went elsewhere.",
        unit="reqps",
        queries={"{{result}}": _rate("slotwise_home_waits_total", "result")},
    ),
    Lines(
        title="Promotions",
        about="Requests a second that went before others because they had waited long enough.",
        unit="reqps",
        queries={"{{reason}}": _rate("slotwise_promotions_total", "reason")},
    ),
    Lines(
        title="Working set",
        about="Live conversations, each by its chance of return, over what slots and RAM cache "
        "keep warm. Above 100 %: they displace each other.",
        unit="percentunit",
        queries={"{{profile}}": f"max by (profile) (slotwise_working_set_ratio{_P})"},
    ),
    Lines(
        title="Fairness between keys",
        about="Jain's index of what the keys got lately: 1 when all got the same, 1/n when one of "
        "n got everything.",
        unit="short",
        queries={"{{profile}}": f"min by (profile) (slotwise_fairness_jain_index{_P})"},
        top=1,
    ),
    Areas(
        title="Conversations",
        about="Remembered conversations: running, waiting, warm (a slot holds it) or cold (none "
        "does).",
        unit="short",
        queries={"{{state}}": f"sum by (state) (slotwise_sessions{_P})"},
    ),
)
