"""Without Triton nothing breaks: CUDA tensors take the plain operators, and one warning says so."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from tidegraph.errors import SettingError
from tidegraph.ops import functions, triton_backend, use_backend


class OnCuda:
    """All that the choice of a backend looks at."""

    device = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _no_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "triton" else find(name, *a)
    )
    triton_backend.load.cache_clear()
    yield
    triton_backend.load.cache_clear()


def test_cuda_falls_back_to_the_reference_with_one_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    for _ in range(3):
        assert functions._triton(OnCuda()) is None  # type: ignore[arg-type]
    assert len(recwarn) == 1
    assert "pip install triton" in str(recwarn[0].message)


def test_asking_for_triton_by_name_says_what_to_install() -> None:
    with pytest.raises(SettingError, match="pip install triton"), use_backend("triton"):
        functions._triton(torch.zeros(1))
