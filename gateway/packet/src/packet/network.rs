//! The fields of an IP header of either version. The transport header and the virtio header are
//! checked against them.

use std::net::IpAddr;

use super::{Fragment, Malformed};

/// The fields of an IP header, checked against the packet's length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    /// Bytes before the transport header, including options and extension headers.
    pub(super) header_length: usize,
    pub(super) fragment: Fragment,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    /// Whether an authentication header covers the transport header. The checksum of such a
    /// transport header must remain unchanged.
    pub(super) authenticated: bool,
}

/// Bytes of the longest datagram that fragments may form, without its IP header.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// Classifies a fragment. `offset` and `length` are in bytes, and `length` excludes the headers
/// before the payload.
///
/// # Errors
/// The fragment is empty or ends beyond the longest datagram. Every fragment before the last one
/// must have a length that is a multiple of 8 bytes (RFC 791, RFC 8200 4.5).
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

/// Checks that routers forward packets between both addresses.
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

/// Whether routers forward packets from and to an address (RFC 1122 3.2.1.3, RFC 3927 2.7, RFC 4291
/// 2.5). Excludes multicast, and IPv4-mapped IPv6 addresses, which would bypass the rules for IPv4
/// networks.
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
