use proptest::prelude::*;

use super::*;
use crate::testing::{Build, super_packet};
use crate::{Gso, Segments, check, check_plain};

/// The framed packets that the device receives.
fn joined(coalescer: &mut Coalescer, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let mut emit = |framed: &[u8]| out.push(framed.to_vec());
    for packet in packets {
        coalescer.push(packet, &check_plain(packet).unwrap(), &mut emit);
    }
    out
}

fn flushed(coalescer: &mut Coalescer) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    coalescer.flush(&mut |framed| out.push(framed.to_vec()));
    assert_eq!(coalescer.held, 0);
    out
}

fn all_joined(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut coalescer = Coalescer::new(true);
    let mut out = joined(&mut coalescer, packets);
    out.extend(flushed(&mut coalescer));
    for framed in &out {
        check(framed).unwrap();
    }
    out
}

fn split(framed: &[u8]) -> Vec<Vec<u8>> {
    let checked = check(framed).unwrap();
    let mut segments = Segments::of(framed, &checked, PACKET_BYTES_MAX).unwrap();
    let mut all = Vec::new();
    let mut out = Vec::new();
    while segments.append_next(&mut out) {
        all.push(std::mem::take(&mut out));
    }
    all
}

#[test]
fn segments_become_the_super_packet_that_they_were() {
    let options = [1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6];
    for build in [Build::tcp4(), Build::tcp6(), Build::udp4(0), Build::udp6(0)] {
        let build = build.options(&options).flags(0x18).payload(10_500);
        let whole = super_packet(&build.bytes(), 1000);
        let packets = split(&whole);
        assert_eq!(packets.len(), 11);
        assert_eq!(all_joined(&packets), [whole]);
    }
}

#[test]
fn what_may_not_be_fragmented_is_joined_whatever_its_identification() {
    let build = Build::tcp4().dont_fragment().id(0);
    let packets = [
        build.clone().sequence(0).payload(100).bytes(),
        build.clone().sequence(100).payload(100).bytes(),
    ];
    assert_eq!(all_joined(&packets).len(), 1);
    let packets = packets.map(|mut packet| {
        // Clears "don't fragment".
        packet[6] = 0;
        let checksum = Sum::default()
            .bytes(&packet[..10])
            .bytes(&packet[12..20])
            .checksum();
        set_word(&mut packet, 10, checksum);
        packet
    });
    assert_eq!(all_joined(&packets).len(), 2);
}

#[test]
fn a_push_ends_a_super_packet_at_once() {
    let mut coalescer = Coalescer::new(true);
    let packets = split(&super_packet(
        &Build::tcp4().flags(0x18).payload(3000).bytes(),
        1000,
    ));
    assert_eq!(joined(&mut coalescer, &packets).len(), 1);
    assert_eq!(coalescer.held, 0);
    // A single packet with PSH is not held.
    assert_eq!(joined(&mut coalescer, &packets[2..]).len(), 1);
    assert_eq!(coalescer.held, 0);
}

#[test]
fn a_gap_ends_a_super_packet_and_order_is_kept() {
    let packets = split(&super_packet(&Build::tcp6().payload(6000).bytes(), 1000));
    let mut gap = packets.clone();
    gap.remove(2);
    let out = all_joined(&gap);
    let segments = |framed: &Vec<u8>| check(framed).unwrap().segments();
    assert_eq!(out.iter().map(segments).collect::<Vec<_>>(), [2, 3]);
    let again: Vec<_> = out.iter().flat_map(|framed| split(framed)).collect();
    assert_eq!(again, gap);
}

#[test]
fn differing_headers_are_not_joined() {
    let first = Build::tcp4().dont_fragment().sequence(0).payload(100);
    let next = first.clone().sequence(100);
    assert_eq!(all_joined(&[first.bytes(), next.bytes()]).len(), 1);
    let others = [
        next.clone().acknowledgement(10),
        next.clone().hop_limit(63),
        next.clone().traffic_class(2),
        next.clone().options(&[1, 1, 1, 1]),
        next.clone().flags(0x11),
        next.clone().flags(0x50),
        next.clone().payload(101),
        next.clone().sequence(99),
        next.clone().ports(40_000, 444),
    ];
    for other in others {
        let packets = [first.bytes(), other.bytes()];
        let out = all_joined(&packets);
        let plain: Vec<_> = packets
            .iter()
            .map(|packet| crate::testing::framed(packet))
            .collect();
        assert_eq!(out, plain, "{other:?}");
    }
}

#[test]
fn a_wrong_checksum_passes_unchanged_and_alone() {
    let packets = split(&super_packet(&Build::udp6(3000).bytes(), 1000));
    let mut wrong = packets.clone();
    *wrong[1].last_mut().unwrap() ^= 1;
    let out = all_joined(&wrong);
    let plain: Vec<_> = wrong
        .iter()
        .map(|packet| crate::testing::framed(packet))
        .collect();
    assert_eq!(out, plain);
}

#[test]
fn a_packet_without_ports_overtakes_none_of_its_flow() {
    let packets = split(&super_packet(&Build::udp4(2000).bytes(), 1000));
    let fragment = Build::udp4(64).fragment(0, true).bytes();
    let other = Build::icmp4(8).bytes();
    let mut coalescer = Coalescer::new(true);
    assert!(joined(&mut coalescer, &packets).is_empty());
    assert_eq!(joined(&mut coalescer, &[other]).len(), 1);
    let out = joined(&mut coalescer, &[fragment]);
    assert_eq!(check(&out[0]).unwrap().gso, Gso::Udp { size: 1000 });
    assert!(check(&out[1]).unwrap().is_fragment());
}

#[test]
fn an_acknowledgement_alone_overtakes_nothing() {
    let mut packets = split(&super_packet(&Build::tcp4().payload(2000).bytes(), 1000));
    packets.push(Build::tcp4().sequence(2007).payload(0).bytes());
    let out = joined(&mut Coalescer::new(true), &packets);
    assert_eq!(
        out.iter()
            .map(|framed| check(framed).unwrap().segments())
            .collect::<Vec<_>>(),
        [2, 1]
    );
}

#[test]
fn no_more_than_eight_flows_are_held() {
    let mut coalescer = Coalescer::new(true);
    for port in 0..8 {
        let packet = Build::tcp4().ports(1000 + port, 80).bytes();
        assert!(joined(&mut coalescer, &[packet]).is_empty());
    }
    let out = joined(&mut coalescer, &[Build::tcp4().ports(2000, 80).bytes()]);
    assert_eq!(check(&out[0]).unwrap().ports, Some((1000, 80)));
    let ports = flushed(&mut coalescer)
        .into_iter()
        .map(|framed| check(&framed).unwrap().ports.unwrap().0);
    assert_eq!(
        ports.collect::<Vec<_>>(),
        [1001, 1002, 1003, 1004, 1005, 1006, 1007, 2000]
    );
}

#[test]
fn no_more_than_64_segments_and_64_kib_are_joined() {
    let packets: Vec<_> = (0..130_u16)
        .map(|index| Build::udp4(20).id(index).bytes())
        .collect();
    let count = |out: Vec<Vec<u8>>| -> Vec<_> {
        out.iter()
            .map(|framed| check(framed).unwrap().segments())
            .collect()
    };
    assert_eq!(count(all_joined(&packets)), [64, 64, 2]);
    let packets: Vec<_> = (0..50_u16)
        .map(|index| Build::udp4(1472).id(index).bytes())
        .collect();
    assert_eq!(count(all_joined(&packets)), [44, 6]);
}

#[test]
fn datagrams_pass_where_the_device_takes_no_super_packets_of_them() {
    let mut coalescer = Coalescer::new(false);
    let packets = split(&super_packet(&Build::udp4(2000).bytes(), 1000));
    assert_eq!(joined(&mut coalescer, &packets).len(), 2);
}

proptest! {
    #[test]
    fn what_was_split_and_joined_is_what_it_was(
        ipv6: bool,
        tcp: bool,
        push: bool,
        size in 8_u16..1500,
        payload in 1_usize..40_000,
        sequence: u32,
        id: u16,
    ) {
        let build = if ipv6 { Build::tcp6() } else { Build::tcp4() };
        let build = if tcp { build } else if ipv6 { Build::udp6(0) } else { Build::udp4(0) };
        let build = build.flags(if push { 0x18 } else { 0x10 }).sequence(sequence).id(id);
        let build = build.payload(payload.max(usize::from(size) + 1).min(usize::from(size) * 100));
        let whole = super_packet(&build.bytes(), size);
        prop_assert!(check(&whole).is_ok());
        let packets = split(&whole);
        let out = all_joined(&packets);
        prop_assert_eq!(out.len(), packets.len().div_ceil(COALESCE_SEGMENTS_MAX));
        let again: Vec<_> = out.iter().flat_map(|framed| split(framed)).collect();
        prop_assert_eq!(again, packets);
    }
}
