"""Data sets of the Temporal Graph Benchmark through its own package, py-tgb, and its own evaluator.

py-tgb finds, downloads and numbers the data; what comes out are `Events`, its split and its fixed
negatives. The package is imported here and only on use.

Shape legend: E events, B positives, C negatives per positive.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph.batches.fixed_negatives import FixedNegatives
from tidegraph.errors import InputError, SettingError
from tidegraph.events.arrays import events_from_arrays
from tidegraph.events.core import Events, Split


@dataclass(frozen=True, eq=False)
class TGBData:
    """One data set of the benchmark.

    Attributes:
        name: such as "tgbl-wiki".
        events: all of them, with py-tgb's node numbers.
        split: py-tgb's training, validation and test parts.
        metric: the benchmark's figure, "mrr" or "hits@10".
        val_path, test_path: files of negatives.
    """

    name: str
    events: Events
    split: Split
    metric: str
    val_path: Path
    test_path: Path

    def val_negatives(self) -> FixedNegatives:
        """What each validation event is ranked against."""
        return FixedNegatives.read(self.val_path, self.events)

    def test_negatives(self) -> FixedNegatives:
        """What each test event is ranked against."""
        return FixedNegatives.read(self.test_path, self.events)

    def official(self, positive_B: Any, negative_BC: Any) -> dict[str, float]:
        """Figures of scores by py-tgb's own evaluator.

        Args:
            positive_B: [B] scores of the true destinations.
            negative_BC: [B, C] scores of the negatives.

        Returns:
            "mrr" and "hits@10", each a mean over the positives.
        """
        evaluator = _module("tgb.linkproppred.evaluate").Evaluator(name=self.name)
        found = evaluator.eval(
            {
                "y_pred_pos": np.asarray(positive_B),
                "y_pred_neg": np.asarray(negative_BC),
                "eval_metric": [self.metric],
            }
        )
        return {key: float(value) for key, value in found.items()}


def load_tgb(name: str, root: str = "datasets", *, download: bool = True) -> TGBData:
    """A link prediction data set of the benchmark, through py-tgb.

    Args:
        name: "tgbl-wiki", "tgbl-review", "tgbl-coin", ... Typed graphs (thgl, tkgl) are not read.
        root: directory that py-tgb keeps its data sets in; a relative one is relative to py-tgb's
            own installation.
        download: let py-tgb fetch what is not there.

    Raises:
        SettingError: py-tgb is not installed, or it is a typed graph.
        InputError: py-tgb does not know the name, or has no files of it.
    """
    if not name.startswith("tgbl-"):
        raise SettingError(
            f"{name!r}: expected a link prediction data set, tgbl-NAME; typed graphs (thgl, tkgl) "
            "and node properties (tgbn) of the benchmark are not read"
        )
    module = _module("tgb.linkproppred.dataset")
    base = str(module.PROJ_DIR)  # py-tgb puts it in front of any root
    place = os.path.relpath(root, base) if os.path.isabs(root) else root
    try:
        found = module.LinkPropPredDataset(name=name, root=place, download=download)
    except (ValueError, OSError) as error:
        raise InputError(f"py-tgb cannot load {name!r}: {error}") from None
    full = found.full_data
    time_E = np.asarray(full["timestamps"])
    whole_E = time_E.astype(np.int64)
    features = full.get("edge_feat")
    events = events_from_arrays(
        np.asarray(full["sources"]).astype(np.int64),
        np.asarray(full["destinations"]).astype(np.int64),
        whole_E if (whole_E == time_E).all() else time_E,
        features=None if features is None else np.asarray(features).reshape(len(time_E), -1),
        weight=full.get("w"),
        node_features=found.node_feat,
        time_unit="s",
        name=name,
    )
    split = _split(events, found)
    paths = (Path(found.meta_dict[key]) for key in ("val_ns", "test_ns"))
    return TGBData(name, events, split, str(found.metric), *paths)


def _split(events: Events, found: Any) -> Split:
    """py-tgb's masks as borders in time, which is how it makes them."""
    val_E, test_E = (np.asarray(mask)[events.row] for mask in (found.val_mask, found.test_mask))
    if not (val_E.any() and test_E.any()):
        raise InputError(f"{found.name}: py-tgb's split has no validation or no test events")
    stops = [int(np.argmax(val_E)), int(np.argmax(test_E))]
    train = events.range(0, stops[0], "train")
    val = events.range(stops[0], stops[1], "val")
    test = events.range(stops[1], len(events), "test")
    if not (val_E[val.start : val.stop].all() and test_E[test.start :].all()):
        raise InputError(f"{found.name}: py-tgb's split is not in order of time")
    return Split(train, val, test, "as py-tgb splits")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SettingError(
            "data sets and evaluators of the Temporal Graph Benchmark need py-tgb, which cannot be "
            f"imported ({error}): pip install py-tgb"
        ) from None
