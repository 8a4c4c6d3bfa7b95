"""Static node memory: one vector per node, learned by link prediction without time.

DistTGL (section 3.3) gives each node such a vector beside its dynamic memory: what does not change
about a node need not be remembered by a recurrent cell. It is learned once, from the training
events alone, and stays as it is.

Shape legend: N nodes, B events, Q width.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tidegraph.keys import Purpose, make_key
from tidegraph.models.base import TrainingEvents

_BATCH = 2048
_RATE = 0.2
_DECAY = 1e-4


def pretrain_static(train: TrainingEvents, num_nodes: int, width: int, passes: int = 20) -> Tensor:
    """Vectors q with which (q_u R) . q_v tells training events from random pairs.

    Logistic loss of each event against one random training destination, Adagrad, events in a new
    random order each pass. All draws derive from the seed.

    Args:
        train: the training events.
        num_nodes: N; nodes that training does not meet keep zero.
        width: Q.
        passes: over the events.

    Returns:
        float32 [N, Q], of unit mean square over the nodes met.

    >>> train = TrainingEvents(np.int32([0, 1]), np.int32([2, 3]), np.int64([1, 2]))
    >>> pretrain_static(train, 5, 4)[4].tolist()
    [0.0, 0.0, 0.0, 0.0]
    """
    key = make_key(train.seed, Purpose.INITIAL_WEIGHTS, 1)
    draw = np.random.Generator(np.random.Philox(key))
    source_E, target_E = (torch.from_numpy(np.asarray(a, np.int64)) for a in
                          (train.source_E, train.target_E))  # fmt: skip
    targets = torch.unique(target_E)
    start_NQ = draw.standard_normal((num_nodes, width), dtype=np.float32)
    node_NQ = torch.from_numpy(start_NQ) * 0.3
    square_NQ = torch.full_like(node_NQ, 1e-6)
    mix_QQ, square_QQ = torch.eye(width), torch.full((width, width), 1e-6)
    for _ in range(passes):
        order_E = torch.from_numpy(draw.permutation(len(source_E)))
        drawn_E = targets[torch.from_numpy(draw.integers(0, len(targets), len(source_E)))]
        for event_B in torch.split(order_E, _BATCH):
            ends = source_E[event_B], target_E[event_B], drawn_E[event_B]
            u, v, w = (node_NQ[end] for end in ends)
            mixed = u @ mix_QQ
            # d loss / d score, of positives and of negatives.
            slope_v = torch.sigmoid((mixed * v).sum(1, keepdim=True)) - 1
            slope_w = torch.sigmoid((mixed * w).sum(1, keepdim=True))
            toward = slope_v * v + slope_w * w
            rows, inverse = torch.unique(torch.cat(ends), return_inverse=True)
            part = torch.cat([toward @ mix_QQ.t(), slope_v * mixed, slope_w * mixed])
            grad_RQ = torch.zeros(len(rows), width).index_add_(0, inverse, part)
            grad_RQ += _DECAY * node_NQ[rows]
            square_NQ[rows] += grad_RQ**2
            node_NQ[rows] -= _RATE * grad_RQ / square_NQ[rows].sqrt()
            grad_QQ = u.t() @ toward / len(event_B)
            square_QQ += grad_QQ**2
            mix_QQ -= 0.1 * _RATE * grad_QQ / square_QQ.sqrt()
    met = torch.unique(torch.cat([source_E, target_E]))
    result_NQ = torch.zeros_like(node_NQ)
    result_NQ[met] = node_NQ[met] / node_NQ[met].square().mean().sqrt().clamp(min=1e-12)
    return result_NQ
