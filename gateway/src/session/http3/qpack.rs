//! Field sections (RFC 9204). Neither side uses a dynamic table, so no section waits for another
//! stream.
//!
//! The encoder uses the static table and no Huffman code, since the table contains all fields of an
//! open but one.

mod huffman;
mod table;

use std::borrow::Cow;

use super::FIELD_BYTES_MAX;
use table::FIELDS;

/// A name and a value.
pub(super) type Field = (Cow<'static, [u8]>, Cow<'static, [u8]>);

/// Number of bytes that are added to the size of each field's name and value (RFC 9114, section
/// 4.2.2).
const FIELD_OVERHEAD: usize = 32;
/// Number of prefix bits of an index into the static table. Prefix bits are the bits of the first
/// byte that belong to the integer (RFC 7541, section 5.1).
const INDEXED_BITS: u32 = 6;
/// Number of prefix bits of the index of a name.
const NAMED_BITS: u32 = 4;
/// Number of prefix bits of the length of a name.
const NAME_BITS: u32 = 3;
/// Number of prefix bits of the length of a value.
const VALUE_BITS: u32 = 7;

/// Why a section cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The bytes are not a field section, or refer to the dynamic table.
    Malformed,
    /// The fields exceed [`FIELD_BYTES_MAX`].
    TooLarge,
}

/// Decodes a section.
///
/// # Errors
/// [`Unreadable`].
pub(super) fn decode(section: &[u8]) -> Result<Vec<Field>, Unreadable> {
    let mut input = Input(section);
    // The required insert count (RFC 9204, section 4.5.1) has to be 0, since there is no dynamic
    // table. The base, which follows, then has no meaning.
    if input.integer(8)? != 0 {
        return Err(Unreadable::Malformed);
    }
    input.integer(7)?;
    let mut fields = Vec::new();
    let mut left = FIELD_BYTES_MAX;
    while let Some(first) = input.0.first().copied() {
        let field = input.field(first)?;
        let size = field.0.len() + field.1.len() + FIELD_OVERHEAD;
        left = left.checked_sub(size).ok_or(Unreadable::TooLarge)?;
        fields.push(field);
    }
    Ok(fields)
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn field(&mut self, first: u8) -> Result<Field, Unreadable> {
        match first {
            // An indexed field from the static table.
            0b1100_0000.. => {
                let (name, value) = known(self.integer(INDEXED_BITS)?)?;
                Ok((name.as_bytes().into(), value.as_bytes().into()))
            }
            // A literal whose name is in the static table.
            0b0101_0000..=0b0101_1111 | 0b0111_0000..=0b0111_1111 => {
                let (name, _) = known(self.integer(NAMED_BITS)?)?;
                let value = self.text(VALUE_BITS)?;
                Ok((name.as_bytes().into(), value.into()))
            }
            // A literal with a literal name.
            0b0010_0000..=0b0011_1111 => {
                let name = self.text(NAME_BITS)?;
                let value = self.text(VALUE_BITS)?;
                Ok((name.into(), value.into()))
            }
            // All other representations refer to the dynamic table.
            _ => Err(Unreadable::Malformed),
        }
    }

    /// Reads an integer from the last `bits` of the next byte and the bytes after it (RFC 7541,
    /// section 5.1).
    fn integer(&mut self, bits: u32) -> Result<usize, Unreadable> {
        let most = (1_usize << bits) - 1;
        let mut value = usize::from(self.byte()?) & most;
        if value < most {
            return Ok(value);
        }
        for shift in (0..=21).step_by(7) {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Unreadable::Malformed)
    }

    /// Reads a string. The last `bits` of the next byte contain its length. The bit before the
    /// length indicates whether the string is Huffman-coded.
    fn text(&mut self, bits: u32) -> Result<Vec<u8>, Unreadable> {
        let first = self.0.first().copied().ok_or(Unreadable::Malformed)?;
        let is_coded = first >> bits & 1 == 1;
        let length = self.integer(bits)?;
        let split = self.0.split_at_checked(length);
        let (text, rest) = split.ok_or(Unreadable::Malformed)?;
        self.0 = rest;
        if !is_coded {
            return Ok(text.to_vec());
        }
        huffman::decode(text).ok_or(Unreadable::Malformed)
    }

    fn byte(&mut self) -> Result<u8, Unreadable> {
        let split = self.0.split_first();
        let (byte, rest) = split.ok_or(Unreadable::Malformed)?;
        self.0 = rest;
        Ok(*byte)
    }
}

fn known(index: usize) -> Result<(&'static str, &'static str), Unreadable> {
    FIELDS.get(index).copied().ok_or(Unreadable::Malformed)
}

/// Encodes `fields` as a section.
pub(super) fn encode<'a>(fields: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in fields {
        let is_field = |known: &(&str, &str)| known.0 == name && known.1.as_bytes() == value;
        let is_name = |known: &(&str, &str)| known.0 == name;
        if let Some(index) = FIELDS.iter().position(is_field) {
            push_integer(&mut section, 0b1100_0000, INDEXED_BITS, index);
        } else {
            match FIELDS.iter().position(is_name) {
                Some(index) => push_integer(&mut section, 0b0101_0000, NAMED_BITS, index),
                None => {
                    push_integer(&mut section, 0b0010_0000, NAME_BITS, name.len());
                    section.extend_from_slice(name.as_bytes());
                }
            }
            push_integer(&mut section, 0, VALUE_BITS, value.len());
            section.extend_from_slice(value);
        }
    }
    section
}

fn push_integer(section: &mut Vec<u8>, first: u8, bits: u32, value: usize) {
    let most = (1_usize << bits) - 1;
    if value < most {
        return section.push(first | value as u8);
    }
    section.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        section.push(0x80 | rest as u8);
        rest >>= 7;
    }
    section.push(rest as u8);
}

/// The size of the fields as counted by RFC 9114 (section 4.2.2).
pub(super) fn size<'a>(fields: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> usize {
    let size = |(name, value): (&str, &[u8])| name.len() + value.len() + FIELD_OVERHEAD;
    fields.into_iter().map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(section: &[u8]) -> Vec<(String, String)> {
        let text = |bytes: Cow<'_, [u8]>| String::from_utf8(bytes.into_owned()).unwrap();
        let fields = decode(section).unwrap().into_iter();
        fields
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    #[test]
    fn fields_are_read_as_they_were_written() {
        let long = "v".repeat(5000);
        let fields = [
            (":method", "CONNECT"),
            (":authority", "web.example.com:80"),
            (":status", "200"),
            (":status", "502"),
            ("proxy-status", "muxgate; error=connection_refused"),
            ("x-frame-options", "sameorigin"),
            ("a", ""),
            ("long", &long),
        ];
        let written = encode(fields.map(|(name, value)| (name, value.as_bytes())));
        assert_eq!(written[..4], [0, 0, 0xc0 | 15, 0x50]);
        let read = texts(&written);
        let owned = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read, owned);
    }

    /// Uses the example of RFC 9204, appendix B.1, and a Huffman-coded string.
    #[test]
    fn sections_of_the_standard_are_read() {
        let mut section = vec![0, 0, 0x51, 0x0b];
        section.extend(b"/index.html");
        assert_eq!(
            texts(&section),
            [(":path".to_owned(), "/index.html".to_owned())]
        );
        let coded = [
            0, 0, 0x50, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4,
            0xff,
        ];
        assert_eq!(
            texts(&coded),
            [(":authority".to_owned(), "www.example.com".to_owned())]
        );
    }

    #[test]
    fn what_refers_to_a_dynamic_table_or_ends_too_early_is_refused() {
        for odd in [
            &[][..],
            &[0],
            // A required insert count that is not 0.
            &[3, 0, 0xc0],
            // References to the dynamic table, and post-base references.
            &[0, 0, 0x80],
            &[0, 0, 0x40, 0],
            &[0, 0, 0x10],
            &[0, 0, 0x00, 0],
            // An index beyond the end of the static table.
            &[0, 0, 0xff, 36],
            // A missing value, a value shorter than its length, and a length without an end.
            &[0, 0, 0x50],
            &[0, 0, 0x50, 3, b'a'],
            &[0, 0, 0x50, 0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0],
            &[0, 0, 0x50, 0x81, 0xff],
        ] {
            assert_eq!(decode(odd), Err(Unreadable::Malformed), "{odd:x?}");
        }
    }

    #[test]
    fn fields_are_bounded_together() {
        // Each field (`:path: /`) takes one byte of the section, but counts as 6 bytes plus
        // [`FIELD_OVERHEAD`].
        let mut section = vec![0, 0];
        section.resize(2 + 1000, 0xc1);
        assert_eq!(decode(&section), Err(Unreadable::TooLarge));
        section.truncate(2 + 300);
        assert_eq!(decode(&section).unwrap().len(), 300);
        let long = vec![b'a'; FIELD_BYTES_MAX];
        assert_eq!(
            decode(&encode([("a", &long[..])])),
            Err(Unreadable::TooLarge)
        );
    }
}
