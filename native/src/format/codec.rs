//! The encoding of a record's raw bytes in its payload (docs/design/format.md, "Record header").

/// The codec of a payload. A header or an entry may hold an unknown number.
///
/// A new codec is one more line of `CODECS`: the compiler then finds each place that has to handle
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// The unchanged raw bytes.
    Raw,
    Zstd,
    /// Compressed with the raw bytes of another record, the base.
    Delta,
    /// Compressed with a dictionary, which is another record.
    Dictionary,
    Unknown(u8),
}

/// The codecs by their numbers on disk.
pub const CODECS: [Codec; 4] = [Codec::Raw, Codec::Zstd, Codec::Delta, Codec::Dictionary];

impl From<u8> for Codec {
    #[inline]
    fn from(number: u8) -> Codec {
        CODECS.get(usize::from(number)).copied().unwrap_or(Codec::Unknown(number))
    }
}

impl Codec {
    /// The number on disk.
    #[inline]
    pub fn number(self) -> u8 {
        match self {
            Codec::Raw => 0,
            Codec::Zstd => 1,
            Codec::Delta => 2,
            Codec::Dictionary => 3,
            Codec::Unknown(number) => number,
        }
    }

    #[inline]
    pub fn is_known(self) -> bool {
        !matches!(self, Codec::Unknown(_))
    }

    /// Returns whether decoding needs the bytes of another record.
    #[inline]
    pub fn leans(self) -> bool {
        match self {
            Codec::Delta | Codec::Dictionary => true,
            Codec::Raw | Codec::Zstd | Codec::Unknown(_) => false,
        }
    }

    /// Returns whether the payload can be decoded without any other record.
    #[inline]
    pub fn stands_alone(self) -> bool {
        self.is_known() && !self.leans()
    }

    /// Returns whether other records may be deltas of this one: it is no delta itself.
    #[inline]
    pub fn may_be_base(self) -> bool {
        match self {
            Codec::Raw | Codec::Zstd | Codec::Dictionary => true,
            Codec::Delta | Codec::Unknown(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_codec_has_its_properties() {
        // leans, stands alone, may be a base
        let expected = [
            (Codec::Raw, false, true, true),
            (Codec::Zstd, false, true, true),
            (Codec::Delta, true, false, false),
            (Codec::Dictionary, true, false, true),
            (Codec::Unknown(CODECS.len() as u8), false, false, false),
        ];
        for (codec, leans, stands_alone, may_be_base) in expected {
            assert_eq!(
                (codec.leans(), codec.stands_alone(), codec.may_be_base()),
                (leans, stands_alone, may_be_base),
                "{codec:?}"
            );
        }
        assert!(CODECS.iter().all(|codec| expected.iter().any(|row| row.0 == *codec)));
    }

    #[test]
    fn every_number_comes_back() {
        for number in 0..=u8::MAX {
            assert_eq!(Codec::from(number).number(), number);
            assert_eq!(Codec::from(number).is_known(), usize::from(number) < CODECS.len());
        }
    }
}
