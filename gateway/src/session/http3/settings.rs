//! SETTINGS (RFC 9114, section 7.2.4): numbers and their values.

use std::collections::BTreeSet;

use super::frame;
use super::{FIELD_BYTES_MAX, code};
use crate::session::quic_streams::Broken;

const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
/// Those of HTTP/2 that HTTP/3 does not have.
const OF_HTTP2: std::ops::RangeInclusive<u64> = 0x2..=0x5;

/// What the peer wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// What the fields of a request or an answer may count.
    pub(super) field_bytes_max: u64,
}

/// Adds the frame with what this side wants. What it leaves out is 0: tables of QPACK, and streams that wait for them.
pub(super) fn push(bytes: &mut Vec<u8>) {
    let mut body = Vec::new();
    frame::push_integer(&mut body, MAX_FIELD_SECTION_SIZE);
    frame::push_integer(&mut body, FIELD_BYTES_MAX as u64);
    frame::push(bytes, frame::SETTINGS, &body);
}

/// What the body of a frame says.
///
/// # Errors
/// The peer must not send it.
pub(super) fn read(mut body: &[u8]) -> Result<Settings, Broken> {
    let broken = |code, problem| Broken { code, problem };
    let mut seen = BTreeSet::new();
    let mut settings = Settings {
        field_bytes_max: u64::MAX,
    };
    while !body.is_empty() {
        let pair = frame::integer(body).and_then(|(number, rest)| {
            let (value, rest) = frame::integer(rest)?;
            Some((number, value, rest))
        });
        let Some((number, value, rest)) = pair else {
            return Err(broken(
                code::FRAME_ERROR,
                "SETTINGS that end within a value",
            ));
        };
        body = rest;
        if !seen.insert(number) {
            return Err(broken(
                code::SETTINGS_ERROR,
                "a setting that is there twice",
            ));
        }
        match number {
            number if OF_HTTP2.contains(&number) => {
                return Err(broken(code::SETTINGS_ERROR, "a setting of HTTP/2 alone"));
            }
            MAX_FIELD_SECTION_SIZE => settings.field_bytes_max = value,
            _ => {}
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(u64, u64)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (number, value) in pairs {
            frame::push_integer(&mut body, *number);
            frame::push_integer(&mut body, *value);
        }
        body
    }

    #[test]
    fn settings_are_read_and_unknown_ones_passed_over() {
        let mut bytes = Vec::new();
        push(&mut bytes);
        let own = Settings {
            field_bytes_max: FIELD_BYTES_MAX as u64,
        };
        assert_eq!(read(&bytes[2..]), Ok(own));
        let grease = settings(&[(0x1f * 9 + 0x21, 7), (1, 0), (7, 0), (8, 1), (0x33, 1)]);
        let none = Settings {
            field_bytes_max: u64::MAX,
        };
        assert_eq!(read(&grease), Ok(none));
    }

    #[test]
    fn settings_that_may_not_be_are_refused() {
        for (body, code) in [
            (settings(&[(2, 0)]), code::SETTINGS_ERROR),
            (settings(&[(5, 9)]), code::SETTINGS_ERROR),
            (settings(&[(6, 1), (6, 1)]), code::SETTINGS_ERROR),
            (vec![6], code::FRAME_ERROR),
            (vec![6, 0xc0], code::FRAME_ERROR),
        ] {
            assert_eq!(read(&body).unwrap_err().code, code, "{body:?}");
        }
    }
}
