"""Training settings: declared once, here; the command line and YAML files are made from them."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from tidegraph.errors import SettingError
from tidegraph.features import FeatureType

_Settings = TypeVar("_Settings", bound=BaseModel)


class TrainSettings(BaseModel):
    """How a model is trained and evaluated.

    >>> TrainSettings(batch_size=600).batch_size
    600
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_size: int = Field(200, ge=1, lt=2**31, description="events per training batch")
    epochs: int = Field(10, ge=1, description="passes over the training events, at most")
    learning_rate: float = Field(5e-4, gt=0, allow_inf_nan=False, description="Adam's step size")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty")
    clip: float | None = Field(None, gt=0, description="largest gradient norm; none by default")
    patience: int = Field(5, ge=0, description="epochs without a better validation; 0: no stopping")
    metric: Literal["AP", "AUC", "MRR"] = Field(
        "AP", description="validation metric that chooses the best epoch"
    )
    negatives: Literal["random", "historical", "inductive"] = Field(
        "random", description="negatives of the AP and AUC evaluation"
    )
    negative_groups: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="training negatives repeat every so many epochs, and prepared batches with "
        "them; 0: fresh ones in every epoch",
    )
    prepared_budget: int = Field(
        512 << 20,
        ge=0,
        description="bytes of prepared batches kept in memory from epoch to epoch",
    )
    candidates: int = Field(
        100, ge=0, lt=2**31, description="negatives per event of the MRR evaluation; 0: no ranking"
    )
    evaluation_batch_size: int = Field(
        200, ge=1, lt=2**31, description="events per evaluation batch"
    )
    history: Literal["streaming", "frozen"] = Field(
        "streaming",
        description="evaluation sees all earlier events, or only those before the evaluated part",
    )
    feature_type: FeatureType = Field(
        "float32",
        description="how features are stored: as given, or rounded to float16, bfloat16 or int8",
    )
    neighbor_types: tuple[str, ...] = Field(
        (),
        description="only events of these types are neighbours: features such as kind=buy, of "
        "which an event has one; all events by default",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="all randomness derives from it")
    device: str = Field("cpu", description="where the model runs: cpu, cuda, cuda:1")
    precision: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="of matrix products; bf16 rounds their factors to bfloat16 (faster where the "
        "hardware multiplies it)",
    )
    executor: Literal["eager", "compile", "cudagraph", "auto"] = Field(
        "eager",
        description="how training steps run: eager; compile: generated code of a few fixed shapes; "
        "cudagraph: recorded on a GPU and replayed; auto: cudagraph on a GPU, else eager",
    )
    state: Literal["device", "host"] = Field(
        "device", description="where memory and mail live; host: where they do not fit on a GPU"
    )
    staleness: int = Field(
        0,
        ge=0,
        le=1000,
        description="training batches may miss the last so many batches' memory updates; 0: exact",
    )
    prepare_threads: int | None = Field(
        None,
        ge=0,
        le=256,
        description="threads that prepare batches ahead; 0: none. Default: some on a GPU; on a CPU "
        "one where a processor would be idle",
    )
    queue_depth: int | None = Field(
        None, ge=1, le=100_000, description="prepared batches that may wait; default: threads + 1"
    )
    trace: bool = Field(
        False, description="write trace.json into the run: a timeline that opens in Perfetto"
    )
    cache: Literal["next-use", "lru", "frequency", "none"] | None = Field(
        None,
        description="rows of features and state kept on the device; default: next-use on a GPU, "
        "none on a CPU",
    )
    cache_budget: float = Field(
        0.1, ge=0, allow_inf_nan=False, description="up to 1: share of the rows; above: bytes"
    )
    cache_window: int = Field(
        64, ge=0, le=100_000, description="batches prepared ahead for cache next-use"
    )
    checkpoint_seconds: float = Field(
        60.0, ge=0, description="seconds between checkpoints within an epoch"
    )
    checkpoint_batches: int | None = Field(
        None, ge=1, description="batches between checkpoints, instead of seconds"
    )

    @field_validator("candidates")
    @classmethod
    def _enough_candidates(cls, value: int, info: ValidationInfo) -> int:
        if value == 0 and info.data.get("metric") == "MRR":
            raise ValueError("metric MRR ranks each event among candidates, so it needs at least 1")
        return value

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        try:
            known = torch.device(value).type in ("cpu", "cuda")
        except RuntimeError:
            known = False
        if not known:
            raise ValueError("expected cpu, cuda or cuda:<number>")
        return value

    @classmethod
    def of(cls, values: dict[str, Any]) -> TrainSettings:
        """Validate `values`.

        Raises:
            SettingError: an unknown setting or a value out of range, named.
        """
        return validated(cls, values, "training")


def validated(cls: type[_Settings], values: dict[str, Any], kind: str) -> _Settings:
    """`cls(**values)`, for settings that a caller gave by name.

    Args:
        kind: of the settings, for messages.

    Raises:
        SettingError: an unknown setting or a value out of range, named.
    """
    try:
        return cls(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise SettingError(
                f"unknown {kind} setting {name!r}: there are {', '.join(cls.model_fields)}"
            ) from None
        raise SettingError(f"setting {name}={first['input']!r}: {first['msg']}") from None


def check_device(device: str) -> torch.device:
    """The device called `device`.

    Raises:
        SettingError: this machine does not have it.
    """
    found = torch.device(device)
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise SettingError(
            f"device={device!r}: PyTorch sees {torch.cuda.device_count()} CUDA devices on this "
            "machine. Choose one of them, or device='cpu'"
        )
    return found
