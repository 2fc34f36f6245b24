//! Which targets an exit may dial.
//!
//! Pure: the judgement is of the name asked for and of the address it resolved to; the caller dials
//! exactly the address that was judged. Default is deny. Loopback, link-local (cloud metadata),
//! multicast and unspecified addresses are denied unless an entry names them literally, in whatever
//! spelling of IPv6 the IPv4 address is wrapped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use muxtunnel_gateway_config::{Allow, AllowHost};

/// Address classes that are never reached by a wide entry or by a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Special {
    Unspecified,
    Loopback,
    LinkLocal,
    Multicast,
}

/// Whether a stream to `host`:`port`, resolved to `address`, may be dialled.
pub(crate) fn permits(allow: &[Allow], host: &str, address: IpAddr, port: u16) -> bool {
    let address = unwrap(address);
    allow
        .iter()
        .any(|entry| entry.port.is_none_or(|p| p == port) && covers(&entry.host, host, address))
}

/// Whether any entry could permit `host`:`port`, so that a name that nobody allowed is not even
/// resolved.
pub(crate) fn may_permit(allow: &[Allow], host: &str, port: u16) -> bool {
    allow.iter().any(|entry| {
        entry.port.is_none_or(|p| p == port)
            && match &entry.host {
                AllowHost::Name(name) => same_name(name, host),
                AllowHost::Network(..) => true,
            }
    })
}

fn covers(entry: &AllowHost, host: &str, address: IpAddr) -> bool {
    match entry {
        AllowHost::Name(name) => {
            same_name(name, host)
                && match special(address) {
                    None => true,
                    Some(class) => class == Special::Loopback && name == "localhost",
                }
        }
        AllowHost::Network(network, length) => {
            let Ok(network) = IpNet::new(unwrap(*network), unwrapped_length(*network, *length))
            else {
                return false;
            };
            network.contains(&address)
                && match special(address) {
                    None => true,
                    // Literal: the whole entry lies within the class.
                    class => {
                        special(network.network()) == class && special(network.broadcast()) == class
                    }
                }
        }
    }
}

fn same_name(name: &str, host: &str) -> bool {
    host.strip_suffix('.')
        .unwrap_or(host)
        .eq_ignore_ascii_case(name)
}

fn special(address: IpAddr) -> Option<Special> {
    match address {
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some(Special::Unspecified),
        IpAddr::V4(v4) if v4.is_loopback() => Some(Special::Loopback),
        IpAddr::V4(v4) if v4.is_link_local() => Some(Special::LinkLocal),
        IpAddr::V4(v4) if v4.is_multicast() || v4.is_broadcast() => Some(Special::Multicast),
        IpAddr::V6(v6) if v6.is_unspecified() => Some(Special::Unspecified),
        IpAddr::V6(v6) if v6.is_loopback() => Some(Special::Loopback),
        IpAddr::V6(v6) if v6.is_unicast_link_local() || is_metadata(v6) => Some(Special::LinkLocal),
        IpAddr::V6(v6) if v6.is_multicast() => Some(Special::Multicast),
        _ => None,
    }
}

/// fd00:ec2::254, the metadata service of one large cloud.
fn is_metadata(address: Ipv6Addr) -> bool {
    address == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)
}

/// The IPv4 address inside an IPv6 one: mapped (RFC 4291), compatible (RFC 4291), translated
/// (RFC 2765), NAT64 (RFC 6052), 6to4 (RFC 3056).
fn unwrap(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let s = v6.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => v4(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 || low > 1 => v4(high, low),
        _ => address,
    }
}

fn unwrapped_length(network: IpAddr, length: u8) -> u8 {
    match (network, unwrap(network)) {
        (IpAddr::V6(_), IpAddr::V4(_)) => length.saturating_sub(96),
        _ => length,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permitted(allow: &[&str], host: &str, address: &str, port: u16) -> bool {
        let allow: Vec<Allow> = allow.iter().map(|text| text.parse().unwrap()).collect();
        permits(&allow, host, address.parse().unwrap(), port)
    }

    #[test]
    fn nothing_is_permitted_by_default() {
        assert!(!permitted(&[], "web", "192.0.2.1", 80));
    }

    #[test]
    fn a_name_permits_what_it_resolves_to_on_its_port_only() {
        assert!(permitted(&["web.shop:80"], "WEB.shop.", "192.0.2.1", 80));
        assert!(!permitted(&["web.shop:80"], "web.shop", "192.0.2.1", 81));
        assert!(!permitted(&["web.shop:80"], "db.shop", "192.0.2.1", 80));
        assert!(permitted(&["web.shop"], "web.shop", "192.0.2.1", 81));
    }

    #[test]
    fn a_network_permits_the_resolved_address_whatever_the_name() {
        assert!(permitted(&["10.0.0.0/8:80"], "any.name", "10.1.2.3", 80));
        assert!(!permitted(&["10.0.0.0/8:80"], "any.name", "11.1.2.3", 80));
        assert!(permitted(
            &["10.0.0.0/8"],
            "any.name",
            "::ffff:10.1.2.3",
            80
        ));
    }

    #[test]
    fn special_addresses_need_a_literal_entry_in_every_spelling() {
        let spellings = [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::127.0.0.1",
            "2002:7f00:1::1",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::",
            "fe80::1",
            "fd00:ec2::254",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "::ffff:0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "::ffff:224.0.0.1",
        ];
        for address in spellings {
            for wide in [
                "0.0.0.0/0",
                "::/0",
                "sneaky.example.com",
                "126.0.0.0/7",
                "168.0.0.0/6",
                "fe00::/7",
            ] {
                assert!(
                    !permitted(&[wide], "sneaky.example.com", address, 80),
                    "{wide} permits {address}"
                );
            }
        }
    }

    #[test]
    fn a_literal_entry_permits_a_special_address() {
        assert!(permitted(
            &["127.0.0.1:5001"],
            "127.0.0.1",
            "127.0.0.1",
            5001
        ));
        assert!(permitted(&["127.0.0.0/8"], "x", "127.3.2.1", 5001));
        assert!(permitted(&["localhost:22"], "localhost", "::1", 22));
        assert!(permitted(&["[::1]:22"], "localhost", "::1", 22));
        assert!(permitted(&["169.254.0.0/16"], "x", "169.254.1.1", 5001));
        assert!(!permitted(
            &["localhost:22"],
            "localhost",
            "169.254.169.254",
            22
        ));
    }
}
