"""Volumes that are sent to others."""

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from dedupd_core.format import stream
from dedupd_core.format.stream import Frame, FrameKind
from dedupd_core.replica.replica import replica_of
from dedupd_core.volume.volume import Volume
from jobs.backup.frame_io import PipeClosed, seed_of
from jobs.backup.intake import Reception
from jobs.backup.receiver import Receiver, ReceiveReport, ReplicaVolume
from jobs.backup.restore import Restore
from jobs.backup.sender import Resume, Sender, SendReport
from jobs.backup.source import BackupSource
from jobs.frame.run import JobRun
from jobs.specs import RECEPTION
from tests.support.lab import Lab
from tests.support.trees import Seen, seen


def reception(volume: ReplicaVolume, run: JobRun) -> Reception:
    """The way of the volume's store."""
    way: Reception = RECEPTION.of(volume, "receive")(volume, run)
    return way


def sent(
    lab: Lab,
    to: Lab,
    *,
    since: str = "",
    resume: Resume | None = None,
    negotiates: bool = False,
) -> tuple[SendReport, ReceiveReport]:
    """Sends one volume to another by pipes, each side in a thread of its own."""
    out, back = os.pipe(), os.pipe()
    received: list[ReceiveReport | BaseException] = []

    def receive() -> None:
        try:
            with ReplicaVolume.open(str(to.root)) as volume, volume.job_lock():
                run, answers = JobRun("receive"), back[1] if negotiates else None
                way = reception(volume, run)
                received.append(Receiver(volume, run, out[0], answers, way).run())
        except BaseException as error:
            received.append(error)
        finally:
            os.close(out[0])
            os.close(back[1])

    thread = threading.Thread(target=receive)
    thread.start()
    failure: BaseException | None = None
    with ExitStack() as stack:
        stack.callback(thread.join)
        stack.callback(os.close, out[1])
        stack.callback(os.close, back[0])
        try:
            with Volume.open(str(lab.root)) as volume, volume.job_lock(reads_only=True):
                answers = back[0] if negotiates else None
                sender = Sender(volume, JobRun("send"), out[1], answers, since=since, resume=resume)
                report = sender.run()
        except BaseException as error:
            failure = error
    (result,) = received
    if isinstance(result, BaseException) and (failure is None or isinstance(failure, PipeClosed)):
        raise result
    if failure is not None:
        raise failure
    assert isinstance(result, ReceiveReport)
    return report, result


def content(lab: Lab, directory: Path, name: str) -> Seen:
    """What a volume holds, taken out of it file by file, with every byte checked."""
    out = directory / name
    out.mkdir()
    with BackupSource.found(str(lab.root)) as volume:
        as_root = os.geteuid() == 0
        job = Restore(volume, JobRun("restore"), str(out), privileges=as_root)
        report = job.run([b""])
    assert report.messages == [], report.messages
    return seen(out)


def stream_bytes(lab: Lab) -> bytes:
    """All of a volume as a stream."""
    reader, writer = os.pipe()
    parts = list[bytes]()

    def read() -> None:
        with os.fdopen(reader, "rb") as file:
            parts.append(file.read())

    thread = threading.Thread(target=read)
    thread.start()
    with ExitStack() as stack:
        stack.callback(thread.join)
        stack.callback(os.close, writer)
        with Volume.open(str(lab.root)) as volume, volume.job_lock(reads_only=True):
            Sender(volume, JobRun("send"), writer, None).run()
    return parts[0]


def received(lab: Lab, data: bytes) -> BaseException | None:
    """Receive the bytes of a stream into a volume; the error if any."""
    reader, writer = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError), os.fdopen(writer, "wb", buffering=0) as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with ReplicaVolume.open(str(lab.root)) as volume, volume.job_lock():
            Receiver(volume, JobRun("receive"), reader).run()
    except BaseException as error:
        return error
    finally:
        os.close(reader)
        thread.join()
    return None


def frames_of(data: bytes) -> Iterator[Frame]:
    """The frames of a stream that is sound."""
    at, seed = 0, 0
    while at < len(data):
        header = data[at : at + stream.HEADER_BYTES]
        head = stream.decode_head(header, "")
        at += stream.HEADER_BYTES
        payload = data[at : at + head.stored_length]
        at += head.stored_length
        frame = stream.decode_frame(head, header, payload, seed, "")
        seed = seed or seed_of(stream.fields_of(frame, FrameKind.BEGIN, "")["stream"])
        yield frame


def stream_of(frames: Sequence[Frame]) -> bytes:
    """A stream of any frames, with the right numbers and checksums."""
    seed, parts = 0, list[bytes]()
    for sequence, frame in enumerate(frames):
        parts.append(stream.encode_frame(frame, sequence, seed))
        if sequence == 0:
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                seed = seed_of(json.loads(frame.payload)["stream"])
    return b"".join(parts)


def point_of(lab: Lab) -> str:
    with ReplicaVolume.open(str(lab.root)) as volume:
        replica = replica_of(volume.base_fd, "")
    return replica.point if replica else ""
