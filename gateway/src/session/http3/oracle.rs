//! Properties of the parsers of peers' input.

use bytes::Bytes;

use super::data::Data;
use super::message::{self, Asks};
use super::{FIELD_BYTES_MAX, frame, qpack, settings};
use crate::session::connect::{answer, connect_to};
use crate::session::quic_streams::{Framing, Overhead};

/// Panics if a property does not hold for the input.
pub(crate) fn oracle(input: &[u8]) {
    fields(input);
    payload(input);
    let _ = settings::read(input);
    if let Some((value, rest)) = frame::integer(input) {
        let mut written = Vec::new();
        frame::push_integer(&mut written, value);
        assert!(written.len() <= input.len() - rest.len());
        assert_eq!(frame::integer(&written), Some((value, &[][..])));
    }
}

/// Fields are bounded and survive a round trip, and a request for a target decodes to the same
/// target.
fn fields(input: &[u8]) {
    let Ok(fields) = qpack::decode(input) else {
        return;
    };
    let bytes = fields.iter().map(|(name, value)| name.len() + value.len());
    assert!(bytes.sum::<usize>() <= FIELD_BYTES_MAX);
    let names = fields.iter().map(|(name, _)| std::str::from_utf8(name));
    if let Ok(names) = names.collect::<Result<Vec<_>, _>>() {
        let values = fields.iter().map(|(_, value)| &**value);
        let written = qpack::encode(names.into_iter().zip(values));
        assert_eq!(qpack::decode(&written).as_ref(), Ok(&fields));
    }
    if let Ok(head) = message::answer(fields.clone()) {
        let _ = (answer::read(&head), answer::address(&head));
    }
    if let Ok(Asks::Tunnel(target)) = message::request(fields)
        && let Ok(request) = connect_to(&target)
    {
        let (frame, _) = message::push_request(&request);
        let section = frame::integer(&frame).and_then(|(_, rest)| frame::integer(rest));
        let again = section.and_then(|(_, section)| qpack::decode(section).ok());
        let again = again.map(message::request);
        assert_eq!(again, Some(Ok(Asks::Tunnel(target))));
    }
}

/// The payload does not depend on how the input is split, and is never longer than the input.
fn payload(input: &[u8]) {
    let read = |step: usize| {
        let (mut data, overhead) = (Data::default(), Overhead::default());
        let mut payload = Vec::new();
        for piece in input.chunks(step.max(1)) {
            let parts = data.payload(vec![Bytes::copy_from_slice(piece)], &overhead)?;
            payload.extend(parts.concat());
        }
        data.end().map(|()| payload)
    };
    let whole = read(input.len());
    assert!(
        whole
            .as_ref()
            .is_ok_and(|payload| payload.len() < input.len().max(1))
            || whole.is_err()
    );
    for step in [1, 3] {
        assert_eq!(read(step), whole);
    }
}
