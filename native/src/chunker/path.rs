//! The implementations of stage 1, and the selection of those that this process may use.

use std::sync::OnceLock;

use super::gf2::{Field, WINDOW};
use super::noise::noise;
use super::stage1::{Filter, Scan, Tables};
use super::{scalar, simd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Scalar,
    Avx2,
    Avx512,
    Gfni,
}

impl Path {
    pub fn name(self) -> &'static str {
        match self {
            Path::Scalar => "scalar",
            Path::Avx2 => "avx2",
            Path::Avx512 => "avx512",
            Path::Gfni => "gfni",
        }
    }

    /// The code, if both this build and this CPU support it.
    pub(super) fn scan(self) -> Option<Scan> {
        #[cfg(target_arch = "x86_64")]
        use super::avx2;
        #[cfg(avx512)]
        use super::avx512;
        match self {
            Path::Scalar => Some(scalar::scan),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 if avx2::available() => Some(avx2::scan),
            #[cfg(avx512)]
            Path::Avx512 if avx512::shuffle_available() => Some(avx512::scan_shuffle),
            #[cfg(avx512)]
            Path::Gfni if avx512::gfni_available() => Some(avx512::scan_gfni),
            _ => None,
        }
    }
}

/// Paths that passed the self-test in this process, slowest first.
pub fn available_paths() -> &'static [Path] {
    static PATHS: OnceLock<Vec<Path>> = OnceLock::new();
    PATHS.get_or_init(|| {
        [Path::Scalar, Path::Avx2, Path::Avx512, Path::Gfni]
            .into_iter()
            .filter(|path| path.scan().is_some_and(agrees_with_scalar))
            .collect()
    })
}

/// A wrong result would change the cuts of files, so the CPU flags alone are not enough.
fn agrees_with_scalar(scan: Scan) -> bool {
    let data = noise(3 * simd::BLOCK + 1);
    let ranges = [
        (WINDOW - 1, data.len()),
        (WINDOW - 1, WINDOW),
        (1000, 1001 + simd::BLOCK),
        (data.len() - 100, data.len()),
    ];
    [0x16d43, 0x1002d].into_iter().filter_map(Field::new).all(|field| {
        let tables = Tables::new(field);
        [Filter::new(3, 5), Filter::new(12, 0xb6b)].into_iter().all(|filter| {
            ranges.into_iter().all(|(from, to)| {
                let (mut expected, mut found) = (Vec::new(), Vec::new());
                scalar::scan(&tables, filter, &data, from, to, &mut expected);
                scan(&tables, filter, &data, from, to, &mut found);
                expected == found
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cpu_has_passes_the_self_test() {
        for path in [Path::Scalar, Path::Avx2, Path::Avx512, Path::Gfni] {
            assert_eq!(path.scan().is_some(), available_paths().contains(&path));
        }
    }
}
