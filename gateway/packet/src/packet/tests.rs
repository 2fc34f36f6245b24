use super::*;
use crate::DropReason;
use crate::testing::{Build, framed, partial, sum, super_packet};

/// An echo request, as the device hands it over.
const ECHO: &str = "00000000000000000000
    45000054 1c2d4000 40010a75 0a010002 0a020003
    0800 9fcc 0001 0001 0000000000000000 101112131415161718191a1b1c1d1e1f2021222324252627
    28292a2b2c2d2e2f3031323334353637 28292a2b2c2d2e2f";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn error(build: &Build) -> Malformed {
    let bytes = build.bytes();
    let error = check_plain(&bytes).unwrap_err();
    assert_eq!(check(&framed(&bytes)), Err(error));
    error
}

#[test]
fn a_packet_is_told_field_by_field() {
    let packet = check(&hex(ECHO)).unwrap();
    let expected = Packet {
        source: "10.1.0.2".parse().unwrap(),
        destination: "10.2.0.3".parse().unwrap(),
        protocol: 1,
        ports: None,
        length: 84,
        header_length: 20,
        payload_offset: 20,
        fragment: Fragment::None,
        hop_limit: 64,
        traffic_class: 0,
        gso: Gso::None,
        needs_checksum: false,
        tcp_flags: 0,
    };
    assert_eq!(packet, expected);
    let options = [1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6];
    let build = Build::tcp6()
        .options(&options)
        .traffic_class(0x2e)
        .hop_limit(7)
        .flags(0x18);
    let packet = check(&super_packet(&build.payload(5000).bytes(), 1428)).unwrap();
    assert_eq!(packet.ports, Some((40_000, 443)));
    assert_eq!(
        (packet.header_length, packet.payload_offset, packet.length),
        (40, 72, 5072)
    );
    assert_eq!(
        (packet.traffic_class, packet.hop_limit, packet.tcp_flags),
        (0x2e, 7, 0x18)
    );
    let gso = Gso::Tcp {
        size: 1428,
        ecn: false,
    };
    assert_eq!((packet.gso, packet.needs_checksum), (gso, true));
    assert_eq!((packet.segments(), packet.segment_length_max()), (4, 1500));
    assert_eq!(packet.framed_length(), 5082);
}

#[test]
fn every_kind_of_packet_passes() {
    let ext = [0, 1, 4, 0, 0, 0, 0];
    let builds = [
        Build::tcp4(),
        Build::tcp6(),
        Build::udp4(0),
        Build::udp6(65_000),
        Build::icmp4(8),
        Build::icmp6(128),
        Build::udp4(64).ip_options(&[7, 4, 0, 0]),
        Build::udp6(64)
            .extension(0, &ext)
            .extension(60, &ext)
            .extension(43, &[0, 0, 0, 0, 0, 0, 0]),
        Build::udp4(64).fragment(0, true),
        Build::udp4(65).fragment(800, false),
        Build::udp6(64).extension(0, &ext).fragment(0, true),
        Build::udp6(64).fragment(65_400, false),
    ];
    for build in builds {
        let packet =
            check(&framed(&build.bytes())).unwrap_or_else(|error| panic!("{error}: {build:?}"));
        assert_eq!(
            packet.ports.is_some(),
            !packet.is_fragment() && [TCP, UDP].contains(&packet.protocol)
        );
    }
}

#[test]
fn lengths_have_to_agree() {
    for build in [
        Build::tcp4(),
        Build::tcp6(),
        Build::udp4(100),
        Build::udp6(100),
    ] {
        let whole = build.bytes();
        for end in 0..whole.len() {
            assert!(check_plain(&whole[..end]).is_err(), "{end}");
        }
        let longer = [whole.as_slice(), &[0]].concat();
        assert!(matches!(
            check_plain(&longer),
            Err(Malformed::Length { .. })
        ));
    }
    assert_eq!(check(&[0; 10]), Err(Malformed::Short(0)));
    assert_eq!(check(&[0; 9]), Err(Malformed::Short(9)));
    assert_eq!(check(&vec![0; 65_546]), Err(Malformed::Long(65_536)));
    assert_eq!(check_plain(&[0x50; 40]), Err(Malformed::Version(5)));
    let mut udp = Build::udp6(100).bytes();
    udp[45] = 109;
    assert_eq!(check_plain(&udp), Err(Malformed::Transport));
    udp[45] = 7;
    assert_eq!(check_plain(&udp), Err(Malformed::Transport));
    // With options of UDP behind it (RFC 9868).
    udp[45] = 100;
    assert!(check_plain(&udp).is_ok());
    let mut tcp = Build::tcp6().payload(8).bytes();
    tcp[52] = 4 << 4;
    assert_eq!(check_plain(&tcp), Err(Malformed::Transport));
    tcp[52] = 8 << 4;
    assert_eq!(check_plain(&tcp), Err(Malformed::Transport));
}

#[test]
fn headers_that_hide_something_are_refused() {
    let mut bytes = Build::tcp4().bytes();
    bytes[8] ^= 1;
    assert_eq!(check_plain(&bytes), Err(Malformed::HeaderChecksum));
    bytes[0] = 0x44;
    assert_eq!(check_plain(&bytes), Err(Malformed::HeaderLength(16)));
    let ipv4 = |options: &[u8]| error(&Build::udp4(8).ip_options(options));
    assert_eq!(ipv4(&[131, 3, 4, 0]), Malformed::SourceRoute);
    assert_eq!(ipv4(&[1, 137, 3, 0]), Malformed::SourceRoute);
    assert_eq!(ipv4(&[7, 5, 0, 0]), Malformed::Option);
    assert_eq!(ipv4(&[7, 1, 0, 0]), Malformed::Option);
    assert_eq!(ipv4(&[1, 1, 1, 7]), Malformed::Option);
    let pad = [0, 1, 4, 0, 0, 0, 0];
    let ipv6 = |kind: u8, body: &[u8]| error(&Build::udp6(8).extension(kind, body));
    assert_eq!(ipv6(43, &[0, 0, 1, 0, 0, 0, 0]), Malformed::SourceRoute);
    assert_eq!(ipv6(60, &[9, 1, 4, 0, 0, 0, 0]), Malformed::Extension(8));
    let twice = Build::udp6(8).extension(60, &pad).extension(0, &pad);
    assert_eq!(error(&twice), Malformed::Extension(8));
    let chain = |count| (0..count).fold(Build::udp6(8), |build, _| build.extension(60, &pad));
    assert!(check_plain(&chain(8).bytes()).is_ok());
    assert_eq!(error(&chain(9)), Malformed::Extension(8));
}

#[test]
fn fragments_that_no_sender_makes_are_refused() {
    let builds = [
        Build::udp4(63).fragment(800, true),
        Build::udp4(0).fragment(800, false),
        Build::udp4(64).fragment(65_528, false),
        Build::tcp4().payload(64).fragment(8, false),
        Build::udp6(63).fragment(800, true),
        Build::udp6(64).fragment(65_528, false),
        Build::udp6(64)
            .fragment(0, true)
            .extension(44, &[0, 0, 1, 0, 0, 0, 1]),
    ];
    for build in builds {
        assert_eq!(error(&build), Malformed::Fragment, "{build:?}");
    }
    // Without all of its TCP header.
    let mut first = Build::udp4(8).fragment(0, true).bytes();
    first[9] = TCP;
    first[10..12].fill(0);
    let checksum = !sum(&first[..20]);
    first[10..12].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(check_plain(&first), Err(Malformed::Transport));
}

#[test]
fn addresses_of_no_network_are_refused() {
    let ipv4 = [
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [169, 254, 169, 254],
        [224, 0, 0, 1],
        [255; 4],
    ];
    for address in ipv4 {
        let source = error(&Build::udp4(8).source(&address));
        assert_eq!(source, Malformed::Source(address.into()));
        let destination = error(&Build::udp4(8).destination(&address));
        assert_eq!(destination, Malformed::Destination(address.into()));
        assert_eq!(destination.reason(), DropReason::AddressNotCarried);
    }
    for address in ["::", "::1", "fe80::1", "ff02::1", "::ffff:10.0.0.1"] {
        let address: std::net::Ipv6Addr = address.parse().unwrap();
        let octets = address.octets();
        assert_eq!(
            error(&Build::udp6(8).source(&octets)),
            Malformed::Source(address.into())
        );
        assert_eq!(
            error(&Build::udp6(8).destination(&octets)),
            Malformed::Destination(address.into())
        );
    }
    let same = error(&Build::tcp4().source(&[10, 2, 0, 3]));
    assert_eq!(same, Malformed::SameAddress("10.2.0.3".parse().unwrap()));
    assert_eq!(same.reason(), DropReason::Malformed);
}

#[test]
fn messages_of_a_link_are_refused() {
    assert_eq!(error(&Build::icmp4(5)), Malformed::LinkMessage(5));
    for kind in 133..=137 {
        assert_eq!(error(&Build::icmp6(kind)), Malformed::LinkMessage(kind));
    }
    assert!(check_plain(&Build::icmp6(132).bytes()).is_ok());
    assert!(check_plain(&Build::icmp6(138).bytes()).is_ok());
}

/// A change of one byte of the virtio header.
fn changed(framed: &[u8], at: usize, byte: u8) -> Malformed {
    let mut bytes = framed.to_vec();
    bytes[at] = byte;
    check(&bytes).unwrap_err()
}

#[test]
fn a_forged_virtio_header_is_refused() {
    let plain = framed(&Build::udp4(100).bytes());
    assert_eq!(changed(&plain, 0, 2), Malformed::Flags(2));
    assert_eq!(changed(&plain, 1, 0x80), Malformed::VirtioHeaderLength(0));
    assert_eq!(changed(&plain, 1, 5), Malformed::VirtioHeaderLength(0));
    let typed = [&[0, 0x80, 28, 0, 50, 0], &plain[6..]].concat();
    assert_eq!(check(&typed), Err(Malformed::GsoType(0x80)));
    assert_eq!(changed(&plain, 2, 1), Malformed::VirtioHeaderLength(1));
    assert!(matches!(changed(&plain, 4, 1), Malformed::GsoSize { .. }));
    assert!(matches!(
        changed(&plain, 6, 20),
        Malformed::ChecksumPlace { start: 20, .. }
    ));
    assert!(matches!(
        changed(&plain, 8, 6),
        Malformed::ChecksumPlace { offset: 6, .. }
    ));
    let partly = partial(&Build::tcp6().bytes());
    assert!(check(&partly).unwrap().needs_checksum);
    assert_eq!(changed(&partly, 0, 3), Malformed::Flags(3));
    assert_eq!(changed(&partly, 0, 5), Malformed::Flags(5));
    assert!(matches!(
        changed(&partly, 6, 39),
        Malformed::ChecksumPlace { .. }
    ));
    assert!(matches!(
        changed(&partly, 8, 6),
        Malformed::ChecksumPlace { .. }
    ));
    assert_eq!(
        changed(&partly, 10 + 57, partly[67] ^ 1),
        Malformed::PartialChecksum
    );
    let icmp = [
        &[1, 0, 0, 0, 0, 0, 20, 0, 2, 0],
        Build::icmp4(8).bytes().as_slice(),
    ]
    .concat();
    assert!(matches!(check(&icmp), Err(Malformed::ChecksumPlace { .. })));
    let bytes = Build::udp4(64).fragment(0, true).bytes();
    let fragment = [&[1, 0, 0, 0, 0, 0, 20, 0, 6, 0], bytes.as_slice()].concat();
    assert!(matches!(
        check(&fragment),
        Err(Malformed::ChecksumPlace { .. })
    ));
}

#[test]
fn a_forged_super_packet_is_refused() {
    let tcp = super_packet(&Build::tcp4().payload(3000).bytes(), 1000);
    assert!(check(&tcp).is_ok());
    for kind in [3, 4, 5, 6, 0x85] {
        assert_eq!(changed(&tcp, 1, kind), Malformed::GsoType(kind));
    }
    assert_eq!(changed(&tcp, 2, 41), Malformed::VirtioHeaderLength(41));
    for kind in [1, 4, 0x85] {
        let udp = super_packet(&Build::udp6(3000).bytes(), 1000);
        assert_eq!(changed(&udp, 1, kind), Malformed::GsoType(kind));
    }
    let size = |build: Build, size| check(&super_packet(&build.bytes(), size));
    let refused = |result| matches!(result, Err(Malformed::GsoSize { .. }));
    assert!(refused(size(Build::tcp4().payload(3000), 0)));
    assert!(refused(size(Build::tcp4().payload(3000), 7)));
    assert!(size(Build::tcp4().payload(3000), 8).is_ok());
    assert!(refused(size(Build::tcp4().payload(3000), 3000)));
    assert!(size(Build::tcp4().payload(3000), 2999).is_ok());
    assert!(refused(size(Build::tcp4().payload(3000), u16::MAX)));
    assert!(size(Build::udp4(1280), 10).is_ok());
    assert!(refused(size(Build::udp4(1281), 10)));
    for flags in [0x12, 0x14, 0x02] {
        let result = size(Build::tcp6().flags(flags).payload(3000), 1000);
        assert_eq!(result, Err(Malformed::GsoFlags));
    }
    assert!(size(Build::tcp6().flags(0x99).payload(3000), 1000).is_ok());
    let mut no_checksum = framed(&Build::tcp4().payload(3000).bytes());
    no_checksum[..6].copy_from_slice(&tcp[..6]);
    no_checksum[0] = 0;
    assert_eq!(check(&no_checksum), Err(Malformed::GsoType(1)));
}

#[test]
fn what_the_kernel_wrote_is_brought_into_the_one_form() {
    let expected = super_packet(&Build::tcp4().payload(3000).bytes(), 1000);
    let mut bytes = expected.clone();
    // Its linear buffer was longer than the headers.
    bytes[2..4].copy_from_slice(&200_u16.to_le_bytes());
    assert!(check(&bytes).is_err());
    assert!(from_device(&mut bytes).is_ok());
    assert_eq!(bytes, expected);
    // Its checksum has been seen.
    let expected = framed(&Build::udp6(100).bytes());
    let mut bytes = expected.clone();
    bytes[0] = 2;
    assert!(from_device(&mut bytes).is_ok());
    assert_eq!(bytes, expected);
    // One segment is no super-packet.
    let expected = partial(&Build::tcp6().payload(900).bytes());
    let mut bytes = super_packet(&Build::tcp6().payload(900).bytes(), 1000);
    assert!(from_device(&mut bytes).is_ok());
    assert_eq!(bytes, expected);
}

#[test]
fn a_checksum_of_an_inner_packet_is_completed() {
    // IP in IP, as a tunnel through this one: the inner datagram's checksum is left to the device.
    let inner = Build::udp4(100).bytes();
    let plain = Build::udp4(0).bytes();
    let mut outer = plain[..20].to_vec();
    outer[9] = 4;
    outer[2..4].copy_from_slice(&u16::try_from(20 + inner.len()).unwrap().to_be_bytes());
    outer[10..12].fill(0);
    let checksum = !sum(&outer);
    outer[10..12].copy_from_slice(&checksum.to_be_bytes());
    let expected = framed(&[outer.as_slice(), &inner].concat());
    let mut bytes = [&expected[..30], &partial(&inner)[10..]].concat();
    bytes[..10].copy_from_slice(&[1, 0, 0, 0, 0, 0, 40, 0, 6, 0]);
    assert!(check(&bytes).is_err());
    assert!(!from_device(&mut bytes).unwrap().needs_checksum);
    assert_eq!(bytes, expected);
}
