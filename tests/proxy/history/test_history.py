"""Seeded faults get their cause."""

from __future__ import annotations

from slotwise.proxy.core.events import (
    Failure,
    RequestCancelled,
    RequestFinished,
    SlotReport,
    SlotsReported,
)
from slotwise.proxy.history.computed import BLOCK_TOKENS
from tests.proxy.history_world import (
    ANSWER,
    BLIND,
    FIRST,
    OFFSET_S,
    SECOND,
    SYSTEM,
    TOOLS,
    USER,
    N,
    World,
    by_cause,
    ids,
)


def test_a_turn_that_goes_on_is_cached_with_its_answer() -> None:
    world = World()
    assert by_cause(world.ask("a", FIRST, "s", ANSWER)) == {"new": N}
    record = world.ask("b", SECOND, "s")
    assert by_cause(record) == {"cached": N + 39, "new": 31}
    assert (record.bound, record.changed, record.displaced) == (N + 39, None, None)


def test_the_same_prompt_again_computes_its_last_token() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    assert by_cause(world.ask("b", FIRST, "s")) == {"cached": N - 1, "min_one": 1}


def test_a_clock_in_the_system_text_is_changed_there() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    later = [*SYSTEM[1][:14], 7, 8, *SYSTEM[1][16:]]
    record = world.ask("b", [TOOLS, ("system", later), *SECOND[2:]], "s")
    assert by_cause(record) == {"cached": 214, "changed": N + 39 - 214, "new": 31}
    changed = record.changed
    assert changed is not None
    assert (changed.section, changed.message, changed.position) == ("system", 1, 214)
    assert changed.lead == tuple(SYSTEM[1][6:14])
    assert changed.before == tuple(SYSTEM[1][14:38])
    assert changed.after == (7, 8, *SYSTEM[1][16:38])
    by_section = {(s.cause.value, s.section): s.tokens for s in record.shares}
    assert by_section["changed", "system"] == 86
    assert by_section["changed", "user"] == 50


def test_tools_in_another_order_are_changed_there() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    swapped = ("tools", TOOLS[1][100:] + TOOLS[1][:100])
    record = world.ask("b", [swapped, *SECOND[1:]], "s")
    assert by_cause(record) == {"changed": N + 39, "new": 31}
    assert record.changed
    assert (record.changed.section, record.changed.position) == ("tools", 0)


def test_reasoning_that_is_left_out_is_a_change_of_the_answer() -> None:
    world = World()
    world.ask("a", FIRST, "s", [*ids("thought", 500), *ANSWER])
    record = world.ask("b", SECOND, "s")
    assert by_cause(record) == {"cached": N, "changed": 40, "new": 30}
    assert record.changed
    assert record.changed.in_answer
    assert (record.changed.section, record.changed.position) == ("assistant", N)
    assert record.changed.before == ()


def test_another_template_is_a_change_of_the_template() -> None:
    world = World(slots=1)
    world.ask("a", [("template", [1, 2, 3]), *FIRST], "s", ANSWER)
    record = world.ask("b", [("template", [1, 2, 4]), *SECOND], "s")
    assert by_cause(record) == {"cached": 2, "changed": N + 3 + 39 - 2, "new": 31}
    assert record.changed
    assert record.changed.section == "template"


def test_a_conversation_sent_to_another_slot_than_its_own_is_the_routers_doing() -> None:
    world = World(slots=2, **BLIND)
    world.ask("a", FIRST, "s", ANSWER)
    world.ask("b", [("user", ids("other", 20))])
    world.ask("c", [("user", ids("another", 20))])  # displaces "a" if order were by id
    world.ask("d", FIRST, "s", ANSWER)
    record = world.ask("e", SECOND, "s")
    assert by_cause(record) == {"elsewhere": N + 39, "new": 31}
    assert record.bound == N + 39


def test_a_slot_taken_by_another_is_evicted_and_the_taker_named() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    world.ask("guest", [("user", ids("title", 20))])
    record = world.ask("b", SECOND, "s")
    assert by_cause(record) == {"evicted": N + 39, "new": 31}
    assert record.displaced
    displaced = record.displaced
    assert (displaced.by, displaced.time) == ("guest", world.placed_at["guest"])


def test_of_a_head_that_many_share_the_rest_was_displaced_by_the_next_who_shared_it() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    world.ask("b", [TOOLS, SYSTEM, ("user", [*USER[1][:25], *ids("else", 60)])], "s2")
    record = world.ask("c", SECOND, "s")
    assert by_cause(record) == {"cached": 325, "evicted": N + 39 - 325, "new": 31}
    assert record.displaced
    assert record.displaced.by == "b"


def test_an_answer_given_to_another_session_is_no_change_of_this_one() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    forked = [*FIRST, ("assistant", ids("what others said", 40)), ("user", ids("go on", 30))]
    record = world.ask("b", forked, "s2")
    assert by_cause(record) == {"cached": N, "new": 70}
    assert record.changed is None


def test_without_a_session_what_was_evicted_is_known_by_blocks() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, answer=ANSWER)
    world.ask("guest", [("user", ids("title", 20))])
    record = world.ask("b", SECOND)
    whole = N // BLOCK_TOKENS * BLOCK_TOKENS
    assert by_cause(record) == {"evicted": whole, "new": N + 70 - whole}
    assert record.displaced
    assert record.displaced.by == "guest"


def test_a_sliding_window_that_reuses_nothing_is_the_engines_doing() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    record = world.ask("b", SECOND, "s", cached=0)
    assert by_cause(record) == {"engine": N + 39, "new": 31}


def test_a_prompt_restored_from_memory_is_cached_though_no_slot_held_it() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    world.ask("guest", [("user", ids("title", 20))])
    record = world.ask("b", SECOND, "s", cached=N + 39)
    assert by_cause(record) == {"cached": N + 39, "new": 31}
    assert record.displaced is None


def test_what_an_engine_held_that_ended_is_evicted_by_nobody() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    world.lose_engine()
    lost = world.now
    world.start_engine()
    record = world.ask("b", SECOND, "s")
    assert by_cause(record) == {"evicted": N + 39, "new": 31}
    assert record.displaced
    assert (record.displaced.by, record.displaced.time) == ("", lost + OFFSET_S)


def test_a_request_that_failed_is_unknown_but_what_it_computed_counts() -> None:
    world = World(slots=1)
    world.arrive("a", FIRST, "s")
    record = world.fail("a", Failure.CLIENT_GONE, processed=300)
    assert by_cause(record) == {"unknown": N}
    assert (record.failure, record.cached, record.bound) == (Failure.CLIENT_GONE, None, None)
    reported = SlotsReported("e", world.now + 0.5, (SlotReport(0, False, 300),))
    world.feed(reported)
    assert by_cause(world.ask("b", FIRST, "s")) == {"cached": 300, "new": 50}


def test_a_request_that_the_engine_refused_displaced_nothing() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER)
    world.arrive("bad", [("user", ids("bad", 20))])
    assert by_cause(world.fail("bad", Failure.REFUSED)) == {"unknown": 20}
    world.feed(SlotsReported("e", world.now + 0.5, (SlotReport(0, False, N + 39),)))
    assert "bad" not in [d.by for d in world.history._displaced.values()]
    assert by_cause(world.ask("b", SECOND, "s")) == {"cached": N + 39, "new": 31}


def test_where_the_engine_does_not_say_nothing_is_attributed() -> None:
    world = World()
    world.arrive("a", FIRST, "s")
    record = world.finish("a", silent=True)
    assert by_cause(record) == {"unknown": N}
    assert (record.bound, record.avoided_s, record.shares) == (None, 0, ())


def test_where_the_engine_counts_other_tokens_only_cached_is_known() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    world.arrive("b", SECOND, "s")
    record = world.finish("b", prompt_tokens=500)
    assert by_cause(record) == {"cached": N + 39, "unknown": 500 - N - 39}
    assert record.bound == N + 39


def test_a_title_made_for_a_conversation_is_not_its_next_turn() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    job = [*FIRST, ("assistant", ANSWER), ("user", ids("a title, please", 20))]
    assert by_cause(world.ask("t", job, "s", kind="side")) == {"cached": N + 39, "new": 21}
    record = world.ask("b", SECOND, "s")
    assert by_cause(record) == {"cached": N + 40, "new": 30}
    assert record.changed is None


def test_a_first_turn_that_looks_like_a_side_job_is_what_the_second_turn_changed() -> None:
    world = World(slots=1)
    world.ask("a", FIRST, "s", ANSWER, kind="side")
    later = [*SYSTEM[1][:14], 7, 8, *SYSTEM[1][16:]]
    record = world.ask("b", [TOOLS, ("system", later), *SECOND[2:]], "s", kind="chat")
    assert by_cause(record) == {"cached": 214, "changed": N + 39 - 214, "new": 31}
    assert record.changed
    assert (record.changed.section, record.changed.position) == ("system", 214)


def test_a_summary_is_compared_with_the_turns_it_is_made_of() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    other = ("system", ids("summarise what follows", 60))
    record = world.ask("b", [TOOLS, other, *SECOND[2:]], "s", kind="summary")
    assert record.changed
    assert (record.changed.section, record.changed.position) == ("system", 200)
    third = world.ask("c", SECOND, "s")
    assert third.changed is None


def test_another_session_with_the_same_head_has_changed_nothing() -> None:
    world = World()
    world.ask("a", FIRST, "s", ANSWER)
    record = world.ask("b", [TOOLS, SYSTEM, ("user", ids("else", 60))], "s2", cached=0)
    assert record.changed is None
    head = 300 // BLOCK_TOKENS * BLOCK_TOKENS
    assert by_cause(record)["new"] == 360 - max(head, 300)


def test_a_waiting_request_that_left_leaves_nothing_behind() -> None:
    world = World(slots=1)
    world.arrive("a", FIRST, "s")
    world.arrive("b", [("user", ids("other", 20))])
    assert world.feed(RequestCancelled("b")) is None
    assert world.feed(RequestFinished("b", 20, 0, 1, None)) is None
    world.finish("a")
    assert [r.id for r in world.history.records()] == ["a"]


def test_what_the_shell_saw_is_in_the_record() -> None:
    world = World()
    world.arrive("a", FIRST, "s", kind="agent")
    world.history.note("a", client="curl", ttft_s=0.5)
    world.history.note("a", prefill_s=0.2, decode_s=0.3, finish="stop", ttft_s=None)
    world.history.note("unheard of", client="curl")
    record = world.finish("a", ANSWER)
    known = record.known
    assert (known.client, known.ttft_s, known.finish) == ("curl", 0.5, "stop")
    assert (known.prefill_s, known.decode_s) == (0.2, 0.3)
    assert (record.kind, record.key, record.out_tokens) == ("agent", "k", 40)
    assert record.time == world.now + OFFSET_S
    assert record.took_s == 1


def test_records_are_found_by_id_session_and_number() -> None:
    world = World()
    for id, session in (("a", "s"), ("b", "t"), ("c", "s")):
        world.ask(id, FIRST, session)
    find = world.history.records
    assert [r.id for r in find()] == ["a", "b", "c"]
    assert [r.id for r in find(session="s")] == ["a", "c"]
    assert [r.id for r in find(session="s", last=1)] == ["c"]
    assert [r.id for r in find(last=0)] == []
    assert world.history.record("b") is not None
    assert world.history.record("nobody") is None
