//! A builder of packets for tests, independent of the code that parses them.

use std::net::{Ipv4Addr, Ipv6Addr};

const SOURCE4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const DESTINATION4: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 3);
const SOURCE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 2);
const DESTINATION6: Ipv6Addr = Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 3);

/// Builder of a packet.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    ipv6: bool,
    protocol: u8,
    traffic_class: u8,
    hop_limit: u8,
    id: u16,
    dont_fragment: bool,
    fragment: Option<(usize, bool)>,
    ports: (u16, u16),
    sequence: u32,
    acknowledgement: u32,
    flags: u8,
    options: Vec<u8>,
    ip_options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    icmp_type: u8,
    payload: Vec<u8>,
    addresses: (Vec<u8>, Vec<u8>),
}

impl Build {
    fn new(ipv6: bool, protocol: u8) -> Self {
        let addresses = if ipv6 {
            (SOURCE6.octets().to_vec(), DESTINATION6.octets().to_vec())
        } else {
            (SOURCE4.octets().to_vec(), DESTINATION4.octets().to_vec())
        };
        Self {
            ipv6,
            protocol,
            traffic_class: 0,
            hop_limit: 64,
            id: 0x1234,
            dont_fragment: false,
            fragment: None,
            ports: (40_000, 443),
            sequence: 7,
            acknowledgement: 9,
            flags: 0x10,
            options: Vec::new(),
            ip_options: Vec::new(),
            extensions: Vec::new(),
            icmp_type: 8,
            payload: (0..100_u8).collect(),
            addresses,
        }
    }

    pub(crate) fn tcp4() -> Self {
        Self::new(false, 6)
    }

    pub(crate) fn tcp6() -> Self {
        Self::new(true, 6)
    }

    pub(crate) fn udp4(payload: usize) -> Self {
        Self::new(false, 17).payload(payload)
    }

    pub(crate) fn udp6(payload: usize) -> Self {
        Self::new(true, 17).payload(payload)
    }

    pub(crate) fn icmp4(kind: u8) -> Self {
        let mut build = Self::new(false, 1);
        build.icmp_type = kind;
        build
    }

    pub(crate) fn icmp6(kind: u8) -> Self {
        let mut build = Self::new(true, 58);
        build.icmp_type = kind;
        build
    }

    pub(crate) fn tcp(mut self) -> Self {
        self.protocol = 6;
        self
    }

    pub(crate) fn payload(mut self, length: usize) -> Self {
        self.payload = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
        self
    }

    pub(crate) fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    pub(crate) fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    pub(crate) fn ports(mut self, source: u16, destination: u16) -> Self {
        self.ports = (source, destination);
        self
    }

    pub(crate) fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    pub(crate) fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    pub(crate) fn ip_options(mut self, options: &[u8]) -> Self {
        self.ip_options = options.to_vec();
        self
    }

    /// Adds an IPv6 extension header. `body` is the header without its first byte.
    pub(crate) fn extension(mut self, kind: u8, body: &[u8]) -> Self {
        self.extensions.push((kind, body.to_vec()));
        self
    }

    pub(crate) fn id(mut self, id: u16) -> Self {
        self.id = id;
        self
    }

    pub(crate) fn sequence(mut self, sequence: u32) -> Self {
        self.sequence = sequence;
        self
    }

    pub(crate) fn acknowledgement(mut self, acknowledgement: u32) -> Self {
        self.acknowledgement = acknowledgement;
        self
    }

    pub(crate) fn dont_fragment(mut self) -> Self {
        self.dont_fragment = true;
        self
    }

    pub(crate) fn fragment(mut self, offset: usize, more: bool) -> Self {
        self.fragment = Some((offset, more));
        self
    }

    pub(crate) fn source(mut self, address: &[u8]) -> Self {
        self.addresses.0 = address.to_vec();
        self
    }

    pub(crate) fn destination(mut self, address: &[u8]) -> Self {
        self.addresses.1 = address.to_vec();
        self
    }

    /// The IP packet, with complete checksums.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let is_later = self.fragment.is_some_and(|(offset, _)| offset > 0);
        let transport = if is_later {
            self.payload.clone()
        } else {
            self.transport()
        };
        if self.ipv6 {
            self.ipv6(&transport)
        } else {
            self.ipv4(&transport)
        }
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let ports = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        let field = match self.protocol {
            6 => {
                bytes.extend(ports);
                bytes.extend(self.sequence.to_be_bytes());
                bytes.extend(self.acknowledgement.to_be_bytes());
                let offset = u8::try_from(5 + self.options.len() / 4).unwrap();
                bytes.extend([offset << 4, self.flags, 0x01, 0xf6, 0, 0, 0, 0]);
                bytes.extend(&self.options);
                16
            }
            17 => {
                bytes.extend(ports);
                let length = u16::try_from(8 + self.payload.len()).unwrap();
                bytes.extend(length.to_be_bytes());
                bytes.extend([0, 0]);
                6
            }
            _ => {
                bytes.extend([self.icmp_type, 0, 0, 0, 0, 1, 0, 2]);
                2
            }
        };
        bytes.extend(&self.payload);
        let mut summed = Vec::new();
        if self.protocol != 1 {
            summed.extend(&self.addresses.0);
            summed.extend(&self.addresses.1);
            summed.extend([0, self.protocol]);
            summed.extend(u16::try_from(bytes.len()).unwrap().to_be_bytes());
        }
        summed.extend(&bytes);
        let checksum = match !sum(&summed) {
            0 if self.protocol == 17 => u16::MAX,
            checksum => checksum,
        };
        bytes[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    fn ipv4(&self, transport: &[u8]) -> Vec<u8> {
        let header_length = 20 + self.ip_options.len();
        let (offset, more) = self.fragment.unwrap_or_default();
        let mut field = u16::try_from(offset / 8).unwrap();
        field |= u16::from(more) << 13 | u16::from(self.dont_fragment) << 14;
        let length = u16::try_from(header_length + transport.len()).unwrap();
        let first = 0x40 | u8::try_from(header_length / 4).unwrap();
        let mut bytes = vec![first, self.traffic_class];
        bytes.extend(length.to_be_bytes());
        bytes.extend(self.id.to_be_bytes());
        bytes.extend(field.to_be_bytes());
        bytes.extend([self.hop_limit, self.protocol, 0, 0]);
        bytes.extend(&self.addresses.0);
        bytes.extend(&self.addresses.1);
        bytes.extend(&self.ip_options);
        let checksum = !sum(&bytes);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes.extend(transport);
        bytes
    }

    fn ipv6(&self, transport: &[u8]) -> Vec<u8> {
        let mut extensions = self.extensions.clone();
        if let Some((offset, more)) = self.fragment {
            let field = u16::try_from(offset).unwrap() | u16::from(more);
            let [high, low] = field.to_be_bytes();
            extensions.push((44, vec![0, high, low, 0, 0, 0, 1]));
        }
        let kinds = extensions
            .iter()
            .map(|(kind, _)| *kind)
            .chain([self.protocol]);
        let kinds: Vec<_> = kinds.collect();
        let mut payload = Vec::new();
        for ((_, body), next) in extensions.iter().zip(&kinds[1..]) {
            payload.push(*next);
            payload.extend(body);
        }
        payload.extend(transport);
        let mut bytes = vec![
            0x60 | self.traffic_class >> 4,
            self.traffic_class << 4,
            0,
            0,
        ];
        bytes.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        bytes.extend([kinds[0], self.hop_limit]);
        bytes.extend(&self.addresses.0);
        bytes.extend(&self.addresses.1);
        bytes.extend(payload);
        bytes
    }
}

/// The folded sum of RFC 1071.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// A plain packet with a default virtio header.
pub(crate) fn framed(packet: &[u8]) -> Vec<u8> {
    [&[0; 10], packet].concat()
}

/// Offset and protocol of the transport header in a packet of [`Build`] without extension headers.
fn transport_of(packet: &[u8]) -> (usize, u8) {
    if packet[0] >> 4 == 6 {
        (40, packet[6])
    } else {
        (usize::from(packet[0] & 0xf) * 4, packet[9])
    }
}

/// The pseudo header of a packet of [`Build`].
fn pseudo(packet: &[u8]) -> Vec<u8> {
    let (at, protocol) = transport_of(packet);
    let addresses = if at == 40 && packet[0] >> 4 == 6 {
        &packet[8..40]
    } else {
        &packet[12..20]
    };
    let length = u16::try_from(packet.len() - at).unwrap().to_be_bytes();
    [addresses, &[0, protocol], &length].concat()
}

/// Whether the transport checksum of a packet of [`Build`] without extension headers is correct.
pub(crate) fn has_right_checksum(packet: &[u8]) -> bool {
    let (at, _) = transport_of(packet);
    sum(&[&pseudo(packet), &packet[at..]].concat()) == u16::MAX
}

/// The framed packet with an incomplete checksum, as the kernel passes it.
pub(crate) fn partial(packet: &[u8]) -> Vec<u8> {
    let (at, protocol) = transport_of(packet);
    let offset: u8 = if protocol == 6 { 16 } else { 6 };
    let mut bytes = packet.to_vec();
    let field = at + usize::from(offset);
    bytes[field..field + 2].copy_from_slice(&sum(&pseudo(packet)).to_be_bytes());
    let header = [1, 0, 0, 0, 0, 0, u8::try_from(at).unwrap(), 0, offset, 0];
    [&header, bytes.as_slice()].concat()
}

/// The packet as a framed super-packet with segments of `size` bytes.
pub(crate) fn super_packet(packet: &[u8], size: u16) -> Vec<u8> {
    let mut bytes = partial(packet);
    let (at, protocol) = transport_of(packet);
    let tcp_header = usize::from(packet[at + 12] >> 4) * 4;
    let (kind, header_length) = match (protocol, packet[0] >> 4) {
        (6, 4) => (1, at + tcp_header),
        (6, _) => (4, at + tcp_header),
        _ => (5, at + 8),
    };
    let has_cwr = protocol == 6 && packet[at + 13] & 0x80 != 0;
    bytes[1] = kind | if has_cwr { 0x80 } else { 0 };
    bytes[2..4].copy_from_slice(&u16::try_from(header_length).unwrap().to_le_bytes());
    bytes[4..6].copy_from_slice(&size.to_le_bytes());
    bytes
}
