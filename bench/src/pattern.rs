//! The payload of a load's streams: bytes that the receiver can verify.
//!
//! The payload is a repeated block of pseudo-random bytes. Each stream begins at another position
//! of the block. The length of the block is prime, so lost, duplicated or foreign bytes do not
//! match.

/// Length of the block: the largest prime below 64 KiB.
const PERIOD: usize = 65_521;
/// Distance in the block between the first bytes of two consecutive streams.
const STEP: usize = 8_191;

/// The bytes of all streams.
#[derive(Debug)]
pub struct Pattern {
    /// The block and a copy of its beginning, so that every piece is contiguous.
    block: Vec<u8>,
}

impl Pattern {
    /// `piece_bytes`: the greatest length that callers request.
    #[must_use]
    pub fn new(piece_bytes: usize) -> Self {
        // xorshift64 (G. Marsaglia, 2003). Any seed except 0 works.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let random = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[0]
        });
        let mut block: Vec<u8> = random.take(PERIOD).collect();
        block.extend_from_within(..piece_bytes.min(PERIOD));
        Self { block }
    }

    /// `length` bytes of stream `number` from `offset` on, at most one piece.
    #[must_use]
    pub fn at(&self, number: usize, offset: u64, length: usize) -> &[u8] {
        let begin = (number % PERIOD * STEP + (offset % PERIOD as u64) as usize) % PERIOD;
        let end = (begin + length).min(self.block.len());
        &self.block[begin..end]
    }

    /// Number of bytes in `received` that differ from stream `number` from `offset` on.
    #[must_use]
    pub fn wrong(&self, number: usize, offset: u64, received: &[u8]) -> u64 {
        let right = self.at(number, offset, received.len());
        if right == received {
            return 0;
        }
        let differ = right.iter().zip(received).filter(|(a, b)| a != b).count();
        (differ + received.len() - right.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 1000;

    #[test]
    fn a_stream_reads_what_it_wrote_however_it_is_cut_into_pieces() {
        let pattern = Pattern::new(PIECE);
        let written: Vec<u8> = (0..200)
            .flat_map(|piece| pattern.at(7, piece * 700, 700).to_vec())
            .collect();
        let mut offset = 0;
        for piece in written.chunks(333) {
            assert_eq!(pattern.wrong(7, offset, piece), 0);
            offset += piece.len() as u64;
        }
    }

    #[test]
    fn bytes_that_are_lost_doubled_changed_or_of_another_stream_are_wrong() {
        let pattern = Pattern::new(PIECE);
        let mut piece = pattern.at(3, 5000, PIECE).to_vec();
        for other in [4999, 5001, 5000 + 65_536, 5000 - 16 * 256] {
            assert!(pattern.wrong(3, other, &piece) > 900);
        }
        assert!(pattern.wrong(4, 5000, &piece) > 900);
        piece[17] ^= 1;
        assert_eq!(pattern.wrong(3, 5000, &piece), 1);
    }
}
