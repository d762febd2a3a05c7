//! Payloads compressed with a dictionary (docs/design/format.md, "Dictionaries").

use std::cell::RefCell;

use zstd_safe::{CCtx, CDict, CParameter, DCtx, DDict, ResetDirective};

use super::encode::{Corruption, describe, filled, fitting};

/// A dictionary, prepared for decoding.
pub struct Dictionary(DDict<'static>);

impl Dictionary {
    /// None if the bytes are no dictionary, or there is no memory.
    pub fn of(raw: &[u8]) -> Option<Dictionary> {
        zstd_safe::get_dict_id_from_dict(raw)?;
        DDict::try_create(raw).map(Dictionary)
    }
}

/// A dictionary, prepared for compression at one level.
pub struct Compressing(CDict<'static>);

impl Compressing {
    pub fn of(raw: &[u8], level: i32) -> Option<Compressing> {
        CDict::try_create(raw, level).map(Compressing)
    }
}

thread_local! {
    static COMPRESSOR: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Writes the payload of `raw` to `out`; None if it does not fit.
pub fn compress(
    raw: &[u8],
    dictionary: &Compressing,
    out: &mut [u8],
) -> Result<Option<usize>, String> {
    COMPRESSOR.with_borrow_mut(|context| {
        // As for deltas: detects bytes that another dictionary would return.
        context.set_parameter(CParameter::ChecksumFlag(true)).map_err(describe)?;
        context.ref_cdict(&dictionary.0).map_err(describe)?;
        let made = context.compress2(out, raw);
        context.reset(ResetDirective::SessionOnly).map_err(describe)?;
        // The dictionary may be dropped before the next frame.
        context.disable_dictionary().map_err(describe)?;
        fitting(made)
    })
}

/// Fills `out` from a payload that passed `encode::check`.
pub fn decode(stored: &[u8], dictionary: &Dictionary, out: &mut [u8]) -> Result<(), Corruption> {
    let length = DECOMPRESSOR
        .with_borrow_mut(|context| context.decompress_using_ddict(out, stored, &dictionary.0))
        .map_err(describe)?;
    filled(length, out)
}
