//! Arithmetic modulo a polynomial of degree 16 over GF(2), and the tables made from it.
//!
//! An element is a `u16`, bit n the coefficient of x^n.

/// Bytes of the fingerprint's window.
pub const WINDOW: usize = 64;

/// Doublings from the window of 2 bytes, which needs no arithmetic, to that of 64.
pub const DOUBLINGS: usize = 5;

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

    /// Rabin's test: x^(2^16) = x, and x^(2^8) - x has no factor in common with the polynomial.
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
    /// What the byte shifted out at the top adds: byte·x^16.
    pub overflow: [u16; 256],
    /// What the byte that leaves the window adds: byte·x^(8·64).
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

/// Multiplication by one constant as look-ups by nibble: `[output byte][input nibble][value]`.
///
/// Nibbles count from the low end of the 16-bit element.
pub type NibbleTables = [[[u8; 16]; 4]; 2];

/// Multiplication by one constant as 8×8 bit matrices: `[output byte][input byte]`.
///
/// The layout is that of `gf2p8affineqb`: byte 7-i of the word is the row of output bit i, and
/// bit j of that row says whether input bit j takes part.
pub type BitMatrices = [[u64; 2]; 2];

/// The multipliers of the doublings: window 2^(k+1) to 2^(k+2) bytes at index k.
pub struct Doubling {
    pub nibbles: [NibbleTables; DOUBLINGS],
    pub matrices: [BitMatrices; DOUBLINGS],
}

impl Doubling {
    pub fn new(field: Field) -> Doubling {
        let factor = |k: usize| field.power_of_x(8 << (k + 1));
        Doubling {
            nibbles: std::array::from_fn(|k| nibble_tables(field, factor(k))),
            matrices: std::array::from_fn(|k| bit_matrices(field, factor(k))),
        }
    }
}

fn nibble_tables(field: Field, factor: u16) -> NibbleTables {
    let product = |nibble: usize, value: usize| field.mul((value << (4 * nibble)) as u16, factor);
    std::array::from_fn(|output| {
        std::array::from_fn(|nibble| {
            std::array::from_fn(|value| (product(nibble, value) >> (8 * output)) as u8)
        })
    })
}

fn bit_matrices(field: Field, factor: u16) -> BitMatrices {
    let mut matrices = BitMatrices::default();
    for (output, row) in matrices.iter_mut().enumerate() {
        for (input, matrix) in row.iter_mut().enumerate() {
            for column in 0..8 {
                let product = field.mul(1 << (8 * input + column), factor) >> (8 * output);
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
    fn tables_multiply() {
        let field = Field::new(0x16d43).unwrap();
        let factor = field.power_of_x(128);
        let tables = nibble_tables(field, factor);
        for value in 0..=u16::MAX {
            let byte = |output: usize| {
                (0..4).fold(0, |sum, n| sum ^ tables[output][n][usize::from(value >> (4 * n) & 15)])
            };
            assert_eq!(u16::from_le_bytes([byte(0), byte(1)]), field.mul(value, factor));
        }
    }
}
