//! What holds for any bytes at all as a framed packet: the fuzz target runs it, and the tests here go through
//! its corpus and through drawn inputs. Not part of a gateway.
//!
//! Read next: `oracles/recheck.rs`, what a packet has to be, written a second time.

mod recheck;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    Coalescer, FlowKey, Gso, Packet, Segments, VIRTIO_HEADER_BYTES, check, check_plain, clamp_mss,
    from_device, mark_congestion, prohibited, too_big,
};

/// The least MTU that the input is told to fit into.
const MTU: usize = 1280;

/// Nothing panics, and what passes the check is well-formed through all that is done to it.
///
/// # Panics
/// Something does not hold.
pub fn packet(input: &[u8]) {
    anything(input);
    let mut canonical = input.to_vec();
    if let Ok(packet) = from_device(&mut canonical) {
        assert_eq!(check(&canonical), Ok(packet), "its own form is refused");
        assert_eq!(canonical.len(), input.len());
        passed(&canonical, &packet);
    }
    if let Ok(packet) = check(input) {
        assert_eq!(canonical, input, "there are two forms of one packet");
        passed(input, &packet);
    }
}

/// What must not panic, whatever the bytes are.
fn anything(input: &[u8]) {
    let mut bytes = input.to_vec();
    mark_congestion(&mut bytes);
    for from in routers() {
        for answer in [too_big(input, MTU, from), prohibited(input, from)]
            .into_iter()
            .flatten()
        {
            let packet = check(&answer);
            assert!(
                packet.is_ok_and(|packet| packet.source == from),
                "an answer is refused"
            );
            assert_eq!(prohibited(&answer, from), None, "an answer is answered");
        }
    }
    if let Ok(packet) = check_plain(input) {
        assert_eq!(packet.gso, Gso::None);
        let framed = [&[0; VIRTIO_HEADER_BYTES], input].concat();
        assert_eq!(check(&framed), Ok(packet));
    }
}

fn routers() -> [IpAddr; 2] {
    let ipv4 = Ipv4Addr::new(192, 0, 2, 77);
    let ipv6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x77);
    [ipv4.into(), ipv6.into()]
}

/// What holds for a packet that passed.
fn passed(framed: &[u8], packet: &Packet) {
    recheck::recheck(framed, packet);
    let key = FlowKey::new([1, 2]);
    assert_eq!(key.hash(packet), key.hash(packet));
    marked(framed, packet);
    clamped(framed, packet);
    split(framed, packet);
}

/// A mark changes ECN alone.
fn marked(framed: &[u8], packet: &Packet) {
    let mut bytes = framed.to_vec();
    let is_capable = packet.traffic_class & 3 != 0;
    assert_eq!(mark_congestion(&mut bytes), is_capable);
    let expected = Packet {
        traffic_class: packet.traffic_class | if is_capable { 3 } else { 0 },
        ..*packet
    };
    assert_eq!(check(&bytes), Ok(expected));
}

/// A clamp changes no length, and keeps a right checksum right.
fn clamped(framed: &[u8], packet: &Packet) {
    let mut bytes = framed.to_vec();
    let before = recheck::has_right_checksum(framed, packet);
    clamp_mss(&mut bytes, packet, MTU);
    assert_eq!(check(&bytes), Ok(*packet));
    assert_eq!(recheck::has_right_checksum(&bytes, packet), before);
    assert!(!clamp_mss(&mut bytes, packet, MTU), "it is clamped twice");
}

/// Segments are packets that have the payload, and become what they were.
fn split(framed: &[u8], packet: &Packet) {
    let mut segments = Segments::of(framed, packet);
    assert_eq!(segments.remaining(), packet.segments());
    let mut coalescer = Coalescer::new(true);
    let (mut payload, mut joined, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    let mut emit = |header: &[u8; VIRTIO_HEADER_BYTES], bytes: &[u8]| {
        joined.push([header, bytes].concat());
    };
    loop {
        let mut segment = Vec::new();
        if !segments.append_next(&mut segment) {
            break;
        }
        let checked = check_plain(&segment);
        let Ok(checked) = checked else {
            unreachable!("a segment is refused: {checked:?}")
        };
        assert!(segment.len() <= packet.segment_length_max());
        if packet.needs_checksum {
            assert!(recheck::has_right_checksum(
                &[&[0; 10], segment.as_slice()].concat(),
                &checked
            ));
        }
        payload.extend_from_slice(&segment[checked.payload_offset..]);
        coalescer.push(&segment, &checked, &mut emit);
        plain.push(segment);
    }
    coalescer.flush(&mut emit);
    assert_eq!(
        payload,
        framed[VIRTIO_HEADER_BYTES + packet.payload_offset..]
    );
    let mut again = Vec::new();
    for framed in &joined {
        let Ok(mut segments) = Segments::new(framed) else {
            unreachable!("what was joined is refused: {framed:02x?}")
        };
        let mut segment = Vec::new();
        while segments.append_next(&mut segment) {
            again.push(std::mem::take(&mut segment));
        }
    }
    // Without fragmentation the identification means nothing, and counts from the first of what was joined.
    assert_eq!(again.len(), plain.len());
    for (again, plain) in again.iter_mut().zip(&mut plain) {
        recheck::clear_identification(again);
        recheck::clear_identification(plain);
    }
    assert_eq!(again, plain);
}
