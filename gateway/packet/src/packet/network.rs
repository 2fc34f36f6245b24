//! The IP header of either version: what the transport and the virtio header are checked against.

use std::net::IpAddr;

use super::{Fragment, Malformed};

/// What an IP header says, checked against the packet's length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    /// Bytes in front of the transport header, options and extension headers among them.
    pub(super) header_length: usize,
    pub(super) fragment: Fragment,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    /// An authentication header covers the transport header, which nobody may complete.
    pub(super) authenticated: bool,
}

/// The longest datagram that fragments may make, without its IPv4 header.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A fragment's place. `offset` and `length` in bytes, `length` without headers in front of it.
///
/// # Errors
/// A middle fragment that is not a multiple of 8 bytes (RFC 791, RFC 8200 4.5), an empty one, or one that
/// ends beyond the longest datagram.
pub(super) fn fragment(offset: usize, more: bool, length: usize) -> Result<Fragment, Malformed> {
    let cut = length == 0 || more && !length.is_multiple_of(8);
    if cut || offset + length > DATAGRAM_BYTES_MAX {
        return Err(Malformed::Fragment);
    }
    Ok(if offset == 0 {
        Fragment::First
    } else {
        Fragment::Later
    })
}

/// Checks that both addresses are those of hosts in networks.
pub(super) fn check_addresses(source: IpAddr, destination: IpAddr) -> Result<(), Malformed> {
    if !is_carried(source) {
        return Err(Malformed::Source(source));
    }
    if !is_carried(destination) {
        return Err(Malformed::Destination(destination));
    }
    if source == destination {
        return Err(Malformed::SameAddress(source));
    }
    Ok(())
}

/// Not one of those that no router forwards: RFC 1122 3.2.1.3, RFC 3927 2.7, RFC 4291 2.5; nor a group,
/// nor an IPv4 address within IPv6, which would pass by the networks of IPv4.
fn is_carried(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, ..] = address.octets();
            !(first == 0
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast())
        }
        IpAddr::V6(address) => {
            !(address.is_unspecified()
                || address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_multicast()
                || address.to_ipv4_mapped().is_some())
        }
    }
}
