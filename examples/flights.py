"""Where does a plane fly next? Train TGN on a data set by name, evaluate it, ask it.

python examples/flights.py                 # the bundled data, a few minutes on two cores
python examples/flights.py uci             # any other of `tidegraph datasets`
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

import tidegraph as tg
from tidegraph.models.edgebank import EdgeBank
from tidegraph.train import evaluation_plan
from tidegraph.train.baselines import evaluate_baseline


def main(arguments: Sequence[str]) -> None:
    """Train on the data set that the first argument names."""
    events = tg.load_dataset(arguments[0] if arguments else "flights")
    print(events.describe())
    train, val, test = events.split(val=0.15, test=0.15)

    model = tg.models.TGN(events.schema, memory=100, embedding=100, neighbors=10)
    run = tg.Trainer(model, batch_size=600, epochs=2, candidates=20).fit(train, val)
    for record in run.records:
        print(f"epoch {record.epoch + 1}: loss {record.loss:.4f}, {record.metrics}")

    # The same events and the same negatives for the model and for the baseline. The run moves to
    # the end of the test split, so that what it is asked next comes after all the data.
    plan = evaluation_plan(run.settings, run.stream)
    assert plan.ranking is not None
    baseline = evaluate_baseline(
        EdgeBank(), events, test.start, test.stop,
        negatives=plan.ranking, protocol="mrr", count=plan.candidates,
    )  # fmt: skip
    figures = run.evaluate(test, advance=True).metrics
    print("TGN     ", figures["MRR"])
    print("EdgeBank", baseline["MRR"])

    # The likeliest destinations of the source of the last event, in the data's own ids.
    source = events.ids.to_original(events.source[-1:])[0]
    first = events.schema.first_target
    targets = events.ids.to_original(np.arange(first, events.schema.num_nodes))
    scores = run.predict((np.full(len(targets), source), targets))
    for place in np.argsort(-scores.score)[:5]:
        print(f"{source} -> {targets[place]}: {scores.score[place]:.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
