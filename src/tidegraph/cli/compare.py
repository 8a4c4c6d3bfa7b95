"""`tidegraph compare DATA --models ... --seeds N`: models and baselines in one table of figures.

Every entrant is trained and tested on the same events, split and negatives, once a seed. What is
finished is kept beside the table, so that the same command goes on where it was stopped and a model
can be added later; a model that fails costs its own row alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json as json_text
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegraph import __version__
from tidegraph._jit import set_threads
from tidegraph.cli.app import Interrupted
from tidegraph.cli.data import OpenedData, keep_events, open_data, split_events
from tidegraph.cli.entrants import Entrant, find_entrants
from tidegraph.cli.flags import flags_for, with_flags
from tidegraph.cli.settings import settings_of
from tidegraph.cli.warm_up import warm_up
from tidegraph.errors import SettingError, TidegraphError
from tidegraph.events import EventRange, Split
from tidegraph.models import MODELS, build_model
from tidegraph.models.baselines import build_baseline
from tidegraph.report.compared import Figure, Outcome, Row, console_parts, json_rows, markdown
from tidegraph.report.compared_figure import comparison_svg
from tidegraph.report.comparison import Scored, evaluate_scorer, scored
from tidegraph.report.console import ConsoleListener, Printer
from tidegraph.report.plain import metric_values, plain, print_json
from tidegraph.report.usage import (
    forget_peak,
    peak_resident_bytes,
    peak_since,
    process_started,
    versions,
)
from tidegraph.train import Run, Trainer, TrainSettings
from tidegraph.train.evaluate import evaluation_plan
from tidegraph.train.room import check_room
from tidegraph.train.run_files import make_directory, write_atomically
from tidegraph.train.stream import Stream, part_of

_NOT_OF_FIGURES = {"checkpoint_seconds", "checkpoint_batches", "trace"}
_NEGATIVES = ("random", "historical", "inductive")
_OWN_FLAGS = ("models", "seeds", "test-negatives", "config", "out", "threads", "quiet", "json",
              "help")  # fmt: skip


def command() -> Callable[..., Any]:
    """The command with a flag for every setting that models share."""
    settings = [setting for section in ("data", "split", "training")
                for setting in settings_of(section)]  # fmt: skip
    return with_flags(compare, flags_for(settings, taken=_OWN_FLAGS))


def compare(
    data: Annotated[
        str | None,
        typer.Argument(
            help="a table, stored events, or the name of a data set, as `train` takes it; "
            "default: flights"
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            help=f"what to compare: {', '.join(MODELS)}; with settings, tgn:layers=2,memory=50; "
            "preset:NAME; a baseline (see `tidegraph models`); file.py:Class"
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="runs of each, from --seed on (default 1)")
    ] = 1,
    test_negatives: Annotated[
        list[str] | None,
        typer.Option(
            help="test AP and AUC against these too: random, historical, inductive "
            "(default: those of --negatives)"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file: sections data, split, training; flags override it"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="directory of the table and the runs (default comparisons/<data>)"),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print errors and results only")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
    given: Mapping[str, Mapping[str, Any]] = {},
) -> None:
    """The job from start to end."""
    printer = Printer(quiet=quiet, results_only=json)
    if threads is not None:
        set_threads(threads)
    entrants = find_entrants(models or (), given, config)
    job = _open(data, entrants, seeds, test_negatives or (), out)
    rows: list[Row] = [Row(one.name, job.model_settings(one)) for one in entrants]
    printer.say(str(job.opened.events.describe()))
    make_directory(job.out)
    try:
        # Seed by seed: after the first pass there is a table of all entrants.
        for seed in job.seeds:
            for place, entrant in enumerate(entrants):
                outcome = _outcome(job, entrant, seed, printer)
                rows[place] = replace(rows[place], outcomes=(*rows[place].outcomes, outcome))
    except KeyboardInterrupt:
        raise Interrupted(
            "go on with the same command: what is finished is kept, a run goes on from its last "
            "checkpoint"
        ) from None
    _finish(job, rows, printer, json)


@dataclass(frozen=True)
class Job:
    """Everything decided before training starts.

    Attributes:
        opened: the events.
        split: of the first seed; only which nodes are hidden depends on the seed.
        entrants: rows to be.
        seeds: of the runs.
        negatives: strategies that the test is evaluated with.
        out: directory of everything.
    """

    opened: OpenedData
    split: Split
    entrants: tuple[Entrant, ...]
    seeds: range
    negatives: tuple[str, ...]
    out: Path

    def training(self, entrant: Entrant, seed: int) -> TrainSettings:
        """The entrant's training settings with this seed."""
        return entrant.settings.training.model_copy(update={"seed": seed})

    def model_settings(self, entrant: Entrant) -> dict[str, Any]:
        """All of a model's settings, defaults filled in.

        Raises:
            SettingError: settings that do not go together.
        """
        if entrant.baseline is not None:
            return {}
        chosen = entrant.settings
        model = build_model(chosen.model, self.opened.events.schema, **chosen.model_values)
        return dict(model.settings)


def _open(
    data: str | None,
    entrants: tuple[Entrant, ...],
    seeds: int,
    test_negatives: Sequence[str],
    out: Path | None,
) -> Job:
    for name in test_negatives:
        if name not in _NEGATIVES:
            raise SettingError(
                f"--test-negatives {name!r}: expected one or more of {', '.join(_NEGATIVES)}"
            )
    first = entrants[0].settings
    if first.task.task != "link":
        raise SettingError(
            f"task {first.task.task!r} in --config: models are compared by link prediction; leave "
            "the section task out"
        )
    splits = {one.settings.split for one in entrants}
    if len(splits) > 1:
        raise SettingError(
            "the presets among --models split the data differently, so their figures could not be "
            "compared: name the split by flags, such as --hidden-nodes 0.1"
        )
    data = data or first.path
    if data is None and first.data.query is None:
        data = "flights"
    opened = open_data(data, first.data)
    split = split_events(opened.events, first.split, first.training.seed)
    if len(split.val) == 0 or len(split.test) == 0:
        raise SettingError(
            "a comparison needs a validation part (--val), which chooses the best epochs, and a "
            "test part (--test); give both a share"
        )
    negatives = tuple(dict.fromkeys((first.training.negatives, *test_negatives)))
    start = first.training.seed
    place = out or Path("comparisons") / opened.name
    return Job(opened, split, entrants, range(start, start + seeds), negatives, place)


# ---------------------------------------------------------------- one run


def _outcome(job: Job, entrant: Entrant, seed: int, printer: Printer) -> Outcome:
    """Read from an earlier call, or measured now; a failure is an outcome too."""
    place = job.out / "runs" / _place(job, entrant, seed)
    kept = _kept(place / "result.json")
    if kept is not None:
        printer.say(f"{entrant.name}, seed {seed}: finished before")
        return kept
    printer.say(f"{entrant.name}, seed {seed}")
    try:
        forget_peak()
        measure = _test_baseline if entrant.baseline is not None else _train_and_test
        outcome = measure(job, entrant, seed, place, printer)
    except Exception as error:
        kind = "" if isinstance(error, TidegraphError) else f"{type(error).__name__}: "
        failed = " ".join(f"{kind}{error}".split())[:500]
        printer.warn(f"{entrant.name}, seed {seed}: failed: {failed}")
        return Outcome(seed, failed=failed)
    make_directory(place)
    write_atomically(place / "result.json", json_text.dumps(asdict(outcome), allow_nan=False))
    return outcome


def _place(job: Job, entrant: Entrant, seed: int) -> str:
    """A name of its own for everything that figures depend on."""
    settings, events = entrant.settings, job.opened.events
    training = job.training(entrant, seed).model_dump(exclude=_NOT_OF_FIGURES)
    decides = [
        __version__, events.fingerprint, settings.split.effective(), entrant.baseline,
        settings.model, job.model_settings(entrant), training, job.negatives,
    ]  # fmt: skip
    digest = hashlib.sha256(json_text.dumps(decides, default=str).encode()).hexdigest()[:10]
    named = "".join(letter if letter.isalnum() else "-" for letter in Path(entrant.name).name)
    return f"{named[:60]}-seed{seed}-{digest}"


def _kept(path: Path) -> Outcome | None:
    """A finished result; None where there is none, or it is damaged."""
    try:
        values = json_text.loads(path.read_text(encoding="utf-8"))
        figures = tuple(Figure(**one) for one in values.pop("figures"))
        return Outcome(figures=figures, **values)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _train_and_test(
    job: Job, entrant: Entrant, seed: int, place: Path, printer: Printer
) -> Outcome:
    settings, training = entrant.settings, job.training(entrant, seed)
    events = job.opened.events
    split = split_events(events, settings.split, seed)
    hidden = settings.split.hidden_nodes > 0
    longest = max(len(part) for part in split)
    check_room(settings.model, events.schema, settings.model_values, training, longest)
    warm_up(events, settings.model, settings.model_values, training, hidden, printer)
    forget_peak()
    model = build_model(settings.model, events.schema, seed=seed, **settings.model_values)
    make_directory(place)
    opened = keep_events(job.opened, place)
    data = {
        **opened.spec,
        "split": settings.split.effective(),
        "test": [split.test.start, split.test.stop],
    }
    with ConsoleListener(printer, training.epochs, training.metric) as listener:
        trainer = Trainer(model, training, directory=place, listener=listener, data=data)
        run = trainer.fit(split.train, split.val, resume=True)
        figures, rate = _test(run, split.test, job.negatives, listener)
    trained = sum(record.events_per_second * record.seconds for record in run.records)
    spent = sum(record.seconds for record in run.records)
    return Outcome(
        seed=seed,
        figures=figures,
        parameters=sum(one.numel() for one in model.parameters() if one.requires_grad),
        train_rate=trained / spent if spent else None,
        test_rate=rate,
        peak_bytes=peak_since(),
        directory=str(place),
    )


def _test(
    run: Run, part: EventRange, negatives: Sequence[str], listener: ConsoleListener
) -> tuple[tuple[Figure, ...], float]:
    """Figures under every protocol; ranks do not depend on the negatives of AP, so come once."""
    figures: list[Figure] = []
    rate = 0.0
    settings = run.settings
    for place, strategy in enumerate(negatives):
        run.settings = settings.model_copy(update={"negatives": strategy})
        candidates = None if place == 0 else 0
        found = run.evaluate(part, candidates=candidates, listener=listener)
        if place == 0:
            rate = found.events / max(found.seconds, 1e-9)
        figures += _figures(scored("", found))
    run.settings = settings
    return tuple(figures), rate


def _test_baseline(job: Job, entrant: Entrant, seed: int, place: Path, printer: Printer) -> Outcome:
    training, events = job.training(entrant, seed), job.opened.events
    split = split_events(events, entrant.settings.split, seed)
    size = training.evaluation_batch_size
    parts = (part_of(split.train, training.batch_size, hide=True), part_of(split.val, size))
    # Nothing is looked up for a baseline but where training ends and what it hides.
    history = build_model("jodie", events.schema).history
    stream = Stream.open(events, parts, history, hidden_nodes=split.hidden_nodes)
    time_T = split.test.time
    figures: list[Figure] = []
    rate = 0.0
    assert entrant.baseline is not None
    baseline = build_baseline(entrant.baseline, float(time_T[-1] - time_T[0]))
    for place_, strategy in enumerate(job.negatives):
        chosen = training.model_copy(update={"negatives": strategy})
        plan = evaluation_plan(chosen, stream, None if place_ == 0 else 0)
        started = time.perf_counter()
        figures += _figures(evaluate_scorer(baseline, chosen, stream, split.test, plan))
        if place_ == 0:
            rate = len(split.test) / max(time.perf_counter() - started, 1e-9)
    return Outcome(seed, tuple(figures), test_rate=rate, peak_bytes=peak_since())


def _figures(row: Scored) -> list[Figure]:
    values = [*(metric_values(row.metrics) or ()), *(metric_values(row.inductive) or ())]
    return [Figure(**value) for value in values]


# ---------------------------------------------------------------- the table


def _finish(job: Job, rows: Sequence[Row], printer: Printer, as_json: bool) -> None:
    title = f"{job.opened.name}: {len(rows)} models compared"
    paths = {
        "markdown": job.out / "comparison.md",
        "json": job.out / "comparison.json",
        "figure": job.out / "comparison.svg",
    }
    done = any(row.done() for row in rows)
    if done:
        write_atomically(paths["figure"], comparison_svg(rows, title))
    else:
        with contextlib.suppress(OSError):
            paths.pop("figure").unlink()
    values = _json_object(job, rows, paths)
    figure = paths["figure"].name if done else None
    write_atomically(paths["markdown"], markdown(title, rows, _about(job), figure))
    write_atomically(paths["json"], json_text.dumps(values, allow_nan=False, indent=1) + "\n")
    if not (as_json and printer.quiet):
        for part in console_parts(title, rows, printer.results.width):
            printer.result(part)
        printer.say(f"saved     {', '.join(str(path) for path in paths.values())}")
    if as_json:
        print_json(values)
    failed = [row.name for row in rows if len(row.done()) < len(row.outcomes)]
    if failed:
        raise SettingError(
            f"{len(failed)} of {len(rows)} models failed ({', '.join(failed)}); the rest is in "
            f"{paths['markdown']}. The same command tries them again"
        )


def _about(job: Job) -> list[str]:
    events, first = job.opened.events, job.entrants[0].settings
    sizes = ", ".join(f"{len(part):,} {part.name}" for part in job.split)
    return [
        f"data: {job.opened.name}, {len(events):,} events, fingerprint {events.fingerprint[:12]}",
        f"split: {sizes} ({job.split.tie_rule}); nodes hidden from training: "
        f"{first.split.hidden_nodes:g}",
        *(f"{one.name}: {_listed(job.model_settings(one))}"
          for one in job.entrants if one.baseline is None),
        f"training: {_listed(first.training.model_dump(exclude={'seed'}))}",
        f"tidegraph {__version__}, command: {shlex.join(['tidegraph', *sys.argv[1:]])}",
    ]  # fmt: skip


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _json_object(job: Job, rows: Sequence[Row], paths: Mapping[str, Path]) -> dict[str, Any]:
    """The object that docs/json.md documents."""
    events = job.opened.events
    found: dict[str, Any] = plain({
        "command": "compare",
        "data": {
            **job.opened.spec,
            "name": job.opened.name,
            "events": len(events),
            "fingerprint": events.fingerprint,
            "parts": {part.name: len(part) for part in job.split},
        },
        "settings": {
            "seeds": list(job.seeds),
            "negatives": list(job.negatives),
            "split": job.entrants[0].settings.split.model_dump(),
            "training": {one.name: one.settings.training.model_dump() for one in job.entrants},
        },
        "rows": json_rows(rows),
        "seconds": {"total": time.time() - process_started()},
        "peak_resident_bytes": peak_resident_bytes(),
        "paths": {name: str(path) for name, path in paths.items()},
        "versions": versions(),
    })  # fmt: skip
    return found
