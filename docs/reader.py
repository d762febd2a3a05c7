#!/usr/bin/env python3
"""Reads a volume of dedupd without dedupd, by docs/format.md alone: lists it and takes files out.

    pip install zstandard xxhash blake3
    python3 reader.py VOLUME                      # list
    python3 reader.py VOLUME --check              # read everything, and name what is damaged
    python3 reader.py VOLUME --to DIRECTORY [PATH ...] [--privileges]

VOLUME is the directory of a volume that is not mounted, a copy of one, or a copy of its .dedupd.
Nothing there is changed, and no user may change it meanwhile. It needs the programs of nobody, and
no table: containers are scanned. A file that cannot be read whole is named and left out; then the
exit status is 4. Stubs that were copied file by file and have blocks of their own are taken with
--trust-holes (docs/backup.md).

DIRECTORY is made, or has mode 0700: no user may exchange files before they have their owners. Root
takes set-user-ID bits, capabilities, labels and devices with --privileges only. An entry .dedupd at
the top becomes dedupd-of-a-user: DIRECTORY would look like a volume.

Headings of docs/format.md are named in brackets.
"""

import argparse
import errno
import fcntl
import hashlib
import json
import os
import stat
import struct
import sys
import uuid

import blake3
import xxhash
import zstandard

CHUNKS, RECIPES = 1, 2
FOLDERS = {CHUNKS: "store/chunks", RECIPES: "store/recipes"}
COPY_FOLDERS = {CHUNKS: "store/copies/chunks", RECIPES: "store/copies/recipes"}
DATA, FORWARD, TOMBSTONE, COPY = range(4)
RAW, ZSTD, DELTA, DICTIONARY = 0, 1, 2, 3
COMMITTING, RESTORING, DIRECT, WRITTEN = 1, 2, 4, 8

RECORD = struct.Struct("<IIBBHIII32sQQQ")
ENTRY = struct.Struct("<32sQQIIIBBH")
NODE = struct.Struct("<IBBHIIQ16s")
STUB = struct.Struct("<BBHIQ16sQqQQ")
STUB_FIELDS = (
    *("format", "flags", "reserved", "check", "recipe", "digest", "covered", "mtime_ns"),
    *("binding", "local"),
)


class Damaged(Exception):
    """Something that cannot be read as what was written, or that this program does not know."""


def unknown(what):
    return Damaged(f"{what}: this reader does not know it; take the one of a newer docs/")


def xxh3(data, seed=0):
    return xxhash.xxh3_64_intdigest(data, seed=seed)


def show(id_):
    return f"{id_ >> 32}:{id_ & 0xFFFFFFFF}"


def read_at(fd, length, offset):
    """Bytes of a file, zeros for blocks that the disk cannot read: checksums tell."""
    try:
        return os.pread(fd, length, offset)
    except OSError:
        parts = []
        while length > 0:
            count = min(length, 4096 - offset % 4096)
            try:
                parts.append(os.pread(fd, count, offset))
            except OSError:
                parts.append(bytes(count))
            offset, length = offset + count, length - count
        return b"".join(parts)


class Container:
    """[Container] One file of records, scanned: where the records of each ordinal begin."""

    def __init__(self, path, volume_id):
        self.path, self.number = path, int(os.path.basename(path)[:-4])
        self.fd = os.open(path, os.O_RDONLY)
        self.seed, self.is_forgeable = self._seed(read_at(self.fd, 128, 0), volume_id)
        self.places, self.searched, self.targets = {}, {}, {}
        self._scan()

    def _seed(self, head, volume_id):
        """[Seeds] The seed of all checksums, None if it is lost; and whether users can know it."""
        if len(head) == 128 and xxh3(head[:120]) == int.from_bytes(head[120:], "little"):
            magic, version, number, generation, owner = struct.unpack_from("<8sHxxII4x16s", head)
            (seed,) = struct.unpack_from("<Q", head, 48)
            if magic != b"DEDUPCNT" or (number, owner) != (self.number, volume_id):
                raise Damaged(f"{self.path}: a file of another volume, or of another number")
            if version not in (1, 2, 3):
                raise unknown(f"{self.path}: container format {version}")
            if version >= 2 and seed:
                return seed, False
            return xxh3(volume_id + struct.pack("<II", number, generation)), True
        try:
            with open(self.path[:-4] + ".dir", "rb") as file:
                table = file.read(64)
        except OSError:
            table = b""
        if len(table) == 64 and xxh3(table[:56]) == int.from_bytes(table[56:], "little"):
            magic, version, _, number, generation = struct.unpack_from("<8sHHII", table)
            check, seed = struct.unpack_from("<QQ", table, 24)
            if (magic, number) == (b"DEDUPDIR", self.number):
                if version in (2, 3) and check == xxh3(volume_id):
                    return seed, seed == xxh3(volume_id + struct.pack("<II", number, generation))
                if version == 1 and table[24:40] == volume_id:
                    return xxh3(volume_id + struct.pack("<II", number, generation)), True
        return None, True

    def _scan(self):
        """Every valid record header; after damage the next one at a multiple of 8.

        Users choose what lies in payloads. If they can know the seed, what comes after damage is
        taken only for an ordinal that no other record has. If the seed is lost, headers cannot be
        checked: then the records up to the first damage are taken, and only by their fingerprints.
        """
        at, end, places = 128, os.fstat(self.fd).st_size, self.places
        while at + 80 <= end:
            record = self.header(at)
            if record is None or at + 80 + record[5] > end:
                if self.seed is None:
                    return
                places = self.searched if self.is_forgeable else self.places
                at = self._next_magic(at + 8, end)
                continue
            ordinal, kind, target = record[0], record[1], record[8]
            places.setdefault(ordinal, []).append(at)
            if kind == COPY:
                self.targets.setdefault(target, []).append(ordinal)
            if kind == TOMBSTONE:
                for one in range(ordinal + 1, ordinal + min(max(1, target), 1 << 25)):
                    places.setdefault(one, []).append(at)
            at += (80 + record[5] + 7) & -8

    def places_of(self, ordinal):
        """Where the record of an ordinal may begin."""
        return self.places.get(ordinal) or [
            at for at in self.searched.get(ordinal, ()) if self.header(at)[1] in (DATA, COPY)
        ]

    def _next_magic(self, at, end):
        while at + 80 <= end:
            window = read_at(self.fd, min(1 << 20, end - at), at)
            found = window.find(b"DDRC")
            while found >= 0 and (at + found) % 8:
                found = window.find(b"DDRC", found + 1)
            if found >= 0:
                return at + found
            at += (len(window) - 79) & -8 if len(window) > 87 else 8
        return end

    def header(self, at):
        """[Record header] (ordinal, kind, codec, collected, raw and stored length, hint,
        fingerprint, target, checksum); None where there is no valid one."""
        data = read_at(self.fd, 80, at)
        if len(data) < 80:
            return None
        magic, *fields, check = RECORD.unpack(data)
        if magic != 0x43524444:
            return None
        if self.seed is not None and xxh3(data[:72], self.seed) != check:
            return None
        return fields

    def _entry_place(self, table, ordinal):
        """[Table map] Where an entry begins; None where a record was collected and has none."""
        head = table.read(64)
        lines = int.from_bytes(head[46:48], "little")
        left_out = 0
        if lines:
            at = min(ordinal, lines * 256 - 1) // 64
            table.seek(64 + at * 16)
            before, check, present = struct.unpack("<IIQ", table.read(16).ljust(16, b"\0"))
            if xxh3(struct.pack("<IIQ", before, at, present), self.seed) & 0xFFFFFFFF != check:
                return None
            below = present & ((1 << ordinal % 64) - 1)
            if ordinal >= lines * 256:
                left_out = lines * 256 - before - present.bit_count()
            elif present >> ordinal % 64 & 1:
                left_out = ordinal - before - below.bit_count()
            else:
                return None
        return 64 + lines * 64 + (ordinal - left_out) * 64

    def entry_target(self, ordinal):
        """[Redirection table] Where a merged record leads to; None where it is not merged."""
        try:
            with open(self.path[:-4] + ".dir", "rb") as table:
                place = self._entry_place(table, ordinal)
                if place is None:
                    return None
                table.seek(place)
                data = table.read(64)
        except OSError:
            return None
        if len(data) < 64:
            return None
        _, _, target, _, _, _, state, _, check = ENTRY.unpack(data)
        is_valid = xxh3(data[:62], self.seed) & 0xFFFF == check
        return target if is_valid and state == 3 else None


class Store:
    """Chunks and recipes by id; each is checked whenever it is read."""

    def __init__(self, base, volume_id, fingerprint):
        self.base, self.volume_id = base, volume_id
        self.hash = {"blake3": lambda data: blake3.blake3(data).digest()}.get(
            fingerprint, lambda data: hashlib.sha256(data).digest()
        )
        self.containers, self.copies = {}, {}

    def container(self, folder, number):
        path = os.path.join(self.base, folder, f"{number:08d}.dat")
        if path not in self.containers:
            try:
                self.containers[path] = Container(path, self.volume_id)
            except FileNotFoundError:
                self.containers[path] = Damaged(f"{path}: the container is missing")
            except Damaged as error:
                self.containers[path] = error
        found = self.containers[path]
        if isinstance(found, Damaged):
            raise found
        return found

    def read(self, kind, id_, seen=()):
        """(fingerprint, bytes) of a record: its own, or those that it leads to, or a copy's."""
        try:
            container, ordinal = self.container(FOLDERS[kind], id_ >> 32), id_ & 0xFFFFFFFF
            try:
                return self._own(kind, container, ordinal, (*seen, id_))
            except Damaged:
                target = container.entry_target(ordinal)
                if target is None or target in seen or len(seen) > 64:
                    raise
                return self.read(kind, target, (*seen, id_))
        except Damaged as error:
            for copy, ordinal in self._copies_of(kind, id_):
                try:
                    return self._own(kind, copy, ordinal, (*seen, id_))
                except Damaged:
                    continue
            raise error

    def _own(self, kind, container, ordinal, seen):
        where = f"record {container.number}:{ordinal}"
        problem = Damaged(f"{where}: its header is damaged, or it was never there")
        for at in container.places_of(ordinal):
            try:
                return self._record(kind, container, at, where, seen)
            except Damaged as error:
                problem = error
        raise problem

    def _record(self, kind, container, at, where, seen):
        _, record_kind, codec, _, raw, stored, _, fingerprint, target, checksum = container.header(
            at
        )
        if record_kind == TOMBSTONE:
            raise Damaged(f"{where}: it was collected")
        if record_kind == FORWARD:
            if target in seen or len(seen) > 64:
                raise Damaged(f"{where}: it leads in a circle")
            return self.read(kind, target, seen)
        if record_kind not in (DATA, COPY):
            raise unknown(f"{where}: a record of kind {record_kind}")
        payload = read_at(container.fd, stored, at + 80)
        if len(payload) != stored or xxh3(payload) != checksum:
            raise Damaged(f"{where}: its payload fails its checksum")
        if codec in (ZSTD, DELTA, DICTIONARY):
            base = b""
            if codec != ZSTD:
                if record_kind != DATA or target in seen or len(seen) > 64:
                    raise Damaged(f"{where}: it leans on nothing that can be read")
                _, base = self.read(kind, target, seen)
            raw_content, trained = zstandard.DICT_TYPE_RAWCONTENT, zstandard.DICT_TYPE_FULLDICT
            dict_type = trained if codec == DICTIONARY else raw_content
            try:
                prefix = zstandard.ZstdCompressionDict(base, dict_type=dict_type)
                decoder = zstandard.ZstdDecompressor(**({"dict_data": prefix} if base else {}))
                payload = decoder.decompress(payload, max_output_size=raw)
            except zstandard.ZstdError as error:
                raise Damaged(f"{where}: {error}") from None
        elif codec != RAW:
            raise unknown(f"{where}: codec {codec}")
        if len(payload) != raw or self.hash(payload) != fingerprint:
            raise Damaged(f"{where}: it has other bytes than its fingerprint says")
        return fingerprint, payload

    def _copies_of(self, kind, id_):
        """[Copies] Records that repeat this one: second copies, and repaired ones."""
        if kind not in self.copies:
            found = self.copies[kind] = {}
            for folder in (FOLDERS[kind], COPY_FOLDERS[kind]):
                path = os.path.join(self.base, folder)
                for name in sorted(os.listdir(path)) if os.path.isdir(path) else ():
                    if name.endswith(".dat"):
                        try:
                            container = self.container(folder, int(name[:-4]))
                        except (Damaged, ValueError):
                            continue
                        for target, ordinals in container.targets.items():
                            found.setdefault(target, []).extend((container, o) for o in ordinals)
        return self.copies[kind].get(id_, ())

    def chunks(self, stub):
        """[Recipe] (offset, length, chunk id, check) of the recipe of a stub; holes left out."""
        if stub["flags"] & DIRECT:
            fingerprint, raw = self.read(CHUNKS, stub["recipe"])
            if fingerprint[:16] != stub["digest"]:
                raise Damaged(f"chunk {show(stub['recipe'])} is not the one that the stub names")
            yield 0, len(raw), stub["recipe"], int.from_bytes(fingerprint[:4], "little")
            return
        yield from self._node(stub["recipe"], stub["digest"], 0, None, None)

    def _node(self, id_, digest, base, level, length):
        fingerprint, node = self.read(RECIPES, id_)
        where = f"recipe {show(id_)}"
        if digest is not None and fingerprint[:16] != digest:
            raise Damaged(f"{where} is not the one that the stub names")
        magic, version, own_level, _, count, _, own_length, _ = NODE.unpack_from(node)
        if magic != 0x50524444 or len(node) != 40 + 16 * count:
            raise Damaged(f"{where} is none")
        if version != 1:
            raise unknown(f"{where}: recipe format {version}")
        if level is not None and (own_level, own_length) != (level, length):
            raise Damaged(f"{where} is not the part that the one above it names")
        for below, word in struct.iter_unpack("<QQ", node[40:]):
            if own_level:
                yield from self._node(below, None, base, own_level - 1, word)
            elif below:
                yield base, word & 0xFFFFFFFF, below, word >> 32
            base += word & 0xFFFFFFFF if below and not own_level else word

    def chunk(self, id_, length, check):
        fingerprint, raw = self.read(CHUNKS, id_)
        if len(raw) != length or int.from_bytes(fingerprint[:4], "little") != check:
            raise Damaged(f"chunk {show(id_)} has other bytes than those that the recipe means")
        return raw


def extents(fd, size):
    """(start, end) of what a file has in written blocks of its own (FS_IOC_FIEMAP, synced)."""
    found, at = [], 0
    while at < size:
        buffer = bytearray(struct.pack("<QQIIII", at, (1 << 64) - 1 - at, 1, 0, 512, 0))
        buffer += bytes(512 * 56)
        try:
            fcntl.ioctl(fd, 0xC020660B, buffer)
        except OSError:
            return data_ranges(fd, size)
        (count,) = struct.unpack_from("<I", buffer, 20)
        for number in range(count):
            start, _, length, _, _, flags = struct.unpack_from("<QQQQQI", buffer, 32 + number * 56)
            if not flags & 0x800 and start < size:  # not allocated alone
                found.append((start, min(start + length, size)))
            at = start + length
        if count == 0 or flags & 1:  # the last one
            return found
    return found


def data_ranges(fd, size):
    """The same by SEEK_DATA, where there is no extent map; of plain files."""
    found, at = [], 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        found.append((start, at))
    return found


def generation(fd):
    """FS_IOC_GETVERSION; 0 where the file system has none."""
    try:
        return struct.unpack("<I", fcntl.ioctl(fd, 0x80087601, bytes(8))[:4])[0]
    except OSError:
        return 0


def file_system(fd):
    """[Instance] The name of the file system that a file lies on."""
    statfs = os.fstatvfs(fd)
    try:  # XFS_IOC_FSGEOMETRY
        return "xfs:" + fcntl.ioctl(fd, 0x8100587E, bytes(256))[64:80].hex()
    except OSError:
        pass
    try:  # BTRFS_IOC_FS_INFO
        asked = bytearray(1024)
        struct.pack_into("<Q", asked, 48, 4)
        fcntl.ioctl(fd, 0x8400941F, asked)
        has_metadata_uuid = struct.unpack_from("<Q", asked, 48)[0] & 4
        return "btrfs:" + bytes(asked[64:80] if has_metadata_uuid else asked[16:32]).hex()
    except OSError:
        return f"ext4:{statfs.f_fsid & (1 << 64) - 1:016x}"


class Volume:
    """[The directory] A volume, or a copy of one."""

    def __init__(self, path, trust_holes):
        inner = os.path.join(path, ".dedupd")
        self.base = inner if os.path.isfile(os.path.join(inner, "volume.json")) else path
        fields = self._json("volume.json")
        if fields["format"] != 3:
            raise unknown(f"{path}: volume format {fields['format']}")
        self.id = uuid.UUID(fields["uuid"]).bytes
        self.attribute, self.trust_holes = fields["attribute"], trust_holes
        self.store = Store(self.base, self.id, fields["fingerprint"])
        self.data = os.path.join(self.base, "data")
        if self.attribute.startswith("trusted.") and os.geteuid() != 0:
            raise Damaged(f"{path}: root alone is shown {self.attribute}; run this as root")
        self.seed = self._instance_seed()
        self.stubs_seen = 0

    def _json(self, name):
        with open(os.path.join(self.base, name), "rb") as file:
            fields = json.load(file)
        check = fields.pop("check")
        if xxhash.xxh3_64_hexdigest(json.dumps(fields, sort_keys=True).encode()) != check:
            raise Damaged(f"{name} fails its checksum")
        return fields

    def _instance_seed(self):
        """[Instance] The seed of bindings; None for a copy that was made file by file."""
        try:
            told = self._json("instance.json")
            fd = os.open(self.data, os.O_RDONLY | os.O_DIRECTORY)
            here = (file_system(fd), os.fstat(fd).st_ino, generation(fd))
            os.close(fd)
        except (OSError, Damaged, KeyError, ValueError):
            return None
        if here != (told["file_system"], told["inode"], told["generation"]):
            return None
        return xxh3(self.id + struct.pack("<QI", here[1], here[2]) + here[0].encode())

    def stub(self, fd):
        """[Stub attribute] As a dict; None for a plain file."""
        try:
            value = os.getxattr(fd, self.attribute)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
                return None
            raise
        blank = value[:4] + bytes(4) + value[8:]
        check = xxh3(blank, xxh3(self.id)) & 0xFFFFFFFF
        if len(value) < 64 or int.from_bytes(value[4:8], "little") != check:
            raise Damaged("its stub attribute fails its checksum, or belongs to another volume")
        stub = dict(zip(STUB_FIELDS, STUB.unpack_from(value), strict=True))
        if stub["format"] != 2 or stub["flags"] & ~31 or stub["reserved"] or len(value) != 64:
            raise unknown(f"stub format {stub['format']}, flags {stub['flags']:#x}")
        self._prove(fd, stub)
        return stub

    def _prove(self, fd, stub):
        """[Stub] The holes have to be those that the volume had."""
        status = os.fstat(fd)
        place = struct.pack("<QI", status.st_ino, generation(fd))
        is_own = self.seed is not None and xxh3(place, self.seed) == stub["binding"]
        own = sum(end - start for start, end in extents(fd, status.st_size + 4095 & -4096))
        is_open = stub["flags"] & (COMMITTING | RESTORING | WRITTEN)
        if own < stub["local"] and not stub["flags"] & (COMMITTING | RESTORING):
            raise Damaged("it has holes in place of blocks of its own")
        if own > stub["local"] and not is_open:
            raise Damaged("it has blocks in place of holes")
        is_clean = not is_open and not stub["local"] and status.st_size >= stub["covered"]
        if not (is_own or is_clean or self.trust_holes):
            raise Damaged("it was copied, and has blocks of its own: see --trust-holes")

    def pieces(self, fd, stub):
        """(offset, bytes) of all that is not a hole: own blocks first, they are the newest."""
        size = os.fstat(fd).st_size
        own = data_ranges(fd, size) if stub is None else extents(fd, size)
        for start, end in own:
            for at in range(start, end, 1 << 20):
                yield at, os.pread(fd, min(1 << 20, end - at), at)
        if stub is None:
            return
        covered = min(stub["covered"], size)
        length = 0
        for offset, count, id_, check in self.store.chunks(stub):
            length = offset + count
            missing = list(without(own, offset, min(length, covered)))
            if missing:
                raw = self.store.chunk(id_, count, check)
                for start, end in missing:
                    yield start, raw[start - offset : end - offset]


def without(present, start, end):
    """The parts of [start, end) that are in none of ``present``."""
    for low, high in present:
        if low < end and high > start:
            if start < low:
                yield start, low
            start = max(start, high)
    if start < end:
        yield start, end


def refuse_open(target):
    """Make the target. Raises Damaged if other users may reach it."""
    os.makedirs(target, mode=0o700, exist_ok=True)
    status = os.lstat(target)
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_own or status.st_mode & 0o077:
        raise Damaged(f"{target}: is no directory of mode 0700 of this user; name a new one")


ACLS = "system.posix_acl_access", "system.posix_acl_default"


class Extraction:
    """Takes nodes of the tree into a directory, or only reads them (``target`` None)."""

    def __init__(self, volume, target, privileges):
        self.volume, self.target, self.links, self.problems = volume, target, {}, 0
        self.privileges, self.left_out = privileges, 0

    def tell(self, name, problem):
        self.problems += 1
        print(f"{os.fsencode(name)!r}: {problem}", file=sys.stderr)

    def take(self, name):
        """One node below the tree, and all below it."""
        path = os.path.join(self.volume.data, name)
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                if self.target is not None:
                    os.makedirs(self.place(name), mode=0o700, exist_ok=True)
                for entry in sorted(os.listdir(path)):
                    self.take(os.path.join(name, entry) if name else entry)
                if self.target is not None and name:
                    self.dress(path, name, status, status.st_mtime_ns)
            elif status.st_nlink > 1 and status.st_ino in self.links:
                if self.target is not None:
                    os.link(self.links[status.st_ino], self.place(name), follow_symlinks=False)
            elif stat.S_ISREG(status.st_mode):
                self.take_file(path, name, status)
            elif self.target is not None:
                self.make_other(path, name, status)
        except (Damaged, OSError) as error:
            self.tell(name, error)

    def place(self, name):
        if name == ".dedupd" or name.startswith(".dedupd/"):
            name = "dedupd-of-a-user" + name[len(".dedupd") :]
        return os.path.join(self.target, name) if name else self.target

    def take_file(self, path, name, status):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            stub = self.volume.stub(fd)
            self.volume.stubs_seen += stub is not None
            if self.target is None:
                for _ in self.volume.pieces(fd, stub):
                    pass
                return
            place = self.place(name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "xb") as file:
                try:
                    for offset, data in self.volume.pieces(fd, stub):
                        file.seek(offset)
                        file.write(data)
                    file.truncate(status.st_size)
                except (Damaged, OSError):
                    os.unlink(place)
                    raise
        finally:
            os.close(fd)
        changing = stub is not None and stub["flags"] & (COMMITTING | RESTORING)
        self.dress(path, name, status, stub["mtime_ns"] if changing else status.st_mtime_ns)

    def make_other(self, path, name, status):
        place = self.place(name)
        is_device = stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode)
        if is_device and status.st_rdev and not self.privileges:
            self.left_out += 1
            return
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(path), place)
        else:
            os.mknod(place, status.st_mode, status.st_rdev)
        self.dress(path, name, status, status.st_mtime_ns)

    def dress(self, path, name, status, mtime_ns):
        """Owner, mode, attributes (ACLs are some), times."""
        place = self.place(name)
        if os.geteuid() == 0:
            os.chown(place, status.st_uid, status.st_gid, follow_symlinks=False)
        mode, kept = stat.S_IMODE(status.st_mode), 0o7777
        if not self.privileges:
            kept = 0o3777 if stat.S_ISDIR(status.st_mode) else 0o777
        lacks = bool(mode & ~kept & 0o6000)
        if not stat.S_ISLNK(status.st_mode):
            for one in {*ACLS} & {*os.listxattr(place)}:  # of the directory above
                os.removexattr(place, one)
            os.chmod(place, mode & kept)
        for one in os.listxattr(path, follow_symlinks=False):
            if not (self.privileges or one.startswith("user.") or one in ACLS):
                lacks |= one not in (self.volume.attribute, "security.selinux")
            elif one != self.volume.attribute:
                value = os.getxattr(path, one, follow_symlinks=False)
                try:
                    os.setxattr(place, one, value, follow_symlinks=False)
                except OSError as error:
                    self.tell(name, f"without its attribute {one}: {error.strerror}")
        self.left_out += lacks
        os.utime(place, ns=(status.st_atime_ns, mtime_ns), follow_symlinks=False)
        if status.st_nlink > 1:
            self.links.setdefault(status.st_ino, place)


def listed(volume):
    for directory, folders, files in os.walk(volume.data):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(directory, name)
            status, kind = os.lstat(path), "other"
            if stat.S_ISREG(status.st_mode):
                try:
                    os.getxattr(path, volume.attribute, follow_symlinks=False)
                    kind = "stub"
                except OSError:
                    kind = "plain"
            where = os.fsencode(os.path.relpath(path, volume.data))
            where = where.decode("utf-8", "backslashreplace")
            where = "".join(one if one.isprintable() else repr(one)[1:-1] for one in where)
            print(f"{kind:5} {status.st_size:15,} {where}")


def main():
    parser = argparse.ArgumentParser(description="Reads a volume of dedupd without dedupd.")
    parser.add_argument("volume")
    parser.add_argument("paths", nargs="*", help="within the volume; all by default")
    parser.add_argument("--to", metavar="DIRECTORY", help="take files out")
    parser.add_argument("--check", action="store_true", help="read everything")
    parser.add_argument("--trust-holes", action="store_true", help="the copy kept holes")
    parser.add_argument("--privileges", action="store_true", help="take what gives rights")
    given = parser.parse_args()
    try:
        volume = Volume(given.volume, given.trust_holes)
        if given.to is None and not given.check:
            listed(volume)
            return 0
        if given.to is not None:
            refuse_open(given.to)
        work = Extraction(volume, given.to, given.privileges)
        for path in given.paths or [""]:
            work.take(path.strip("/"))
    except (Damaged, OSError) as error:
        print(f"reader.py: {error}", file=sys.stderr)
        return 4
    if work.left_out:
        text = f"{work.left_out} names without privileges; see --privileges"
        print(f"reader.py: {text}", file=sys.stderr)
    if volume.seed is None and not volume.stubs_seen:
        print("reader.py: a copy without any stub: were its attributes lost?", file=sys.stderr)
        return 4
    return 4 if work.problems else 0


if __name__ == "__main__":
    sys.exit(main())
