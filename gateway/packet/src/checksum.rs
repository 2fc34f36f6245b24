//! The Internet checksum (RFC 1071), and its incremental update (RFC 1624).

/// An unfolded sum of 16-bit words in memory byte order (RFC 1071, 2 (B)).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds `bytes`, which must begin at an even offset of the summed data. All bytes of the sum
    /// together must be fewer than 2^32.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum = self.0;
        for word in words {
            // The sum of fewer than 2^32 words does not wrap. A check for overflow would prevent
            // vector instructions.
            sum = sum.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
        }
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        Self(sum.wrapping_add(u64::from(u32::from_ne_bytes(last))))
    }

    /// Adds one word.
    pub(crate) fn word(self, word: u16) -> Self {
        Self(self.0.wrapping_add(u64::from(word.to_be())))
    }

    /// The sum, folded to 16 bits. A checksum field holds this value until the checksum is
    /// complete.
    pub(crate) fn fold(self) -> u16 {
        let sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        u16::from_be(u16::try_from(sum).unwrap_or(u16::MAX))
    }

    /// The checksum, which is the complement of the folded sum.
    pub(crate) fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Whether the summed bytes contain a correct checksum.
    pub(crate) fn is_right(self) -> bool {
        self.fold() == u16::MAX
    }
}

/// The sum of the pseudo header of TCP and UDP (RFC 9293, 3.1; RFC 8200, 8.1).
///
/// `packet` begins with an IP header. `length` counts bytes from the transport header on,
/// 1..=65,535.
pub(crate) fn pseudo_header(packet: &[u8], ipv6: bool, protocol: u8, length: usize) -> Sum {
    let addresses = if ipv6 {
        packet.get(8..40)
    } else {
        packet.get(12..20)
    };
    Sum::default()
        .bytes(addresses.unwrap_or_default())
        .word(protocol.into())
        .word(u16::try_from(length).unwrap_or(u16::MAX))
}

/// Updates a checksum after the change of one summed word (RFC 1624, equation 3).
pub(crate) fn replaced(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// The big-endian word at `at`, or 0 beyond the end.
pub(crate) fn word_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..)
        .and_then(|bytes| bytes.first_chunk())
        .map_or(0, |word| u16::from_be_bytes(*word))
}

/// Writes a big-endian word at `at`. Does nothing beyond the end.
pub(crate) fn set_word(bytes: &mut [u8], at: usize, word: u16) {
    if let Some(field) = bytes
        .get_mut(at..)
        .and_then(|bytes| bytes.first_chunk_mut())
    {
        *field = word.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The checksum, computed word by word as in RFC 1071.
    fn plainly(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap()
    }

    #[test]
    fn the_example_of_rfc_1071_sums_to_ddf2() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().bytes(&bytes).fold(), 0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624_is_not_minus_zero() {
        assert_eq!(replaced(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_words(bytes in prop::collection::vec(any::<u8>(), 0..300), word: u16) {
            let sum = Sum::default().bytes(&bytes);
            prop_assert_eq!(sum.fold(), plainly(&bytes));
            let mut longer = word.to_be_bytes().to_vec();
            longer.extend(&bytes);
            prop_assert_eq!(sum.word(word).fold(), plainly(&longer));
        }

        #[test]
        fn a_replaced_word_is_as_summed_again(mut bytes in prop::collection::vec(any::<u8>(), 4..60), new: u16) {
            // For all-zero words, both 0 and 0xffff are valid checksums.
            prop_assume!(bytes[2..].iter().any(|byte| *byte != 0));
            let before = Sum::default().bytes(&bytes).checksum();
            let old = word_at(&bytes, 0);
            set_word(&mut bytes, 0, new);
            prop_assert_eq!(replaced(before, old, new), Sum::default().bytes(&bytes).checksum());
        }
    }

    #[test]
    fn the_longest_packet_of_ones_does_not_overflow() {
        assert!(Sum::default().bytes(&vec![0xff; 65_536]).is_right());
    }
}
