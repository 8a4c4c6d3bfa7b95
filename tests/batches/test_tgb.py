"""Negatives in the Temporal Graph Benchmark's layout, and its own evaluator on the same scores.

The fixture is laid out as the benchmark's Wikipedia files: an edge list and a pickled dictionary of
negatives for each of validation and test.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegraph as tg
from tidegraph.batches.negatives import FixedNegatives
from tidegraph.batches.tgb import load_tgb
from tidegraph.batches.tgb_negatives import read_pickle
from tidegraph.events import Events, read_table
from tidegraph.models.recency import Recency
from tidegraph.train.baselines import evaluate_baseline

USERS, ITEMS, EVENTS, NEGATIVES = 6, 9, 60, 7


@dataclass(frozen=True)
class Fixture:
    """What was written: the directory, and what validation and test are ranked against."""

    root: Path
    negatives: dict[str, dict[tuple[Any, Any, Any], Any]]


@pytest.fixture
def written(tmp_path: Path) -> Fixture:
    rng = np.random.default_rng(3)
    place = tmp_path / "tgbl_wiki"
    place.mkdir()
    user = np.concatenate([np.arange(USERS), rng.integers(0, USERS, EVENTS - USERS)])
    item = np.concatenate([np.arange(ITEMS), rng.integers(0, ITEMS, EVENTS - ITEMS)])
    time = np.arange(EVENTS) * 10 + rng.integers(0, 10, EVENTS)
    rows = [
        f"{u},{i},{t}.0,0,{u * 0.5},{i * 0.25}" for u, i, t in zip(user, item, time, strict=True)
    ]
    header = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"
    (place / "tgbl-wiki_edgelist_v2.csv").write_text("\n".join([header, *rows]) + "\n")
    negatives: dict[str, dict[tuple[Any, Any, Any], Any]] = {}
    for part, (start, stop) in {"val": (42, 51), "test": (51, 60)}.items():
        found = {}
        for event in range(start, stop):
            others = np.setdiff1d(np.arange(ITEMS), [item[event]])
            drawn = rng.choice(others, NEGATIVES, replace=False) + USERS
            # As py-tgb saves them: keys of NumPy numbers, arrays of floats or integers.
            key = (user[event], item[event] + USERS, np.float64(time[event]))
            found[key] = drawn.astype(float) if part == "val" else drawn
        negatives[part] = found
        for protocol, name in ((4, f"tgbl-wiki_{part}_ns_v2.pkl"), (2, f"{part}_old.pkl")):
            with (place / name).open("wb") as file:
                pickle.dump(found, file, protocol=protocol)
    return Fixture(place, negatives)


def test_each_event_is_ranked_against_its_own_list(written: Fixture) -> None:
    events = read_table(written.root, layout="tgb")
    for part, (start, stop) in {"val": (42, 51), "test": (51, 60)}.items():
        for name in (f"tgbl-wiki_{part}_ns_v2.pkl", f"{part}_old.pkl"):
            fixed = FixedNegatives.read(written.root / name, events)
            found = fixed.candidates(start, stop).node_BC
            for place, row in zip(range(start, stop), found, strict=True):
                key = (events.source[place], events.target[place], events.time[place])
                assert row.tolist() == written.negatives[part][key].tolist()


def test_an_event_without_a_list_is_named(written: Fixture) -> None:
    """I33: the file of validation has nothing for the test."""
    events = read_table(written.root, layout="tgb")
    fixed = FixedNegatives.read(written.root / "tgbl-wiki_val_ns_v2.pkl", events)
    with pytest.raises(tg.InputError, match="no candidates for event row 51"):
        fixed.candidates(50, 52)


def scores(events: Events, fixed: FixedNegatives) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the test events and their negatives by recency: with many ties."""
    scorer = Recency()
    positive, negative = [], []
    for at in range(len(events)):
        here = slice(at, at + 1)
        if at >= 51:
            candidate = np.concatenate(
                [events.target[here, None], fixed.candidates(at, at + 1).node_BC], axis=1
            )
            score = scorer.score(events.source[here], candidate, events.time[here])
            positive.append(score[:, 0])
            negative.append(score[:, 1:])
        scorer.update(events.source[here], events.target[here], events.time[here])
    return np.concatenate(positive), np.concatenate(negative)


def plain_figures(positive_B: np.ndarray, negative_BC: np.ndarray) -> dict[str, float]:
    """The benchmark's rule, one event at a time: the mean of best and worst rank among ties."""
    reciprocal, hits = [], []
    for positive, negatives in zip(positive_B, negative_BC, strict=True):
        above = sum(negative > positive for negative in negatives)
        beside = sum(negative >= positive for negative in negatives)
        rank = 0.5 * (above + beside) + 1
        reciprocal.append(1 / rank)
        hits.append(rank <= 10)
    return {"mrr": float(np.mean(reciprocal)), "hits@10": float(np.mean(hits))}


def test_figures_follow_the_published_rule(written: Fixture) -> None:
    events = read_table(written.root, layout="tgb")
    fixed = FixedNegatives.read(written.root / "tgbl-wiki_test_ns_v2.pkl", events)
    ours = evaluate_baseline(
        Recency(), events, 51, 60, negatives=fixed, protocol="mrr", batch_size=1
    )
    positive_B, negative_BC = scores(events, fixed)
    assert (negative_BC == positive_B[:, None]).any()  # ties are what the rule is about
    expected = plain_figures(positive_B, negative_BC)
    assert ours["MRR"].value == pytest.approx(expected["mrr"], abs=1e-12)
    assert ours["Hits@10"].value == pytest.approx(expected["hits@10"], abs=1e-12)
    assert "prepared destinations per positive" in ours["MRR"].protocol


@pytest.mark.skipif(
    importlib.util.find_spec("tgb") is None, reason="py-tgb is not installed (tidegraph[tgb])"
)
class TestWithTheirPackage:
    def test_data_split_and_figures_are_theirs(self, written: Fixture) -> None:
        data = load_tgb("tgbl-wiki", root=str(written.root.parent), download=False)
        by_layout = read_table(written.root, layout="tgb")
        for name in ("source", "target", "time"):
            assert (getattr(data.events, name) == getattr(by_layout, name)).all()
        assert data.events.features is not None
        assert by_layout.features is not None
        assert (data.events.features == by_layout.features).all()
        assert [len(part) for part in data.split] == [42, 9, 9]
        assert data.metric == "mrr"
        fixed = data.test_negatives()
        ours = evaluate_baseline(
            Recency(), data.events, 51, 60, negatives=fixed, protocol="mrr", batch_size=1
        )
        theirs = data.official(*scores(data.events, fixed))
        # theirs takes reciprocals in float32
        assert theirs["mrr"] == pytest.approx(ours["MRR"].value, abs=2e-7)
        assert theirs["hits@10"] == ours["Hits@10"].value

    def test_their_sampler_gives_the_same_negatives(self, written: Fixture) -> None:
        from tgb.linkproppred.negative_sampler import NegativeEdgeSampler

        data = load_tgb("tgbl-wiki", root=str(written.root.parent), download=False)
        sampler = NegativeEdgeSampler("tgbl-wiki")
        for part, fixed in (("val", data.val_negatives()), ("test", data.test_negatives())):
            sampler.load_eval_set(str(getattr(data, f"{part}_path")), part)
            chosen = getattr(data.split, part)
            theirs = sampler.query_batch(chosen.source, chosen.target, chosen.time, split_mode=part)
            ours = fixed.candidates(chosen.start, chosen.stop).node_BC
            assert ours.tolist() == theirs

    def test_a_name_that_is_not_there(self, written: Fixture) -> None:
        with pytest.raises(tg.InputError, match="py-tgb cannot load 'tgbl-wikipedia'"):
            load_tgb("tgbl-wikipedia", root=str(written.root.parent), download=False)
        with pytest.raises(tg.InputError, match="py-tgb cannot load 'tgbl-review'"):
            load_tgb("tgbl-review", root=str(written.root.parent), download=False)


def test_without_their_package_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tgb", None)
    monkeypatch.setitem(sys.modules, "tgb.linkproppred.dataset", None)
    with pytest.raises(tg.TidegraphError, match="pip install py-tgb"):
        load_tgb("tgbl-wiki")
    with pytest.raises(tg.TidegraphError, match="typed graphs"):
        load_tgb("thgl-software")


# ---------------------------------------------------------------- pickles that are not negatives

EVENTS_2 = Events.from_arrays([0, 1], [2, 3], [5, 6])


class Runs:
    """Unpickled, it would call something."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "payload",
    [
        lambda path: Runs(os.system, f"touch {path}"),
        lambda path: Runs(Path.touch, path),
        lambda path: Runs(eval, f"open({str(path)!r}, 'w')"),
        lambda path: {(0, 2, 5): Runs(exec, f"open({str(path)!r}, 'w')")},
        lambda path: {(0, 2, 5): np.array([Runs(Path.touch, path)], object)},
        lambda path: Runs(getattr, path, "touch"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_would_run_code_is_refused_and_not_run(
    tmp_path: Path, payload: Callable[[Path], Any], protocol: int
) -> None:
    path, touched = tmp_path / "x_test_ns.pkl", tmp_path / "touched"
    path.write_bytes(pickle.dumps(payload(touched), protocol=protocol))
    with pytest.raises(tg.InputError, match="nothing else is loaded, since a pickle can run"):
        FixedNegatives.read(path, EVENTS_2)
    assert not touched.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_of_every_protocol_are_read(tmp_path: Path, protocol: int) -> None:
    content = {
        (np.int64(0), 2, np.float64(5)): np.array([1, 2], np.int32),
        (1, 3, 6): [np.int64(4), 5],
        "text": (b"\x00\xff", 1.5, None, True, np.float32(2)),
    }
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    found = read_pickle(path)
    assert found[(0, 2, 5)].tolist() == [1, 2]
    assert found[(1, 3, 6)] == [4, 5]
    assert found["text"] == content["text"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds list; expected a dictionary"),
        ({}, "holds dict; expected a dictionary"),
        ({(0, 2): [1]}, "has the key (0, 2); expected (source, destination, time)"),
        ({(5, 0, 2, 1): [1]}, "Negatives of typed graphs"),
        ({(7, 8, 9): [1]}, "none of its 1 keys, such as (7, 8, 9), is an event of memory, such as"),
        ({(0, 2, 5): 3}, "the negatives of (0, 2, 5) are 3; expected a list of nodes"),
        ({(0, 2, 5): ["a"]}, "expected a list of nodes"),
        ({(0, 2, 5): [1.5]}, "are not whole numbers"),
        ({(0, 2, 5): [99]}, "in the candidates"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "x_test_ns.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(tg.InputError) as found:
        FixedNegatives.read(path, EVENTS_2)
    assert message in str(found.value)


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "x_test_ns.pkl"
    whole = pickle.dumps({(0, 2, 5): np.arange(3)})
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(
            tg.InputError, match=r"not a (readable pickle|pickle of plain)|is not a"
        ):
            FixedNegatives.read(path, EVENTS_2)
    with pytest.raises(tg.InputError, match="cannot be read"):
        FixedNegatives.read(tmp_path / "no.pkl", EVENTS_2)
