//! Spellings of protected addresses, which only a literal rule permits.

use std::net::Ipv4Addr;

/// Protected IPv4 addresses.
const GUARDED_V4: [&str; 18] = [
    "0.0.0.0",
    "0.1.2.3",
    "127.0.0.1",
    "127.0.1.1",
    "127.9.9.9",
    "127.255.255.254",
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "224.0.0.1",
    "239.255.255.250",
    "255.255.255.255",
    // For tests that protect 10.96.0.1 and 10.97.0.0/16.
    "10.96.0.1",
    "10.97.3.4",
    "127.0.0.53",
];

/// Protected IPv6 addresses.
const GUARDED_V6: [&str; 22] = [
    "::",
    "::1",
    "fe80::1",
    "febf::ffff",
    "ff02::1",
    "ff05::1:3",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd00:ec2::253",
    "fd00:ec2:0:1::1",
    "fd20:ce::254",
    "fd20:ce::1",
    "fd00:c1::a9fe:a9fe",
    "fd00:42::42",
    "64:ff9b:1::1",
    "64:ff9b:1:7f00:0:100::",
    "64:ff9b:1:ffff::7f00:1",
    // For tests that protect fd77::/64.
    "fd77::1",
    "fe80::5efe:10.1.2.3",
    "0:0:0:0:0:0:0:1",
    "fe80:0:0:0:a::",
    "fd00:0ec2:0000::0254",
];

/// The forms in which IPv6 addresses contain a protected IPv4 address.
fn wrapped(text: &str) -> Vec<String> {
    let [a, b, c, d] = text.parse::<Ipv4Addr>().unwrap().octets();
    let (h, l) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let mut all = vec![
        format!("::ffff:{text}"),
        format!("::ffff:{h:x}:{l:x}"),
        format!("0:0:0:0:0:FFFF:{h:04X}:{l:04X}"),
        format!("::ffff:0:{text}"),
        format!("64:ff9b::{text}"),
        format!("64:ff9b::{h:x}:{l:x}"),
        format!("2002:{h:x}:{l:x}::"),
        format!("2002:{h:x}:{l:x}::1"),
        format!("2001:0:{h:x}:{l:x}::3fff:fdfd"),
        format!("2001:0:4136:e378:8000:63bf:{:x}:{:x}", !h, !l),
        format!("2001:db8::5efe:{h:x}:{l:x}"),
        format!("2001:db8:0:0:200:5efe:{h:x}:{l:x}"),
    ];
    if (h, l) != (0, 0) {
        all.push(format!("::{h:x}:{l:x}"));
    }
    all
}

/// Forms of `address` that a resolver accepts although they are not standard notation.
fn odd(text: &str) -> Vec<String> {
    let address = text.parse::<Ipv4Addr>().unwrap();
    let [a, b, c, d] = address.octets();
    let (number, tail) = (u32::from(address), u16::from_be_bytes([c, d]));
    vec![
        format!("{number}"),
        format!("0{number:o}"),
        format!("{number:#x}"),
        format!("0X{number:08X}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
        format!("{a}.{b}.{tail}"),
        format!("{a}.{}", number & 0xff_ffff),
        format!("{a:#x}.{}", number & 0xff_ffff),
        format!("00{a:o}.{b}.{c}.{d}"),
        format!("{a}.{b}.{c}.{d}."),
    ]
}

/// Addresses in standard notation. IPv4 addresses are also included in their forms within IPv6
/// addresses.
pub(crate) fn addresses() -> Vec<String> {
    let v4 = GUARDED_V4.iter().flat_map(|text| {
        let mut all = wrapped(text);
        all.push((*text).to_owned());
        all
    });
    v4.chain(GUARDED_V6.iter().map(|&text| text.to_owned()))
        .collect()
}

/// Numbers that only a resolver interprets as addresses.
pub(crate) fn numbers() -> Vec<String> {
    GUARDED_V4.iter().flat_map(|text| odd(text)).collect()
}
