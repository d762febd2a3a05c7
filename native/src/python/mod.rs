//! The Python module `dedupd_core.native`; its contract is `dedupd_core/native/*.pyi`.

mod admission;
mod chunker;
mod chunks;
mod codec;
mod commit;
mod deletions;
mod hashing;
mod index;
mod ingest;
mod mount;
mod rados;
mod store;
mod stub;
mod study;
mod support;
mod system;
mod testing;
mod tree;
mod upkeep;

#[pyo3::pymodule(name = "native")]
mod exported {
    use pyo3::prelude::*;

    #[pymodule]
    mod chunker {
        #[pymodule_export]
        use crate::python::chunker::Chunker;
        #[pymodule_export]
        use crate::python::chunker::Followers;
        #[pymodule_export]
        use crate::python::chunks::Chunks;
    }

    #[pymodule]
    mod hashing {
        #[pymodule_export]
        use crate::python::hashing::{fingerprint, fingerprints, is_zero, xxh3_64};
        #[pymodule_export]
        const HASH_BYTES: usize = crate::fingerprint::FINGERPRINT_BYTES;
    }

    #[pymodule]
    mod deletions {
        #[pymodule_export]
        use crate::python::deletions::{DeletionLog, spans};
    }

    #[pymodule]
    mod codec {
        #[pymodule_export]
        use crate::python::codec::{CorruptPayload, Encoded, decode, encode};
    }

    #[pymodule]
    mod index {
        #[pymodule_export]
        use crate::python::index::{BloomIndex, Figures, HookIndex, TableIndex};
    }

    #[pymodule]
    mod admission {
        #[pymodule_export]
        use crate::python::admission::{Ledger, Notes, Recall, Snapshot, pays, verdict};
    }

    #[pymodule]
    mod ingest {
        #[pymodule_export]
        use crate::python::chunks::{Judgement, NewChunks, Placed};
        #[pymodule_export]
        const JUDGE: u8 = crate::ingest::judgement::Mode::Judge as u8;
        #[pymodule_export]
        const STORE: u8 = crate::ingest::judgement::Mode::Store as u8;
        #[pymodule_export]
        const LEAVE: u8 = crate::ingest::judgement::Mode::Leave as u8;
        #[pymodule_export]
        const BEGIN: u8 = crate::ingest::judgement::Mode::Begin as u8;
        #[pymodule_export]
        use crate::python::ingest::{FileList, Unread, examine};
    }

    #[pymodule]
    mod store {
        #[pymodule_export]
        use crate::python::store::bases::Bases;
        #[pymodule_export]
        use crate::python::store::chunk_cache::ChunkCache;
        #[pymodule_export]
        use crate::python::store::records::{
            ContainerCheck, Difference, HeaderScan, dead_payloads, headers_agree, is_intact,
            places_digest, seal, table_states, valid_seed, weigh_table,
        };
        #[pymodule_export]
        use crate::python::store::stream_frames::{
            BlocksAhead, frame_chunks, frame_cluster_chunks,
        };
        #[pymodule_export]
        use crate::python::store::stub_bytes::{
            BrokenPart, Held, RecipeLeaf, StubBytes, Unreadable,
        };
        #[pymodule_export]
        use crate::python::store::table_map::TableMap;
        #[pymodule_export]
        use crate::store::container_check::Reached;
        #[pymodule_export]
        use crate::store::table_states::Weight;
    }

    #[pymodule]
    mod stub {
        #[pymodule_export]
        use crate::python::stub::{OpenStub, uncounted_bytes};
    }

    #[pymodule]
    mod upkeep {
        #[pymodule_export]
        use crate::python::upkeep::marks::{
            Followed, Leaned, Marks, NamedByStubs, Needs, NodesRead, misfits, scan_stubs,
        };
        #[pymodule_export]
        use crate::python::upkeep::needs::{Join, KnownRecords, digest_needed};
        #[pymodule_export]
        use crate::python::upkeep::refine::{
            Refined, Refiner, Samples, deltas, pack_sketches, sketch_records, unpack_sketches,
        };
        #[pymodule_export]
        use crate::python::upkeep::usage::{TakenByGroup, Usage};
        #[pymodule_export]
        const FORWARDS_MAX: usize = crate::format::table_entry::FORWARDS_MAX;
    }

    #[pymodule]
    mod tree {
        #[pymodule_export]
        use crate::python::support::entries::{Directory, FileEntry, Unreadable};
        #[pymodule_export]
        use crate::python::tree::{
            CountedStubs, DirectoryCandidates, PackedFiles, Rules, StubCounter, find_candidates,
            scan_directory,
        };
        #[pymodule_export]
        use crate::python::upkeep::usage::{StubUsage, UsageSums, sum_up};
    }

    #[pymodule]
    mod commit {
        #[pymodule_export]
        use crate::python::commit::{CommitBatch, CommitRequests, Refusal, begin, finish};
    }

    #[pymodule]
    mod mount {
        #[pymodule_export]
        use crate::python::mount::inodes::Inodes;
        #[pymodule_export]
        use crate::python::mount::line::{Line, Turn};
        #[pymodule_export]
        use crate::python::mount::pages::answer_for_pages;
        #[pymodule_export]
        use crate::python::mount::request::Request;
        #[pymodule_export]
        use crate::python::mount::write_times::WriteTimes;
        #[pymodule_export]
        const GRAIN_BYTES: u64 = crate::mount::write_times::GRAIN_BYTES;
        #[pymodule_export]
        const READ: u32 = crate::mount::protocol::opcode::READ;
        #[pymodule_export]
        const WRITE: u32 = crate::mount::protocol::opcode::WRITE;
        #[pymodule_export]
        const FSYNC: u32 = crate::mount::protocol::opcode::FSYNC;
        #[pymodule_export]
        const CREATE: u32 = crate::mount::protocol::opcode::CREATE;
        #[pymodule_export]
        const FSYNCDIR: u32 = crate::mount::protocol::opcode::FSYNCDIR;
        #[pymodule_export]
        const FALLOCATE: u32 = crate::mount::protocol::opcode::FALLOCATE;
        #[pymodule_export]
        const LSEEK: u32 = crate::mount::protocol::opcode::LSEEK;
        #[pymodule_export]
        const COPY_FILE_RANGE: u32 = crate::mount::protocol::opcode::COPY_FILE_RANGE;
        #[pymodule_export]
        const COPY_FILE_RANGE_64: u32 = crate::mount::protocol::opcode::COPY_FILE_RANGE_64;
        #[pymodule_export]
        const TMPFILE: u32 = crate::mount::protocol::opcode::TMPFILE;
        #[pymodule_export]
        const IOCTL: u32 = crate::mount::protocol::opcode::IOCTL;
        #[pymodule_export]
        const SETXATTR: u32 = crate::mount::protocol::opcode::SETXATTR;
        #[pymodule_export]
        const GET_FLAGS: u32 = crate::mount::protocol::abi::control::GET_FLAGS;
        #[pymodule_export]
        const SET_FLAGS: u32 = crate::mount::protocol::abi::control::SET_FLAGS;
        #[pymodule_export]
        const GET_EXTENDED: u32 = crate::mount::protocol::abi::control::GET_EXTENDED;
        #[pymodule_export]
        const SET_EXTENDED: u32 = crate::mount::protocol::abi::control::SET_EXTENDED;
    }

    #[pymodule]
    mod rados {
        #[pymodule_export]
        use crate::python::rados::{
            ChunkNumbers, ChunkReader, ClusterContent, FrameCache, KeptFrame, keep_freed_memory,
        };
    }

    #[pymodule]
    mod study {
        #[pymodule_export]
        use crate::python::study::{FileColumns, TreeWalk, read_packed};
    }

    #[pymodule]
    mod system {
        #[pymodule_export]
        use crate::python::system::{
            FileSystemKind, OpenGuard, become_file_user, bound_capabilities, deny_calls,
            fallocate_keep_size, fgetxattr, file_system_kind, file_systems, generation,
            give_up_capability, handle_of, has_large_units, lmdb_is_sound, local_bytes,
            name_to_handle, open_by_handle, present_ranges, punch_hole, read_uncached, renameat2,
            shared_bytes, syncfs, unwritten_ranges, written_ranges,
        };
    }

    #[pymodule]
    mod testing {
        #[pymodule_export]
        const BACKGROUND_MAX: u16 = crate::mount::protocol::handshake::BACKGROUND_MAX;
        #[pymodule_export]
        const CONGESTED_FROM: u16 = crate::mount::protocol::handshake::CONGESTED_FROM;
        #[pymodule_export]
        use crate::python::testing::{
            candidates, cut, incompressible, load_factor, rebuild, simd_paths,
        };
    }

    /// Makes `import dedupd_core.native.store` work although the module is no package: Python
    /// searches there before it searches for files.
    #[pymodule_init]
    fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let modules = module.py().import("sys")?.getattr("modules")?;
        for (name, value) in module.dict().iter() {
            if let Ok(submodule) = value.cast::<PyModule>() {
                let name = format!("dedupd_core.native.{name}");
                submodule.setattr("__name__", &name)?;
                modules.set_item(name, submodule)?;
            }
        }
        Ok(())
    }
}
