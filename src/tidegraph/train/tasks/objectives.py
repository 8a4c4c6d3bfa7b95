"""Objectives: how a decoder's outputs become a loss, predictions and figures, by kind of target.

Three kinds: classes (two or more), a number, and a vector of shares. Each says how wide the
decoder's output is, what is minimised, and which figure chooses the best pass on validation.

Shape legend: M rows, L classes or items, O outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from tidegraph.train.metrics import Metric, Metrics, average_precision, one_class, roc_auc


class Objective(Protocol):
    """What a decoder is trained for.

    Attributes:
        outputs: width O of the decoder's output.
        chosen_by: the figure that is best where it is highest, or (`lower`) lowest.
        lower: whether less of it is better.
    """

    @property
    def outputs(self) -> int: ...

    @property
    def chosen_by(self) -> str: ...

    @property
    def lower(self) -> bool: ...

    def target(self, value_M: np.ndarray) -> Tensor: ...

    def loss(self, output_MO: Tensor, target_M: Tensor, weight_L: Tensor | None) -> Tensor: ...

    def predict(self, output_MO: np.ndarray) -> np.ndarray: ...

    def figures(self, value_M: np.ndarray, predicted_M: np.ndarray, protocol: str) -> Metrics: ...


@dataclass(frozen=True)
class Classes:
    """One of `count` classes: cross-entropy, chosen by AUC.

    Attributes:
        count: L; with two classes the decoder has one output, the logit of the second.
    """

    count: int
    chosen_by: str = "AUC"
    lower: bool = False

    @property
    def outputs(self) -> int:
        return 1 if self.count == 2 else self.count

    def target(self, value_M: np.ndarray) -> Tensor:
        """Class numbers as a tensor."""
        return torch.from_numpy(value_M.astype(np.int64))

    def loss(self, output_MO: Tensor, target_M: Tensor, weight_L: Tensor | None) -> Tensor:
        """Mean cross-entropy, rows of class l weighted by `weight_L[l]`."""
        if self.count == 2:
            output_MO = torch.cat([torch.zeros_like(output_MO), output_MO], dim=1)
        return cross_entropy(output_MO, target_M, weight=weight_L)

    def predict(self, output_MO: np.ndarray) -> np.ndarray:
        """[M, L] float64 probabilities."""
        logit_MO = output_MO.astype(np.float64)
        if self.count == 2:
            logit_MO = np.concatenate([np.zeros_like(logit_MO), logit_MO], axis=1)
        share_ML = np.exp(logit_MO - logit_MO.max(axis=1, keepdims=True))
        probability_ML: np.ndarray = share_ML / share_ML.sum(axis=1, keepdims=True)
        return probability_ML

    def figures(self, value_M: np.ndarray, predicted_M: np.ndarray, protocol: str) -> Metrics:
        """AUC, AP and accuracy; of more than two classes the mean, each against the rest."""
        if self.count == 2:
            reason = one_class(value_M)
            ranked = [
                (name, function(value_M, predicted_M[:, 1]), protocol)
                for name, function in (("AUC", roc_auc), ("AP", average_precision))
            ]
        else:
            means = f"{protocol}, mean over classes, each against the rest"
            named = (("AUC", roc_auc), ("AP", average_precision))
            ranked = [(name, _over_classes(f, value_M, predicted_M), means) for name, f in named]
            reason = "" if len(np.unique(value_M)) > 1 else "the labels are all of one class"
        hit = np.argmax(predicted_M, axis=1) == value_M
        accuracy = float(hit.mean()) if len(hit) else math.nan
        return Metrics(
            (
                *(Metric(n, value, text, len(value_M), reason) for n, value, text in ranked),
                Metric("accuracy", accuracy, protocol, len(value_M), _if_empty(value_M)),
            )
        )


@dataclass(frozen=True)
class Number:
    """A number: squared error of the standardised target, chosen by RMSE.

    Attributes:
        mean, deviation: of the training labels, for standardising.
    """

    mean: float
    deviation: float
    chosen_by: str = "RMSE"
    lower: bool = True
    outputs: int = 1

    def target(self, value_M: np.ndarray) -> Tensor:
        """Standardised numbers, float32."""
        return torch.from_numpy(((value_M - self.mean) / self.deviation).astype(np.float32))

    def loss(self, output_MO: Tensor, target_M: Tensor, weight_L: Tensor | None) -> Tensor:
        """Mean squared error."""
        return mse_loss(output_MO[:, 0], target_M)

    def predict(self, output_MO: np.ndarray) -> np.ndarray:
        """[M] float64, in the column's own unit."""
        predicted_M: np.ndarray = output_MO[:, 0].astype(np.float64) * self.deviation + self.mean
        return predicted_M

    def figures(self, value_M: np.ndarray, predicted_M: np.ndarray, protocol: str) -> Metrics:
        """MAE, RMSE and R2 (1 - squared error / squared deviation from these labels' mean)."""
        error_M = predicted_M - value_M
        count, reason = len(value_M), _if_empty(value_M)
        if reason:
            named = [(name, math.nan) for name in ("MAE", "RMSE", "R2")]
            return Metrics(tuple(Metric(n, v, protocol, 0, reason) for n, v in named))
        squared = math.fsum((error_M**2).tolist())
        spread = math.fsum(((value_M - value_M.mean()) ** 2).tolist())
        flat = "" if spread > 0 else f"all {count} labels are equal"
        return Metrics(
            (
                Metric("MAE", math.fsum(np.abs(error_M).tolist()) / count, protocol, count),
                Metric("RMSE", math.sqrt(squared / count), protocol, count),
                Metric("R2", math.nan if flat else 1 - squared / spread, protocol, count, flat),
            )
        )


@dataclass(frozen=True)
class Shares:
    """A vector of non-negative weights over items: cross-entropy with its shares, by NDCG.

    Attributes:
        outputs: number of items L.
        depth: k of NDCG@k.
    """

    outputs: int
    depth: int = 10
    lower: bool = False

    @property
    def chosen_by(self) -> str:
        return f"NDCG@{self.depth}"

    def target(self, value_M: np.ndarray) -> Tensor:
        """[M, L] shares that sum to 1."""
        total_M1 = value_M.sum(axis=1, keepdims=True)
        return torch.from_numpy((value_M / np.where(total_M1 > 0, total_M1, 1)).astype(np.float32))

    def loss(self, output_MO: Tensor, target_M: Tensor, weight_L: Tensor | None) -> Tensor:
        """Mean cross-entropy of the predicted with the true shares."""
        return cross_entropy(output_MO, target_M)

    def predict(self, output_MO: np.ndarray) -> np.ndarray:
        """[M, L] scores."""
        return output_MO.astype(np.float64)

    def figures(self, value_M: np.ndarray, predicted_M: np.ndarray, protocol: str) -> Metrics:
        """Mean NDCG over the rows."""
        score_M = ndcg(value_M, predicted_M, self.depth)
        mean = math.fsum(score_M.tolist()) / len(score_M) if len(score_M) else math.nan
        return Metrics((Metric(self.chosen_by, mean, protocol, len(score_M), _if_empty(value_M)),))


def ndcg(truth_ML: np.ndarray, score_ML: np.ndarray, depth: int = 10) -> np.ndarray:
    """Normalised discounted cumulative gain of each row, ties in the scores averaged.

    DCG@k = sum over places i = 1..k of gain / log2(i + 1), the gain being the true weight itself
    (Järvelin and Kekäläinen, 2002); items of one score share their places' discounts evenly, so
    that no order of equal scores matters. A row without any weight scores 0.

    Args:
        truth_ML: [M, L] non-negative weights.
        score_ML: [M, L] predicted scores; NaN is last.
        depth: k.

    >>> ndcg(np.array([[3.0, 1.0, 0.0]]), np.array([[0.9, 0.5, 0.1]])).tolist()
    [1.0]
    """
    found_M = np.zeros(len(truth_ML))
    place_L = np.arange(truth_ML.shape[1])
    discount_L = np.where(place_L < depth, 1 / np.log2(place_L + 2), 0.0)
    sums_L1 = np.concatenate([[0.0], np.cumsum(discount_L)])
    for row, (truth_L, score_L) in enumerate(zip(truth_ML, score_ML, strict=True)):
        best = float(np.sort(truth_L)[::-1] @ discount_L)
        if best <= 0:
            continue
        clean_L = np.where(np.isnan(score_L), -np.inf, score_L)
        _, tie_L, count_T = np.unique(-clean_L, return_inverse=True, return_counts=True)
        gain_T = np.bincount(tie_L, weights=truth_L) / count_T
        stop_T = np.cumsum(count_T)
        found_M[row] = float(gain_T @ (sums_L1[stop_T] - sums_L1[stop_T - count_T])) / best
    return found_M


def _over_classes(function: object, value_M: np.ndarray, predicted_ML: np.ndarray) -> float:
    """Mean over the classes that occur, each against the rest."""
    assert callable(function)
    values = [
        float(function(value_M == label, predicted_ML[:, label])) for label in np.unique(value_M)
    ]
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan


def _if_empty(value_M: np.ndarray) -> str:
    return "" if len(value_M) else "there are no labels"
