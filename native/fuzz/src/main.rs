//! Fuzzing of the native decoders, guided by coverage: a program of libFuzzer for the target in
//! `DEDUPD_FUZZ` of the environment. `tests/fuzz/test_native.py` builds and runs it; the crate's
//! tests replay what it has found.

#![no_main]

mod targets;

use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static TARGET: OnceLock<targets::Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("DEDUPD_FUZZ").unwrap_or_default();
        targets::named(&name).expect("DEDUPD_FUZZ names no target")
    })(data);
});
