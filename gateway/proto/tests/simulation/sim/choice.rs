//! The source of all decisions of a run: a seed, or the bytes of a fuzzer.

use std::collections::VecDeque;

/// A sequence of choices. The same sequence always produces the same run.
#[derive(Debug)]
pub enum Choices {
    /// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
    Seed(u64),
    /// A fuzzer's input. After its end, every choice is zero.
    Bytes(VecDeque<u8>),
}

impl Choices {
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.iter().copied().collect())
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        let bits = match self {
            Self::Seed(state) => split_mix(state),
            Self::Bytes(bytes) => {
                let wanted = match bound {
                    0..=0x100 => 1,
                    0x101..=0x1_0000 => 2,
                    _ => 4,
                };
                let taken = bytes.drain(..bytes.len().min(wanted));
                taken.fold(0, |number, byte| number << 8 | u64::from(byte))
            }
        };
        (bits % bound as u64) as usize
    }

    /// True once in `n` times. False after the end of the bytes.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// One of `options`. After the end of the bytes, the first of `options`.
    pub fn of<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len())]
    }

    /// A length from 1 to `most`, of any order of magnitude.
    pub fn length(&mut self, most: usize) -> usize {
        let digits = self.below(most.ilog2() as usize + 1) as u32;
        (1 + self.below(2 << digits)).min(most)
    }

    /// Whether a fuzzer's input is used up.
    pub fn exhausted(&self) -> bool {
        matches!(self, Self::Bytes(bytes) if bytes.is_empty())
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
