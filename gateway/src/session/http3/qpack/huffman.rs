//! The Huffman code of field strings (RFC 7541, appendix B).
//!
//! The code is canonical: codes of one length are consecutive, in the order of their symbols. So
//! the lengths of the codes define the code.

/// Length of the code of each byte, in bits.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
/// Length of the longest code in bits, including the code of the end-of-string symbol.
const LENGTH_MAX: usize = 30;

#[derive(Clone, Copy)]
struct Length {
    /// The first code of this length.
    first: u32,
    /// Number of codes of this length.
    count: u32,
    /// Index of the symbols of these codes in [`SYMBOLS`].
    offset: usize,
}

/// Codes by their length.
const CODES: [Length; LENGTH_MAX + 1] = codes();
/// Symbols in the order of their codes.
const SYMBOLS: [u8; 256] = symbols();

const fn codes() -> [Length; LENGTH_MAX + 1] {
    let none = Length {
        first: 0,
        count: 0,
        offset: 0,
    };
    let mut codes = [none; LENGTH_MAX + 1];
    let mut byte = 0;
    while byte < LENGTHS.len() {
        codes[LENGTHS[byte] as usize].count += 1;
        byte += 1;
    }
    let mut length = 1;
    while length <= LENGTH_MAX {
        let before = codes[length - 1];
        codes[length].first = (before.first + before.count) << 1;
        codes[length].offset = before.offset + before.count as usize;
        length += 1;
    }
    codes
}

const fn symbols() -> [u8; 256] {
    let mut symbols = [0; 256];
    let mut next = 0;
    let mut length = 1;
    while length <= LENGTH_MAX {
        let mut byte = 0;
        while byte < LENGTHS.len() {
            if LENGTHS[byte] as usize == length {
                symbols[next] = byte as u8;
                next += 1;
            }
            byte += 1;
        }
        length += 1;
    }
    symbols
}

/// Decodes `input` into a string of at most 8/5 times its length; `None`: `input` is invalid.
pub(super) fn decode(input: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(input.len() * 8 / 5);
    let (mut code, mut length) = (0_u32, 0_usize);
    for byte in input {
        for shift in (0..u8::BITS).rev() {
            code = code << 1 | u32::from(byte >> shift & 1);
            length += 1;
            // Only the end-of-string symbol has no entry, and a string may not contain that symbol.
            let codes = CODES.get(length)?;
            let number = code.wrapping_sub(codes.first);
            if code >= codes.first && number < codes.count {
                text.push(*SYMBOLS.get(codes.offset + number as usize)?);
                (code, length) = (0, 0);
            }
        }
    }
    // Padding consists of fewer than eight one bits (section 5.2).
    let is_padding = length < 8 && code == (1 << length) - 1;
    is_padding.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the examples of RFC 7541, appendix C.4 and C.6.
    #[test]
    fn texts_of_the_standard_are_read() {
        for (input, text) in [
            (
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ][..],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x64, 0x02], "302"),
            (
                &[
                    0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04,
                    0x0b, 0x81, 0x66, 0xe0, 0x82, 0xa6, 0x2d, 0x1b, 0xff,
                ],
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
            (&[], ""),
        ] {
            assert_eq!(decode(input).as_deref(), Some(text.as_bytes()));
        }
    }

    #[test]
    fn each_byte_has_a_code_of_its_own() {
        for byte in 0..=u8::MAX {
            let length = usize::from(LENGTHS[usize::from(byte)]);
            let codes = CODES[length];
            let at = SYMBOLS.iter().position(|symbol| *symbol == byte).unwrap();
            let code = codes.first + u32::try_from(at - codes.offset).unwrap();
            // The code, padded with one bits.
            let bits = u64::from(code) << (64 - length) | u64::MAX >> length;
            let input = &bits.to_be_bytes()[..length.div_ceil(8)];
            assert_eq!(decode(input), Some(vec![byte]));
        }
    }

    #[test]
    fn what_is_no_text_is_refused() {
        // Eight or more one bits are not valid padding. Zero bits are not valid padding.
        for odd in [
            &[0xff][..],
            &[0x64, 0x02, 0xff],
            &[0x00],
            &[0xff; 4],
            &[0xff; 40],
        ] {
            assert_eq!(decode(odd), None, "{odd:x?}");
        }
    }
}
