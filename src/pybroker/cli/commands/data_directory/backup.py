"""`pybroker backup`: Back up the stored data of a running broker, list backups, or verify one."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pybroker.cli.admin_rest import AdminRest, NotThere
from pybroker.cli.exit_codes import EXIT_FAILED, EXIT_OK, CommandFailed, WrongUsage
from pybroker.cli.output import add_json_option, output_of
from pybroker.cli.parsed_arguments import count, size_of
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import moment, size
from pybroker.cli.which_broker import add_broker_options, broker_of

if TYPE_CHECKING:
    from pybroker.backup.backup_writer import BackupResult, BackupSource
    from pybroker.backup.file_copies import RateLimit

EXAMPLES = """
pybroker backup /backups/broker-1
pybroker backup /backups/broker-1 --rate 50M --keep 7
pybroker backup /backups/broker-1 --data data        of a broker that was stopped
pybroker backup /backups/broker-1 --list
pybroker backup /backups/broker-1 --verify
"""
SNAPSHOTS = "/admin/v3/data-snapshots"
_MOST_RENEWAL_S = 60.0
_REPORT_EVERY_S = 10.0
_REDRAW_EVERY_S = 0.2


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument("backup", type=Path, metavar="BACKUP", help="directory of the backup; created if it is missing")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--list", action="store_true", help="list the restore points of the backup")
    mode.add_argument("--verify", action="store_true", help="read all files of the backup and report damage")
    parser.add_argument("--data", type=Path, metavar="DIR", help="data directory of a stopped broker, instead of --url")
    parser.add_argument(
        "--keep", type=count, metavar="N", help="afterwards, delete all but the newest N restore points"
    )
    add_copy_options(parser)
    add_json_option(parser)
    add_broker_options(parser)
    parser.set_defaults(run=run)


def add_copy_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate",
        type=size_of,
        metavar="SIZE",
        help="copy at most this many bytes per second, such as 50M (default: no limit)",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(options: argparse.Namespace) -> int:
    if options.list:
        return _list(options)
    if options.verify:
        return _verify(options)
    result = _back_up_stopped(options) if options.data is not None else _back_up_running(options)
    deleted = []
    if options.keep:
        from pybroker.backup.backup_writer import delete_restore_points  # noqa: PLC0415  (so that --help answers at once)

        deleted = run_told(delete_restore_points, options.backup, options.keep)
    output = output_of(options)
    if output.is_json:
        output.document(
            {
                "restorePoint": result.point,
                "sizeBytes": result.size_bytes,
                "copiedBytes": result.copied_bytes,
                "ledgers": result.ledgers,
                "copiedLedgers": result.copied_ledgers,
                "deleted": deleted,
            }
        )
    else:
        output.line(
            f"Restore point {result.point}: {size(result.size_bytes)} in {result.ledgers:,} ledgers, of which"
            f" {size(result.copied_bytes)} were copied now ({result.copied_ledgers:,} ledgers are new or have grown)."
        )
        if deleted:
            output.line(f"Deleted restore points: {', '.join(deleted)}.")
    return EXIT_OK


def _back_up_running(options: argparse.Namespace) -> BackupResult:
    from pybroker.backup.backup_writer import BackupSource  # noqa: PLC0415

    with AdminRest(broker_of(options)) as rest:
        try:
            snapshot = rest.change("POST", SNAPSHOTS)
        except NotThere as error:
            raise CommandFailed(
                f"the broker cannot create a data snapshot ({error}): a backup needs a pybroker broker of this version"
            ) from error
        path = f"{SNAPSHOTS}/{snapshot['id']}"
        try:
            directory = Path(snapshot.get("path") or "")
            if not snapshot.get("path") or not directory.is_dir():
                raise CommandFailed(
                    "this host or user cannot read the data directory of the broker: run `pybroker backup` on "
                    "the host of the broker (or in its container), as the user of the broker, with an --url "
                    "on 127.0.0.1"
                )
            _require_outside(options.backup, directory.parents[1])
            source = BackupSource(directory, snapshot["id"], snapshot["lineage"], snapshot["createdMillis"])
            return _write(options, source, _Renewal(rest, path, snapshot["expiresInMillis"] / 1000))
        finally:
            try:
                rest.change("DELETE", path)
            except CommandFailed as error:
                sys.stderr.write(f"pybroker: the data snapshot was not removed; it expires automatically: {error}\n")


def _back_up_stopped(options: argparse.Namespace) -> BackupResult:
    from pybroker.backup.backup_writer import stopped_source  # noqa: PLC0415
    from pybroker.local_store.data_directory import DataDirectoryLock  # noqa: PLC0415

    if not options.data.is_dir():
        raise WrongUsage(f"--data: {options.data} is not a directory; give the data directory of a broker")
    _require_outside(options.backup, options.data)
    lock = run_told(lambda: DataDirectoryLock(options.data))
    try:
        made = run_told(
            stopped_source, options.data, time.time_ns() // 1_000_000, secrets.token_hex(16), secrets.token_hex(8)
        )
        return _write(options, made, None)
    finally:
        lock.release()


def _require_outside(backup: Path, data: Path) -> None:
    if backup.absolute().resolve().is_relative_to(data.resolve()):
        raise CommandFailed(
            f"the backup directory {backup} is inside of the data directory {data}, so both could be lost "
            "together: choose a directory outside of the data directory, on another disk"
        )


def _write(options: argparse.Namespace, source: BackupSource, renewal: _Renewal | None) -> BackupResult:
    from pybroker.backup.backup_writer import write_backup  # noqa: PLC0415

    progress = ProgressReport(options, renewal)
    try:
        result: BackupResult = run_told(write_backup, source, options.backup, rate_of(options), progress)
    except CommandFailed:
        if renewal is not None and not source.directory.exists():
            raise CommandFailed(
                "the data snapshot of the backup no longer exists, because the broker was restarted or the "
                "snapshot expired. Run the same command again: it continues after the files that are already "
                "copied"
            ) from None
        raise
    finally:
        progress.end()
    return result


def _list(options: argparse.Namespace) -> int:
    from pybroker.backup.backup_layout import read_head, read_manifest, restore_points  # noqa: PLC0415

    run_told(read_head, options.backup)
    rows: list[dict[str, Any]] = []
    for name in run_told(restore_points, options.backup):
        manifest = run_told(read_manifest, options.backup, name)
        rows.append(
            {
                "restorePoint": name,
                "createdMillis": manifest.createdMs,
                "sizeBytes": manifest.size_bytes,
                "ledgers": len(manifest.ledgers),
                "brokerVersion": manifest.brokerVersion,
            }
        )
    output = output_of(options)
    if output.is_json:
        output.document(rows)
    else:
        output.table(
            ("RESTORE POINT", "CREATED", "SIZE", "LEDGERS", "VERSION"),
            [
                (
                    row["restorePoint"],
                    moment(row["createdMillis"]),
                    size(row["sizeBytes"]),
                    row["ledgers"],
                    row["brokerVersion"],
                )
                for row in rows
            ],
            "The backup contains no complete restore point.",
        )
    return EXIT_OK


def _verify(options: argparse.Namespace) -> int:
    from pybroker.backup.restore import verify_backup  # noqa: PLC0415

    progress = ProgressReport(options, None)
    try:
        points, problems = run_told(verify_backup, options.backup, rate_of(options), progress)
    finally:
        progress.end()
    output = output_of(options)
    if output.is_json:
        output.document({"restorePoints": points, "problems": problems})
    else:
        for problem in problems:
            output.line(problem)
        output.line(
            f"{points} restore points: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'} found."
        )
    return EXIT_FAILED if problems or not points else EXIT_OK


def rate_of(options: argparse.Namespace) -> RateLimit:
    from pybroker.backup.file_copies import RateLimit  # noqa: PLC0415

    return RateLimit(options.rate, time.monotonic, time.sleep)


def run_told(work: Any, *arguments: Any) -> Any:
    from pybroker.errors import StoreError  # noqa: PLC0415
    from pybroker.local_store.data_directory import DataDirectoryInUse, ForeignDirectory  # noqa: PLC0415

    try:
        return work(*arguments)
    except (StoreError, DataDirectoryInUse, ForeignDirectory) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        advice = "; copied files are kept: repeat the command to continue"
        raise CommandFailed(f"{error.filename or 'a file'}: {error.strerror or error}{advice}") from error


class _Renewal:
    """Renews the broker's data snapshot while its files are copied."""

    def __init__(self, rest: AdminRest, path: str, lasts_s: float) -> None:
        self._rest = rest
        self._path = path
        self._every_s = min(_MOST_RENEWAL_S, lasts_s / 3)
        self._next_s = time.monotonic() + self._every_s

    def renew_if_due(self) -> None:
        if time.monotonic() >= self._next_s:
            self._rest.change("PUT", self._path)
            self._next_s = time.monotonic() + self._every_s


class ProgressReport:
    """Writes progress to stderr: one updated line on a terminal, otherwise a line every ten seconds."""

    def __init__(self, options: argparse.Namespace, renewal: _Renewal | None) -> None:
        self._renewal = renewal
        self._is_quiet = options.quiet
        self._is_terminal = sys.stderr.isatty()
        self._every_s = _REDRAW_EVERY_S if self._is_terminal else _REPORT_EVERY_S
        self._next_s = 0.0
        self._start_s = time.monotonic()
        self._total_bytes = 0
        self._done_bytes = 0
        self._what = ""
        self._is_drawn = False

    def begin(self, total_bytes: int, what: str) -> None:
        self._total_bytes = total_bytes
        self._what = what
        self._start_s = time.monotonic()
        self._next_s = self._start_s + self._every_s

    def copied(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self._renewal is not None:
            self._renewal.renew_if_due()
        now_s = time.monotonic()
        if not self._is_quiet and now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._draw(now_s)

    def end(self) -> None:
        if self._is_drawn and self._is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _draw(self, now_s: float) -> None:
        done, total = self._done_bytes, max(self._total_bytes, self._done_bytes, 1)
        rate = done / max(now_s - self._start_s, 0.001)
        left_s = (total - done) / max(rate, 1)
        text = f"{100 * done // total:3} %  {size(done)} of {size(total)}  {size(rate)}/s  {left_s:.0f} s left  {self._what}"
        sys.stderr.write(f"\r\x1b[K{text}" if self._is_terminal else text + "\n")
        sys.stderr.flush()
        self._is_drawn = True
