use proptest::prelude::*;

use super::*;
use crate::oracle::assert_sound;
use crate::testing::{Build, framed, has_right_checksum, partial, super_packet};

fn builds() -> Vec<Build> {
    vec![
        Build::tcp4(),
        Build::tcp6(),
        Build::udp4(100),
        Build::udp6(100),
        Build::icmp4(8),
        Build::icmp6(128),
        Build::tcp4()
            .options(&[1, 1, 1, 1])
            .ip_options(&[1, 1, 1, 0]),
        Build::udp6(9).extension(0, &[0, 1, 4, 0, 0, 0, 0]),
        Build::udp4(1000).fragment(0, true).payload(992),
        Build::udp6(1000).fragment(1000, false),
    ]
}

#[test]
fn what_hosts_send_passes() {
    for build in builds() {
        let packet = check(&framed(&build.bytes())).unwrap();
        assert_eq!(
            (packet.gso, packet.needs_checksum),
            (Gso::None, false),
            "{build:?}"
        );
    }
    let packet = check(&framed(&Build::tcp4().ports(4000, 443).bytes())).unwrap();
    assert_eq!(packet.ports, Some((4000, 443)));
    assert_eq!((packet.header_length, packet.payload_offset), (20, 40));
    for build in [
        Build::tcp4(),
        Build::tcp6(),
        Build::udp4(9000),
        Build::udp6(9000),
    ] {
        let whole = build.clone().payload(9000).bytes();
        let packet = check(&super_packet(&whole, 1000)).unwrap();
        assert_eq!(
            (packet.segments(), packet.needs_checksum),
            (9, true),
            "{build:?}"
        );
        assert!(check(&partial(&whole)).unwrap().needs_checksum);
    }
}

#[test]
fn no_packet_passes_with_a_byte_less_or_more() {
    for build in builds() {
        let bytes = build.bytes();
        for length in 0..bytes.len() {
            assert!(
                check(&framed(&bytes[..length])).is_err(),
                "{build:?}, {length}"
            );
        }
        assert!(
            check(&framed(&[&bytes[..], &[0]].concat())).is_err(),
            "{build:?}"
        );
    }
}

#[test]
fn what_no_router_forwards_is_refused() {
    let v4 = |address: [u8; 4]| Build::udp4(1).source(&address).bytes();
    for address in [
        [0, 0, 0, 0],
        [127, 0, 0, 1],
        [169, 254, 1, 1],
        [224, 0, 0, 1],
        [255; 4],
    ] {
        assert!(matches!(
            check(&framed(&v4(address))),
            Err(Malformed::Source(_))
        ));
        let to = Build::udp4(1).destination(&address).bytes();
        assert!(matches!(
            check(&framed(&to)),
            Err(Malformed::Destination(_))
        ));
    }
    let mut loopback = [0; 16];
    loopback[15] = 1;
    let mapped = [&[0; 10][..], &[0xff, 0xff, 10, 0, 0, 1]].concat();
    let link_local = [&[0xfe, 0x80][..], &[0; 13], &[1]].concat();
    for address in [&[0; 16][..], &loopback, &mapped, &link_local] {
        let from = Build::udp6(1).source(address).bytes();
        assert!(matches!(check(&framed(&from)), Err(Malformed::Source(_))));
    }
    for (build, kind) in [(Build::icmp4(5), 5), (Build::icmp6(134), 134)] {
        assert_eq!(
            check(&framed(&build.bytes())),
            Err(Malformed::LinkMessage(kind))
        );
    }
    let route = Build::udp4(1).ip_options(&[131, 3, 4, 0]).bytes();
    assert_eq!(check(&framed(&route)), Err(Malformed::SourceRoute));
    let route = Build::udp6(1).extension(43, &[0, 0, 1, 0, 0, 0, 0]).bytes();
    assert_eq!(check(&framed(&route)), Err(Malformed::SourceRoute));
}

#[test]
fn a_virtio_header_has_to_fit_its_packet() {
    let good = super_packet(&Build::tcp4().payload(5000).bytes(), 1000);
    assert!(check(&good).is_ok());
    // Each item is an offset and the byte to write there. The offsets are those of flags, GSO type,
    // header length, GSO size, checksum start and checksum offset. Fields of two bytes are little
    // endian.
    let changes: [(usize, u8); 12] = [
        (0, 0),
        (0, 3),
        (1, 0),
        (1, 4),
        (1, 5),
        (1, 3),
        (2, 41),
        (4, 7),
        (6, 21),
        (8, 6),
        (8, 17),
        (9, 1),
    ];
    for (at, value) in changes {
        let mut bytes = good.clone();
        bytes[at] = value;
        if at == 4 {
            bytes[5] = 0;
        }
        assert!(check(&bytes).is_err(), "byte {at} is {value}");
    }
    let mut forged = good.clone();
    forged[10 + 20 + 16] ^= 1;
    assert_eq!(check(&forged), Err(Malformed::PartialChecksum));
    let syn = super_packet(&Build::tcp4().flags(2).payload(5000).bytes(), 1000);
    assert_eq!(check(&syn), Err(Malformed::GsoFlags));
    let one = super_packet(&Build::tcp4().payload(1000).bytes(), 1000);
    assert!(matches!(check(&one), Err(Malformed::GsoSize { .. })));
    let fragment = partial(&Build::udp4(992).fragment(0, true).bytes());
    assert!(matches!(
        check(&fragment),
        Err(Malformed::ChecksumPlace { .. })
    ));
}

#[test]
fn a_checksum_is_completed_in_the_transport_header_alone() {
    let good = partial(&Build::udp4(500).bytes());
    // The bytes at these places look like an incomplete checksum, but are not a checksum field.
    let sum = [good[10 + 26], good[10 + 27]];
    for start in [0_u16, 12, 28, 100] {
        let mut bytes = good.clone();
        let field = 10 + usize::from(start) + 6;
        if start >= 28 {
            bytes[field..field + 2].copy_from_slice(&sum);
        }
        bytes[6..8].copy_from_slice(&start.to_le_bytes());
        let place = Malformed::ChecksumPlace { start, offset: 6 };
        assert_eq!(check(&bytes), Err(place));
    }
}

#[test]
fn what_the_kernel_writes_becomes_what_the_peer_takes() {
    let mut bytes = super_packet(&Build::tcp6().payload(5000).bytes(), 1000);
    // The kernel sets the header length to the length of its linear buffer.
    bytes[2..4].copy_from_slice(&300_u16.to_le_bytes());
    let packet = from_device(&mut bytes).unwrap();
    assert_eq!(check(&bytes), Ok(packet));
    let mut seen = framed(&Build::udp4(10).bytes());
    seen[0] = VirtioHeader::DATA_VALID;
    let packet = from_device(&mut seen).unwrap();
    assert_eq!((seen[0], check(&seen)), (0, Ok(packet)));
    let mut one = super_packet(&Build::tcp4().payload(1000).bytes(), 1000);
    assert_eq!(from_device(&mut one).unwrap().gso, Gso::None);
    // A checksum outside TCP and UDP headers, here of ICMP, is completed.
    let mut odd = framed(&Build::icmp4(8).bytes());
    odd[0] = VirtioHeader::NEEDS_CSUM;
    odd[6] = 20;
    odd[8] = 2;
    odd[10 + 22..10 + 24].fill(0);
    from_device(&mut odd).unwrap();
    assert_eq!(odd[10..], Build::icmp4(8).bytes());
}

/// A valid packet with up to three changed bytes.
fn mangled() -> impl Strategy<Value = Vec<u8>> {
    let wholes: Vec<Vec<u8>> = builds()
        .iter()
        .map(|build| framed(&build.bytes()))
        .chain([
            super_packet(&Build::tcp4().payload(3000).bytes(), 1000),
            super_packet(&Build::tcp6().payload(3000).bytes(), 1000),
            super_packet(&Build::udp4(3000).bytes(), 1000),
            partial(&Build::udp6(300).bytes()),
        ])
        .collect();
    let changes = prop::collection::vec((0..90_usize, any::<u8>()), 0..4);
    (prop::sample::select(wholes), changes).prop_map(|(mut bytes, changes)| {
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn nothing_forged_passes(bytes in mangled()) {
        if let Ok(packet) = check(&bytes) {
            assert_sound(&bytes, &packet);
        }
    }

    #[test]
    fn what_the_device_brings_passes_the_peer(mut bytes in mangled()) {
        if let Ok(packet) = from_device(&mut bytes) {
            prop_assert_eq!(check(&bytes), Ok(packet));
        }
    }

    #[test]
    fn any_bytes_are_judged(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(packet) = check(&bytes) {
            assert_sound(&bytes, &packet);
        }
        let _ = from_device(&mut bytes);
    }
}

#[test]
fn testing_packets_have_right_checksums() {
    for build in [Build::tcp4(), Build::tcp6(), Build::udp4(7), Build::udp6(8)] {
        assert!(has_right_checksum(&build.bytes()), "{build:?}");
    }
}
