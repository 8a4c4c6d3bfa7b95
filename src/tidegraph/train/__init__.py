"""Training: executors, the loop, evaluation by named protocols, checkpoints, runs."""

from tidegraph.train.evaluate import Evaluation, EvaluationPlan, evaluate, evaluation_plan
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.run import Run, load_run
from tidegraph.train.settings import TrainSettings
from tidegraph.train.stages import Listener, StageTimes
from tidegraph.train.stream import Part, Stream
from tidegraph.train.trainer import Trainer

__all__ = [
    "EagerExecutor",
    "Evaluation",
    "EvaluationPlan",
    "Listener",
    "Part",
    "Run",
    "StageTimes",
    "Stream",
    "TrainSettings",
    "Trainer",
    "evaluate",
    "evaluation_plan",
    "load_run",
]
