"""What is told of a placement beside the placement: what it lost, whom it overtook, and why."""

from __future__ import annotations

from typing import NamedTuple

from slotwise.policies import regret
from slotwise.policies.case import View
from slotwise.policies.order import PROMOTES, Promotion
from slotwise.policies.regret import Loss, Obstacle
from slotwise.policies.types import Place, Rule
from slotwise.proxy.core.actions import HomeWait
from slotwise.proxy.core.book import Profile
from slotwise.proxy.core.contexts import BACKGROUND_KINDS
from slotwise.proxy.core.waiter import Waiter

UNPINNED = -1  # the id_slot of a request whose slot the engine chooses
_HOME_RULES = (Rule.HOME, Rule.BRANCH, Rule.SESSION)


class Story(NamedTuple):
    """Fields of :class:`proxy.core.actions.Dispatch`."""

    regret: tuple[Loss, ...]
    promoted: Promotion | None
    home_wait: HomeWait | None


def story(profile: Profile, waiter: Waiter, place: Place, view: View, now: float) -> Story:
    """Of a request that is about to be sent, ``view`` being what was decided on."""
    losses = {loss.obstacle: loss.seconds for loss in waiter.lost(now)}
    if place.slot != UNPINNED and place.rule is not Rule.HOME:  # nothing beats a home
        fits = view.fits(waiter.view.request)
        dearer = regret.of_slot(waiter.view, view, fits, place.slot)
        if dearer is not None:
            losses[dearer.obstacle] = losses.get(dearer.obstacle, 0.0) + dearer.seconds
    home_wait = None
    if waiter.home_busy:
        home_wait = HomeWait.PLACED if place.rule in _HOME_RULES else HomeWait.GAVE_UP
    return Story(
        tuple(Loss(obstacle, losses[obstacle]) for obstacle in Obstacle if obstacle in losses),
        _promotion(profile, waiter, now),
        home_wait,
    )


def _promotion(profile: Profile, waiter: Waiter, now: float) -> Promotion | None:
    """Why it goes before others; None: by the usual order, or nobody else is there."""
    others = len(profile.waiters) > 1 or profile.running
    if not others:
        return None
    waited_s = now - waiter.view.arrived
    is_background = waiter.view.request.kind in BACKGROUND_KINDS
    if is_background and waited_s >= profile.params.side_job_wait_s:
        return Promotion.BACKGROUND
    return PROMOTES.get(waiter.place) if len(profile.waiters) > 1 else None
