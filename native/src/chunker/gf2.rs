//! Arithmetic modulo a polynomial of degree 16 over GF(2), and tables for it.
//!
//! An element is a `u16`. Bit n is the coefficient of x^n.

/// Bytes of the fingerprint's window.
pub const WINDOW: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The polynomial without its leading term.
    low: u16,
}

impl Field {
    /// `polynomial` with its x^16 term; None unless it is irreducible of degree 16.
    pub fn new(polynomial: u32) -> Option<Field> {
        if polynomial >> 16 != 1 || polynomial & 1 == 0 {
            return None;
        }
        let field = Field { low: polynomial as u16 };
        field.is_irreducible().then_some(field)
    }

    /// Rabin's test: x^(2^16) = x, and x^(2^8) - x has no common factor with the polynomial.
    fn is_irreducible(self) -> bool {
        let frobenius = |times: u32| (0..times).fold(2u16, |v, _| self.mul(v, v));
        frobenius(16) == 2 && gcd(u32::from(self.low) | 1 << 16, u32::from(frobenius(8) ^ 2)) == 1
    }

    pub fn mul(self, a: u16, b: u16) -> u16 {
        let mut product = 0;
        for bit in (0..16).rev() {
            product = self.mul_x(product);
            if b >> bit & 1 == 1 {
                product ^= a;
            }
        }
        product
    }

    fn mul_x(self, a: u16) -> u16 {
        (a << 1) ^ if a >> 15 == 1 { self.low } else { 0 }
    }

    /// x^exponent
    pub fn power_of_x(self, exponent: usize) -> u16 {
        (0..exponent).fold(1, |v, _| self.mul_x(v))
    }
}

fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        while a != 0 && a.leading_zeros() <= b.leading_zeros() {
            a ^= b << (b.leading_zeros() - a.leading_zeros());
        }
        (a, b) = (b, a);
    }
    a
}

/// Tables of the byte-at-a-time loop.
pub struct Rolling {
    /// The term of the byte that is shifted out at the top: byte·x^16.
    pub overflow: [u16; 256],
    /// The term of the byte that leaves the window: byte·x^(8·64).
    pub leave: [u16; 256],
}

impl Rolling {
    pub fn new(field: Field) -> Rolling {
        let table = |factor: u16| std::array::from_fn(|byte| field.mul(byte as u16, factor));
        Rolling {
            overflow: table(field.power_of_x(16)),
            leave: table(field.power_of_x(8 * WINDOW)),
        }
    }
}

/// The two multiplications of a rolling step, in the forms for vector units. Index 0 of the inputs
/// is the byte that leaves the window, times x^(8·64). Index 1 is the high byte of the fingerprint,
/// times x^16.
pub struct Step {
    pub nibbles: NibbleTables,
    pub matrices: BitMatrices,
}

/// Look-ups by nibble: `[output byte][input nibble][value]`, the lower nibble of an input first.
pub type NibbleTables = [[[u8; 16]; 4]; 2];

/// 8×8 bit matrices: `[output byte][input byte]`.
///
/// The layout is that of `gf2p8affineqb`: byte 7-i of the word is the row of output bit i. Bit j of
/// that row is set if output bit i depends on input bit j.
pub type BitMatrices = [[u64; 2]; 2];

impl Step {
    pub fn new(field: Field) -> Step {
        let factors = [field.power_of_x(8 * WINDOW), field.power_of_x(16)];
        Step { nibbles: nibble_tables(field, factors), matrices: bit_matrices(field, factors) }
    }
}

fn nibble_tables(field: Field, factors: [u16; 2]) -> NibbleTables {
    std::array::from_fn(|output| {
        std::array::from_fn(|nibble| {
            std::array::from_fn(|value| {
                let byte = (value << (4 * (nibble % 2))) as u16;
                (field.mul(byte, factors[nibble / 2]) >> (8 * output)) as u8
            })
        })
    })
}

fn bit_matrices(field: Field, factors: [u16; 2]) -> BitMatrices {
    let mut matrices = BitMatrices::default();
    for (output, row) in matrices.iter_mut().enumerate() {
        for (matrix, factor) in row.iter_mut().zip(factors) {
            for column in 0..8 {
                let product = field.mul(1 << column, factor) >> (8 * output);
                for bit in 0..8 {
                    *matrix |= u64::from(product >> bit & 1) << (8 * (7 - bit) + column);
                }
            }
        }
    }
    matrices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_irreducible_polynomials() {
        // Necklaces: (2^16 - 2^8) / 16.
        let count = (0x10000..0x20000u32).filter(|&p| Field::new(p).is_some()).count();
        assert_eq!(count, 4080);
    }

    #[test]
    fn nibble_tables_multiply() {
        let field = Field::new(0x16d43).unwrap();
        let factors = [field.power_of_x(8 * WINDOW), field.power_of_x(16)];
        let tables = nibble_tables(field, factors);
        for (input, factor) in factors.into_iter().enumerate() {
            for byte in 0..=255u8 {
                let output = |n: usize| {
                    let [lower, upper] = [tables[n][2 * input], tables[n][2 * input + 1]];
                    lower[usize::from(byte & 15)] ^ upper[usize::from(byte >> 4)]
                };
                let product = field.mul(u16::from(byte), factor);
                assert_eq!(u16::from_le_bytes([output(0), output(1)]), product);
            }
        }
    }
}
