//! Fields of layouts: their places, and their little-endian numbers.

/// A field of a layout: `SIZE` bytes from `start` on.
///
/// All methods panic if the layout is shorter than the end of the field.
#[derive(Clone, Copy)]
pub struct Field<const SIZE: usize> {
    pub start: usize,
}

impl<const SIZE: usize> Field<SIZE> {
    pub const fn at(start: usize) -> Field<SIZE> {
        Field { start }
    }

    pub const fn end(self) -> usize {
        self.start + SIZE
    }

    #[inline]
    pub fn of(self, layout: &[u8]) -> &[u8; SIZE] {
        // The slice has this length, so the zeros are never used.
        layout[self.start..self.end()].first_chunk().unwrap_or(&[0; SIZE])
    }

    #[inline]
    pub fn put(self, layout: &mut [u8], value: &[u8; SIZE]) {
        layout[self.start..self.end()].copy_from_slice(value);
    }
}

impl Field<1> {
    #[inline]
    pub fn u8(self, layout: &[u8]) -> u8 {
        layout[self.start]
    }
}

impl Field<2> {
    #[inline]
    pub fn u16(self, layout: &[u8]) -> u16 {
        u16::from_le_bytes(*self.of(layout))
    }
}

impl Field<4> {
    #[inline]
    pub fn u32(self, layout: &[u8]) -> u32 {
        u32::from_le_bytes(*self.of(layout))
    }
}

impl Field<8> {
    #[inline]
    pub fn u64(self, layout: &[u8]) -> u64 {
        u64::from_le_bytes(*self.of(layout))
    }
}

/// Makes a module with a [`Field`] for each field of a layout, without gaps, and with its size,
/// `BYTES`.
///
/// An offset follows from the sizes before it. The offset after `at` is that of
/// docs/design/format.md: if the two differ, the crate does not compile. A test compares all of
/// them with the tables of that document (`FIELDS`).
macro_rules! layout {
    (
        $(#[$attribute:meta])*
        $visibility:vis mod $name:ident: $bytes:literal bytes {
            $($field:ident: $size:literal at $offset:literal,)*
        }
    ) => {
        $(#[$attribute])*
        $visibility mod $name {
            use $crate::format::bytes::Field;

            $crate::format::bytes::layout!(@fields 0; $($field: $size at $offset,)*);
            const _: () = assert!(BYTES == $bytes);

            #[cfg(test)]
            #[allow(dead_code, reason = "not all layouts are compared with the document")]
            pub const FIELDS: &[(&str, usize, usize)] =
                &[$((stringify!($field), $field.start, $size)),*];
        }
    };
    (@fields $start:expr; $field:ident: $size:literal at $offset:literal, $($rest:tt)*) => {
        pub const $field: Field<$size> = Field::at($start);
        const _: () = assert!($field.start == $offset);
        $crate::format::bytes::layout!(@fields $field.end(); $($rest)*);
    };
    (@fields $end:expr;) => {
        pub const BYTES: usize = $end;
    };
}
pub(crate) use layout;

/// The numbers of a column of u16.
pub fn u16s(column: &[u8]) -> impl Iterator<Item = u16> {
    column.chunks_exact(2).map(|item| Field::<2>::at(0).u16(item))
}

/// The numbers of a column of u32.
pub fn u32s(column: &[u8]) -> impl Iterator<Item = u32> {
    column.chunks_exact(4).map(|item| Field::<4>::at(0).u32(item))
}

/// The numbers of a column of u64.
pub fn u64s(column: &[u8]) -> impl Iterator<Item = u64> {
    column.chunks_exact(8).map(|item| Field::<8>::at(0).u64(item))
}
