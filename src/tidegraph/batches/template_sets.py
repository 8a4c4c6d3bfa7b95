"""Choosing templates: as few shapes as keep padding below a bound, for the batches of a plan.

Shape legend: n batches of a sample, d size classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.batches.templates import Form, Sizes, Template, form_of, sizes_of
from tidegraph.errors import SettingError

_STEP = 8  # sizes are multiples of it
_MARGIN = 0.02  # room above the largest sampled size: other epochs draw other negatives
_HEADROOM = 0.8  # of the bound on waste, for batches that were not sampled
_KNOWN = {
    "number", "version", "key", "event_B", "root_R", "root_uses", "candidates", "node_U", "hops",
    "mail", "writes", "features", "node_features", "event_E", "padding", "seeds", "ends", "shared",
    "walks",
}  # fmt: skip


@dataclass(frozen=True)
class TemplateSet:
    """The templates of a plan, smallest first.

    Attributes:
        templates: by number of rows, ascending.
        expected_waste: padding rows per real row over the batches that they were chosen from.
    """

    templates: tuple[Template, ...]
    expected_waste: float

    @classmethod
    def fit(
        cls,
        batches: Iterable[PreparedBatch],
        *,
        num_nodes: int,
        most: int = 12,
        waste: float = 0.15,
    ) -> TemplateSet:
        """Choose as few templates as keep padding below a bound, for batches such as these.

        The sampled batches are put in order of their rows and cut into runs; a run's template holds
        the largest of each of its sizes, and a little more. The cuts are the best there are
        (dynamic programming), so the choice depends on nothing but the sizes.

        Args:
            batches: not padded, of one form; only their sizes are kept.
            num_nodes: N of the node state.
            most: how many templates at most.
            waste: padding rows per real row to stay below; with `most` templates more may be left.

        Raises:
            SettingError: no batches, or batches that can share no template.

        >>> TemplateSet.fit([], num_nodes=3)
        Traceback (most recent call last):
        tidegraph.errors.SettingError: templates are chosen from prepared batches: there are none
        """
        forms, found = set(), []
        for batch in batches:
            forms.add(form_of(batch))
            found.append(sizes_of(batch))
        if not found:
            raise SettingError("templates are chosen from prepared batches: there are none")
        form, whole = _common_form(forms)
        vectors_nd = np.array([sizes.vector() for sizes in found], np.int64)
        if whole:
            vectors_nd[:, -1] = 0
        order_n = np.lexsort([*vectors_nd.T, vectors_nd.sum(1)])
        vectors_nd = vectors_nd[order_n]
        room = _Room(np.array([True, *[True] * len(found[0].seeds), True, form.mail, form.mail,
                               form.writes, form.writes, not whole]))  # fmt: skip
        cuts, spent = _best_cuts(vectors_nd, room, most, _HEADROOM * waste)
        one_each = bool((vectors_nd[:, -2] == vectors_nd[:, -3]).all())
        chosen = {
            Template(form, room.sizes(vectors_nd[first:last].max(0), one_each), num_nodes)
            for first, last in pairwise(cuts)
        }
        ordered = sorted(chosen, key=lambda t: (t.sizes.rows, t.sizes.vector()))
        return cls(tuple(ordered), spent / max(int(vectors_nd.sum()), 1))

    def choose(self, batch: PreparedBatch) -> Template | None:
        """The smallest template that the batch fits, None if there is none."""
        if batch.padding is not None or not _paddable(batch):
            return None
        form, sizes = form_of(batch), sizes_of(batch)
        for template in self.templates:
            own = template.form
            if own.table_rows is None and form.table_rows is not None:
                form = replace(form, table_rows=None)  # decoded for this batch
            if own == form and template.fits(sizes):
                return template
        return None


def _paddable(batch: PreparedBatch) -> bool:
    """Everything in the batch is known here; what another model adds is not."""
    return all(
        field.name in _KNOWN or getattr(batch, field.name) in (None, ()) for field in fields(batch)
    )


def _common_form(forms: set[Form]) -> tuple[Form, bool]:
    """The one form of all batches, and whether their features are the whole store."""
    if len(forms) > 1 and len({replace(form, table_rows=None) for form in forms}) == 1:
        # Stores that kernels cannot read in place are decoded for each batch.
        forms = {replace(form, table_rows=None) for form in forms}
    if len(forms) > 1:
        raise SettingError(
            f"templates need batches of one form, and there are {len(forms)}: prepare them with "
            "the same model, candidates and features"
        )
    (form,) = forms
    return form, form.table_rows is not None


@dataclass(frozen=True, eq=False)
class _Room:
    """How large a template must be for batches up to some size.

    Attributes:
        present_d: [d] bool, size classes that the batches have.
    """

    present_d: np.ndarray

    def of(self, largest_d: np.ndarray) -> np.ndarray:
        """A dummy row, some room, a round number: [..., d] from [..., d]."""
        most_d = np.ceil(largest_d * (1 + _MARGIN)) + 1
        room_d: np.ndarray = (-(-most_d // _STEP) * _STEP).astype(np.int64) * self.present_d
        room_d[..., 0] = largest_d[..., 0]  # a plan's batch size is its largest
        return room_d

    def sizes(self, largest_d: np.ndarray, one_each: bool) -> Sizes:
        """The same for one run of batches."""
        sizes = Sizes.of_vector(self.of(largest_d))
        if one_each:
            return sizes
        # As many partners as writes would read as one partner each.
        return replace(sizes, partners=max(sizes.partners, sizes.writes + _STEP))


def _best_cuts(
    vectors_nd: np.ndarray, room: _Room, most: int, waste: float
) -> tuple[list[int], int]:
    """Borders of the runs, and the padding rows that they cost.

    The fewest runs with at most `waste` padding rows per real one; if none do, the best of `most`.
    """
    n = len(vectors_nd)
    real_n1 = np.concatenate([[0], vectors_nd.sum(1).cumsum()])
    cost = np.full((n + 1, n + 1), np.inf)  # of the run [first, last)
    for first in range(n):
        rows = room.of(np.maximum.accumulate(vectors_nd[first:], axis=0)).sum(1)
        count = np.arange(1, n - first + 1)
        cost[first, first + 1 :] = rows * count - (real_n1[first + 1 :] - real_n1[first])
    best = np.where(np.arange(n + 1) == 0, 0.0, np.inf)
    came: list[np.ndarray] = []
    for _ in range(min(most, n)):
        total = best[:, None] + cost
        came.append(total.argmin(0))
        best = total.min(0)
        if best[n] <= waste * real_n1[n]:
            break
    cuts = [n]
    for origin in reversed(came):
        cuts.append(int(origin[cuts[-1]]))
    return cuts[::-1], int(best[n])
