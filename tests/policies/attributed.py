"""A prompt's sections, what the engine's work costs, and any facts that a prompt may end with."""

from __future__ import annotations

from hypothesis import strategies as st

from slotwise.policies.attribution import Earlier, Facts
from slotwise.policies.params import Cost
from slotwise.policies.types import Section

CHAT = (
    Section("tools", -1, 100),
    Section("system", 0, 200),
    Section("user", 1, 300),
    Section("assistant", 2, 360),
    Section("user", 3, 400),
    Section("template", -1, 404),
)
COST = Cost(prefill_c_s=5, prefill_a_s=0.01, prefill_b_s=0, decode_s=0.1)
COUNT = st.integers(0, 60)


@st.composite
def any_facts(draw: st.DrawFn) -> Facts:
    length, n = draw(COUNT), draw(COUNT)
    before = draw(
        st.none()
        | st.builds(
            Earlier,
            length=st.just(length),
            computed=st.integers(0, length),
            common=st.integers(0, min(length, n)),
            answer=COUNT,
        )
    )
    ends = sorted(draw(st.lists(COUNT, max_size=6)))
    names = st.sampled_from(("tools", "system", "user", "assistant", "tool", "template"))
    sections = tuple(Section(draw(names), 0, end) for end in ends)
    return draw(
        st.builds(
            Facts,
            n=st.just(n),
            cached=COUNT,
            here=COUNT,
            tail=COUNT,
            elsewhere=COUNT,
            ever=COUNT,
            earlier=st.just(before),
            sections=st.just(sections),
        )
    )
