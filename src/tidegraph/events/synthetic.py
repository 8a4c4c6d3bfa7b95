"""Seeded event streams of any size, shaped like two well-known data sets.

`wikipedia_like` has users who mostly return to the item they edited last, and event features;
`talk_like` is a large message network with heavy-tailed degrees. Both use counter-based keys and
only arithmetic that IEEE 754 fixes to the last bit (no `exp`, `log` or `pow`), so a seed gives the
same events on every machine and with every version of NumPy.

Shape legend: E events, N nodes, U users (sources), I items (targets), F event-feature width.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.errors import SettingError
from tidegraph.events.core import Events
from tidegraph.keys import Purpose, bits, make_key, permutation, random_below, random_bits, uniform

WIKIPEDIA_USERS = 8_227
WIKIPEDIA_ITEMS = 1_000
WIKIPEDIA_EVENTS = 157_474
WIKIPEDIA_FEATURES = 172
WIKIPEDIA_SECONDS = 2_678_373
TALK_NODES = 1_100_000
TALK_EVENTS = 7_800_000
TALK_SECONDS = 2_320 * 86_400

_RETURN_SHARE = 0.79
_REVISIT_SHARE = 0.7
_CODE_WIDTH = 16
_SLICES = 1 << 16
_ROWS = 256  # filled by one thread at a time

# Quantile functions as (share, value) knots, joined by straight lines. The values were measured on
# the Wikipedia edits that the generator imitates.
_USER_EVENTS = (
    (0.0, 0.4, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0),
    (1.0, 1.0, 2.5, 9.0, 44.0, 98.0, 273.0, 805.0, 1900.0),
)
_ITEM_WEIGHT = (
    (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0),
    (84.0, 97.0, 119.0, 166.0, 253.0, 337.0, 726.0, 1937.0),
)
_STAY_GAP = (
    (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0),
    (1.0, 35.0, 76.0, 232.0, 1_229.0, 32_656.0, 85_073.0, 407_331.0, 1_251_702.0),
)
_SWITCH_GAP = (
    (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0),
    (1.0, 103.0, 564.0, 7_605.0, 81_444.0, 280_540.0, 558_834.0, 1_345_409.0, 2_037_579.0),
)


class _Stream(IntEnum):
    """One stream of random numbers for each decision of the generators."""

    USER_ORDER = 1
    ITEM_ORDER = 2
    USER_START = 3
    STAY = 4
    PICK = 5
    GAP = 6
    ITEM_CODE = 7
    USER_CODE = 8
    PROJECTION = 9
    NOISE = 10
    NODE_ORDER = 11
    KIND = 12
    ENDPOINT = 13


@dataclass(frozen=True)
class SyntheticArrays:
    """What a generator returns: time-sorted columns of internal node numbers.

    Attributes:
        source_E: [E] int64, node of the source.
        target_E: [E] int64, node of the target.
        time_E: [E] int64 seconds, non-decreasing.
        features_EF: [E, F] float32, or None.
        num_nodes: N.
        num_sources: U where sources and targets are disjoint, else None.
    """

    source_E: np.ndarray
    target_E: np.ndarray
    time_E: np.ndarray
    features_EF: np.ndarray | None
    num_nodes: int
    num_sources: int | None


def wikipedia_like(
    scale: float = 1.0, seed: int = 0, *, features: int = WIKIPEDIA_FEATURES
) -> SyntheticArrays:
    """Edits of items by users: 8,227 x 1,000 nodes and 157,474 events over 31 days at scale 1.

    79% of all events return to the item of the same user's event before. The others go back to an
    item the user has been to (70%) or to a new one drawn by popularity. Half of the users have one
    or two events, the busiest about 1,700. Features are a fixed random projection of codes of the
    item and of the user, plus noise of the same size.

    Args:
        scale: multiplies users, items and events; the time span stays.
        seed: any integer.
        features: width F of the event features; 0 for none.

    Returns:
        Arrays with users as nodes 0..U-1 and items as nodes U..U+I-1. Every node has an event.

    Raises:
        SettingError: the scale leaves fewer than 2 users or items, or is not a positive number.

    >>> small = wikipedia_like(scale=0.01)
    >>> len(small.time_E), small.num_sources, small.num_nodes, small.features_EF.shape
    (1575, 82, 92, (1575, 172))
    """
    users = _scaled(WIKIPEDIA_USERS, scale, "users")
    items = _scaled(WIKIPEDIA_ITEMS, scale, "items")
    count_U = _user_event_counts(users, _scaled(WIKIPEDIA_EVENTS, scale, "events"), seed)
    first_U = np.cumsum(count_U) - count_U
    events = int(count_U.sum())

    # The first event of a user cannot return, so the others return a little more often than 79%.
    stay_share = min(1.0, _RETURN_SHARE * events / max(events - users, 1))
    item_E, stayed_E = _walk_items(
        first_U,
        count_U,
        _first_items(users, items, seed),
        *_weights(_spread(_ITEM_WEIGHT, items)[permutation(_key(seed, _Stream.ITEM_ORDER), items)]),
        uniform(_key(seed, _Stream.STAY), events) < stay_share,
        _kernel_key(seed, _Stream.PICK),
    )
    user_E = np.repeat(np.arange(users), count_U)
    time_E = _walk_times(first_U, count_U, stayed_E, seed)

    order_E = np.argsort(time_E, kind="stable")
    user_E, item_E, time_E = user_E[order_E], item_E[order_E], time_E[order_E]
    features_EF = _wikipedia_features(user_E, item_E, users, items, features, seed)
    return SyntheticArrays(user_E, item_E + users, time_E, features_EF, users + items, users)


def talk_like(scale: float = 1.0, seed: int = 0, *, features: int = 0) -> SyntheticArrays:
    """Messages between users: 1.1 million nodes, 7.8 million events over 2,320 days at scale 1.

    Nodes arrive over time, mostly by being written to. Of the other events 15% answer an earlier
    message, 25% repeat one, and the rest join two nodes drawn with Zipf-like weights, senders far
    more unequal than receivers. Node numbers say nothing about arrival or degree.

    Args:
        scale: multiplies nodes and events; the time span stays.
        seed: any integer.
        features: width F of pure-noise event features; 0 for none.

    Returns:
        Arrays over nodes 0..N-1, not bipartite. Every node has an event.

    Raises:
        SettingError: the scale leaves fewer than 2 nodes, or is not a positive number.

    >>> small = talk_like(scale=0.001)
    >>> len(small.time_E), small.num_nodes, small.features_EF is None
    (7800, 1100, True)
    """
    nodes = _scaled(TALK_NODES, scale, "nodes")
    events = _scaled(TALK_EVENTS, scale, "events")
    rank_N = np.arange(nodes, dtype=np.float64)
    source_E, target_E = _talk_endpoints(
        events,
        *_weights(1.0 / (rank_N + 20.0)),
        *_weights(1.0 / np.sqrt(rank_N + 50.0)),
        permutation(_key(seed, _Stream.NODE_ORDER), nodes),
        _kernel_key(seed, _Stream.KIND),
        _kernel_key(seed, _Stream.ENDPOINT),
    )
    features_EF = None
    if features:
        features_EF = np.empty((events, features), dtype=np.float32)
        _fill_noise(features_EF, _kernel_key(seed, _Stream.NOISE))
    return SyntheticArrays(source_E, target_E, _talk_times(events, seed), features_EF, nodes, None)


def synthetic_events(kind: str, scale: float = 1.0, seed: int = 0) -> Events:
    """The generated stream as `Events`, named after its settings.

    Args:
        kind: "wikipedia" or "talk".
        scale: size, see the generators.
        seed: any integer.

    Raises:
        SettingError: an unknown kind, or a scale that leaves no graph.

    >>> len(synthetic_events("wikipedia", scale=0.01))
    1575
    """
    if kind not in GENERATORS:
        known = ", ".join(GENERATORS)
        raise SettingError(f"no generator is called {kind!r}; there are: {known}")
    arrays = GENERATORS[kind](scale, seed)
    return Events.from_arrays(
        arrays.source_E,
        arrays.target_E,
        arrays.time_E,
        features=arrays.features_EF,
        num_nodes=arrays.num_nodes,
        num_sources=arrays.num_sources,
        bipartite=arrays.num_sources is not None,
        time_unit="s",
        name=f"synthetic:{kind} (scale {scale:g}, seed {seed})",
    )


GENERATORS = {"wikipedia": wikipedia_like, "talk": talk_like}


def _key(seed: int, stream: _Stream) -> int:
    return make_key(seed, Purpose.SYNTHETIC, stream)


def _kernel_key(seed: int, stream: _Stream) -> np.uint64:
    return np.uint64(_key(seed, stream))  # one type for every key, so that kernels compile once


def _scaled(count: int, scale: float, what: str) -> int:
    if not 0.0 < scale <= 100.0:
        raise SettingError(f"scale is {scale!r}; expected a number above 0 and at most 100")
    scaled = round(count * scale)
    if scaled < 2:
        raise SettingError(f"scale {scale:g} leaves {scaled} {what}; use at least {2 / count:.1g}")
    return scaled


def _spread(knots: tuple[tuple[float, ...], tuple[float, ...]], count: int) -> np.ndarray:
    """A quantile function at `count` evenly spaced shares, ascending."""
    return _quantile(knots, (np.arange(count) + 0.5) / count)


def _quantile(knots: tuple[tuple[float, ...], tuple[float, ...]], share: np.ndarray) -> np.ndarray:
    """Linear interpolation between knots; `np.interp` may reorder its arithmetic, this may not."""
    x, y = np.array(knots[0]), np.array(knots[1])
    right = np.clip(np.searchsorted(x, share, side="right"), 1, len(x) - 1)
    left = right - 1
    part = (share - x[left]) / (x[right] - x[left])
    rise = part * (y[right] - y[left])
    value: np.ndarray = y[left] + rise
    return value


def _weights(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Running sums, and a guide: where each of 65,536 equal slices of the sum begins.

    A draw looks up its slice and searches a few neighbouring entries, not the whole table.
    """
    cumulative = np.cumsum(weight)  # sequential by definition, unlike `np.sum`
    border = np.arange(_SLICES + 1) * (cumulative[-1] / _SLICES)
    return cumulative, np.searchsorted(cumulative, border, side="right")


def _user_event_counts(users: int, events: int, seed: int) -> np.ndarray:
    """[U] int64, at least 1 each, adding up to `events`, heavy-tailed, in a random user order."""
    extra = _spread(_USER_EVENTS, users) - 1.0
    share = extra * ((events - users) / max(float(np.cumsum(extra)[-1]), 1.0))
    count = 1 + np.floor(share).astype(np.int64)
    missing = events - int(count.sum())  # less than one per user: the busiest users take it
    count[users - missing :] += 1
    shuffled: np.ndarray = count[permutation(_key(seed, _Stream.USER_ORDER), users)]
    return shuffled


def _first_items(users: int, items: int, seed: int) -> np.ndarray:
    """[U] the item a user must start with, so that no item stays unseen; -1 for a free choice."""
    first = np.full(users, -1, dtype=np.int64)
    forced = min(users, items)
    first[permutation(_key(seed, _Stream.USER_START), users)[:forced]] = np.arange(forced)
    return first


@kernel()
def _walk_items(first_U, count_U, forced_U, sum_I, guide, stay_E, key):  # type: ignore[no-untyped-def]
    """Each user's items in the user's own order, and whether each event stayed on its item."""
    item_E = np.empty(len(stay_E), dtype=np.int64)
    stayed_E = np.zeros(len(stay_E), dtype=np.bool_)
    for user in range(len(first_U)):
        start = first_U[user]
        for event in range(start, start + count_U[user]):
            slot = np.uint64(event) * np.uint64(8)
            if event == start and forced_U[user] >= 0:
                item_E[event] = forced_U[user]
            elif event > start and stay_E[event]:
                item_E[event] = item_E[event - 1]
                stayed_E[event] = True
            else:
                previous = item_E[event - 1] if event > start else -1
                item_E[event] = _other_item(item_E, start, event, previous, sum_I, guide, key, slot)
    return item_E, stayed_E


@kernel(inner=True)
def _other_item(item_E, start, event, previous, sum_I, guide, key, slot):  # type: ignore[no-untyped-def]
    """An item other than `previous`: one of the user's earlier ones, or one by popularity."""
    if _unit(key, slot) < _REVISIT_SHARE:
        for attempt in range(1, 4):
            if event > start:
                item = item_E[start + random_below(key, slot + np.uint64(attempt), event - start)]
                if item != previous:
                    return item
    item = previous
    for attempt in range(4, 8):
        item = _draw(sum_I, guide, len(sum_I), _unit(key, slot + np.uint64(attempt)))
        if item != previous:
            return item
    return (item + 1) % len(sum_I)


@kernel(inline=True)
def _unit(key, slot):  # type: ignore[no-untyped-def]
    """A float64 in [0, 1)."""
    return np.float64(random_bits(key, slot) >> np.uint64(11)) * 2.0**-53


@kernel(inline=True)
def _draw(cumulative, guide, count, share):  # type: ignore[no-untyped-def]
    """Index below `count`, drawn in proportion to the weights behind `cumulative`."""
    wanted = share * cumulative[count - 1]
    bucket = np.int64(wanted * ((len(guide) - 1) / cumulative[-1]))
    # Rounding may miss the bucket's border by one entry, hence the margin on both sides.
    low = max(guide[bucket] - 1, 0)
    high = min(guide[min(bucket + 1, len(guide) - 1)] + 1, count - 1)
    while low < high:
        middle = (low + high) // 2
        if cumulative[middle] > wanted:
            high = middle
        else:
            low = middle + 1
    return low


def _walk_times(
    first_U: np.ndarray, count_U: np.ndarray, stayed_E: np.ndarray, seed: int
) -> np.ndarray:
    """[E] int64 seconds, non-decreasing per user: short gaps on one item, longer between items."""
    share_E = uniform(_key(seed, _Stream.GAP), len(stayed_E))
    gap_E = np.where(stayed_E, _quantile(_STAY_GAP, share_E), _quantile(_SWITCH_GAP, share_E))
    gap_E = np.floor(gap_E).astype(np.int64)
    gap_E[first_U] = 0
    since_E = np.cumsum(gap_E)
    since_E -= np.repeat(since_E[first_U], count_U)

    # Lives are squeezed smoothly below the span, to 1 - 1 / (1 + life)^2 of it, so that long ones
    # nearly fill it and traffic stays even; then a free start is drawn.
    span = WIKIPEDIA_SECONDS
    life_U = since_E[first_U + count_U - 1] / span
    squeeze_U = (2.0 + life_U) / ((1.0 + life_U) * (1.0 + life_U))
    fitted_E = np.repeat(squeeze_U, count_U) * since_E
    since_E = np.floor(fitted_E).astype(np.int64)
    room_U = span - since_E[first_U + count_U - 1]
    share_U = uniform(_key(seed, _Stream.USER_START), len(first_U), start=1 << 32)
    start_U = np.floor(share_U * room_U).astype(np.int64)
    time_E: np.ndarray = since_E + np.repeat(start_U, count_U)
    return time_E


def _wikipedia_features(
    user_E: np.ndarray, item_E: np.ndarray, users: int, items: int, width: int, seed: int
) -> np.ndarray | None:
    if width == 0:
        return None
    code_I = np.empty((items, _CODE_WIDTH), dtype=np.float32)
    code_U = np.empty((users, _CODE_WIDTH), dtype=np.float32)
    projection = np.empty((width, _CODE_WIDTH), dtype=np.float32)
    for array, stream in (
        (code_I, _Stream.ITEM_CODE),
        (code_U, _Stream.USER_CODE),
        (projection, _Stream.PROJECTION),
    ):
        _fill_noise(array, _kernel_key(seed, stream))
    features_EF = np.empty((len(user_E), width), dtype=np.float32)
    _fill_noise(features_EF, _kernel_key(seed, _Stream.NOISE))
    shift = np.float32(1.0 / _CODE_WIDTH)  # item part: variance 16/256 x 4 = 1/4 of the noise's
    _add_projected(features_EF, item_E, code_I, projection, shift * np.float32(2.0))
    _add_projected(features_EF, user_E, code_U, projection[::-1].copy(), shift)
    return features_EF


@kernel(block=True)
def _noise_block(first, last, out, key):  # type: ignore[no-untyped-def]
    width = out.shape[1]
    # Variance of the sum is 4 (2^32 - 1) / 12.
    unit = np.float32(1.0 / 37837.22750463)
    for row in range(first, last):
        for column in range(width):
            word = random_bits(key, np.uint64(row) * np.uint64(width) + np.uint64(column))
            total = np.int64(-131070)
            for quarter in range(4):
                total += np.int64((word >> np.uint64(16 * quarter)) & np.uint64(0xFFFF))
            out[row, column] = np.float32(total) * unit


@kernel()
def _fill_noise(out, key):  # type: ignore[no-untyped-def]
    """Bell-shaped numbers, mean 0, variance 1: sums of four 16-bit integers, exact everywhere."""
    in_blocks(_noise_block, out.shape[0], _ROWS, (out, key))


@kernel(block=True)
def _projected_block(first, last, code, projection, factor, projected):  # type: ignore[no-untyped-def]
    width, depth = projection.shape
    for node in range(first, last):
        for column in range(width):
            total = np.float32(0.0)
            for k in range(depth):
                total += projection[column, k] * code[node, k]
            projected[node, column] = total * factor


@kernel(block=True)
def _added_block(first, last, out, index_E, projected):  # type: ignore[no-untyped-def]
    for event in range(first, last):
        for column in range(out.shape[1]):
            out[event, column] += projected[index_E[event], column]


@kernel()
def _add_projected(out, index_E, code, projection, factor):  # type: ignore[no-untyped-def]
    """out[e] += factor * projection @ code[index_E[e]], each node projected once."""
    projected = np.empty((code.shape[0], projection.shape[0]), dtype=np.float32)
    in_blocks(_projected_block, code.shape[0], _ROWS, (code, projection, factor, projected))
    in_blocks(_added_block, len(index_E), _ROWS, (out, index_E, projected))


@kernel()
def _talk_endpoints(  # type: ignore[no-untyped-def]
    events, sender, sender_guide, receiver, receiver_guide, order_N, kind_key, end_key
):
    """Endpoints in time order. One event in `events / N` introduces the next node."""
    nodes = len(order_N)
    source_E = np.empty(events, dtype=np.int64)
    target_E = np.empty(events, dtype=np.int64)
    arrived = 0
    for event in range(events):
        kind = _unit(kind_key, np.uint64(event))
        slot = np.uint64(event) * np.uint64(4)
        pool = max(arrived, 1)
        due = ((event + 1) * nodes + events - 1) // events
        if due > arrived:
            other = order_N[_draw(sender, sender_guide, pool, _unit(end_key, slot))]
            fresh = order_N[arrived]
            arrived += 1
            source_E[event], target_E[event] = (other, fresh) if kind < 0.7 else (fresh, other)
        elif kind < 0.40:
            # The product of two draws prefers recent events without forgetting old ones.
            back = _unit(end_key, slot) * _unit(end_key, slot + np.uint64(1))
            earlier = event - 1 - np.int64(back * event)
            source_E[event], target_E[event] = source_E[earlier], target_E[earlier]
            if kind < 0.15:
                source_E[event], target_E[event] = target_E[earlier], source_E[earlier]
        else:
            source_E[event] = order_N[_draw(sender, sender_guide, pool, _unit(end_key, slot))]
            target_E[event] = order_N[
                _draw(receiver, receiver_guide, pool, _unit(end_key, slot + np.uint64(1)))
            ]
    return source_E, target_E


def _talk_times(events: int, seed: int) -> np.ndarray:
    """[E] int64 seconds: traffic quadruples over the span, gaps are uneven, some events tie."""
    word = bits(_key(seed, _Stream.GAP), events)
    low, high = word & np.uint64(0xFFFF), (word >> np.uint64(16)) & np.uint64(0xFFFF)
    slowness = 4.0 - 3.0 * (np.arange(events) / events)
    since = np.cumsum((low * high).astype(np.float64) * slowness)
    time_E: np.ndarray = np.floor(since * (TALK_SECONDS / since[-1])).astype(np.int64)
    return time_E
