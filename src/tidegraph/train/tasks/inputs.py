"""What a decoder sees of an event: embeddings of its ends, and features known before it.

Shape legend: M events, D embedding width, I decoder inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tidegraph.events.core import Events


def sees_target(task: str) -> bool:
    """Whether the task is about both ends of an event; otherwise it is about the source."""
    return task != "node-classification"


def decoder_inputs(
    both_M2D: np.ndarray, event_M: np.ndarray, events: Events, known: Sequence[int], both: bool
) -> np.ndarray:
    """[M, I] float32 rows.

    Args:
        both_M2D: embeddings of source and target.
        event_M: the events.
        events: their features.
        known: positions of the features to add.
        both: with the target's embedding.
    """
    parts = [both_M2D.reshape(len(event_M), -1) if both else both_M2D[:, 0]]
    if known:
        parts.append(known_features(events, event_M, known))
    return np.ascontiguousarray(np.concatenate(parts, axis=1), np.float32)


def decoder_inputs_of_roots(
    root_RD: Tensor, event_B: np.ndarray, events: Events, known: Sequence[int], both: bool
) -> Tensor:
    """The same rows from a batch's roots (sources, then targets), with gradients."""
    B = len(event_B)
    parts = [root_RD[:B], root_RD[B : 2 * B]] if both else [root_RD[:B]]
    if known:
        features_BF = torch.from_numpy(known_features(events, event_B, known))
        parts.append(features_BF.to(root_RD.device))
    return torch.cat(parts, dim=1)


def known_features(events: Events, event_M: np.ndarray, known: Sequence[int]) -> np.ndarray:
    """[M, len(known)] float32."""
    assert events.features is not None
    return np.asarray(events.features[event_M], np.float32)[:, list(known)]
