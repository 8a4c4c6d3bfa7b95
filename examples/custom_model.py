"""Your own model in one file: what it needs of the past, and how it embeds.

    tidegraph train flights --model examples/custom_model.py:RecentMean --epochs 3
    python examples/custom_model.py

Batches, negatives, sampling, evaluation, checkpoints and prediction come with it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tidegraph as tg
from tidegraph.batches import History, PreparedBatch
from tidegraph.models.base import Encoded, TemporalModel
from tidegraph.models.layers import TimeCode
from tidegraph.models.tokens import event_rows, newest_first


class RecentMean(TemporalModel):
    """A node is the mean of its latest events (features and how long ago), through two layers.

    Args:
        schema: sizes of the data, `events.schema`.
        neighbors: latest events.
        embedding: width of the embeddings.
        time: width of the time code.
    """

    def __init__(
        self, schema: tg.Schema, neighbors: int = 10, embedding: int = 64, time: int = 32
    ) -> None:
        super().__init__(schema, embedding)
        self.history = History(neighbors=(neighbors,), memory=False)
        self.time_code = TimeCode(time, trainable=False)
        self.event_layer = nn.Linear(time + schema.event_features, embedding)
        self.merge_layer = nn.Linear(embedding, embedding)

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        """[S, embedding] for the batch's distinct (node, time) seeds."""
        latest = newest_first(batch.hops[0], fixed=batch.padding is not None)
        code_SKT = self.time_code(latest.delta_SK)
        feature_SKF = event_rows(batch, latest.event_SK, latest.used_SK, code_SKT)
        event_SKD = torch.relu(self.event_layer(torch.cat([code_SKT, feature_SKF], dim=2)))
        used_SK1 = latest.used_SK.unsqueeze(2)
        count_S1 = used_SK1.sum(1).clamp(min=1)
        mean_SD = event_SKD.masked_fill(~used_SK1, 0.0).sum(1) / count_S1
        return Encoded(self.merge_layer(mean_SD))


if __name__ == "__main__":
    train, val, test = tg.load_dataset("flights").split(val=0.15, test=0.15)
    model = RecentMean(train.events.schema)
    run = tg.Trainer(model, epochs=2, batch_size=400, learning_rate=1e-3).fit(train, val)
    print(run.evaluate(test).metrics["AP"])
