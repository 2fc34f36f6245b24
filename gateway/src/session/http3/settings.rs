//! SETTINGS (RFC 9114, section 7.2.4): identifiers and values.

use std::collections::BTreeSet;

use super::frame;
use super::{FIELD_BYTES_MAX, code};
use crate::session::quic_streams::Broken;

const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
/// Settings that exist only in HTTP/2.
const OF_HTTP2: std::ops::RangeInclusive<u64> = 0x2..=0x5;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Maximum size of the fields of a request or an answer.
    pub(super) field_bytes_max: u64,
}

/// Appends the SETTINGS frame of this side. The frame omits QPACK's table capacity and number of
/// blocked streams, so both are 0.
pub(super) fn push(bytes: &mut Vec<u8>) {
    let mut body = Vec::new();
    frame::push_integer(&mut body, MAX_FIELD_SECTION_SIZE);
    frame::push_integer(&mut body, FIELD_BYTES_MAX as u64);
    frame::push(bytes, frame::SETTINGS, &body);
}

/// Reads the body of a SETTINGS frame.
///
/// # Errors
/// The settings violate the protocol.
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
                "the peer's SETTINGS frame ends within a value",
            ));
        };
        body = rest;
        if !seen.insert(number) {
            return Err(broken(
                code::SETTINGS_ERROR,
                "the peer sent a setting twice",
            ));
        }
        match number {
            number if OF_HTTP2.contains(&number) => {
                return Err(broken(
                    code::SETTINGS_ERROR,
                    "the peer sent a setting that exists only in HTTP/2",
                ));
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
