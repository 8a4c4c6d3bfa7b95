"""Tasks beside link prediction: node and event labels, numbers, node properties."""

from tidegraph.train.tasks.fit import fit_task, load_task
from tidegraph.train.tasks.predict import TaskDecoder
from tidegraph.train.tasks.property_run import PropertyRun
from tidegraph.train.tasks.settings import TASKS, TaskSettings
from tidegraph.train.tasks.targets import Target, find_target
from tidegraph.train.tasks.task_run import TaskEvaluation, TaskRun

__all__ = [
    "TASKS",
    "PropertyRun",
    "Target",
    "TaskDecoder",
    "TaskEvaluation",
    "TaskRun",
    "TaskSettings",
    "find_target",
    "fit_task",
    "load_task",
]
