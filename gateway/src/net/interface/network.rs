//! Sets the addresses and routes of an interface: adds the missing addresses and routes, and
//! removes others. Addresses of scope link, and routes of another protocol than `static`, remain.

use std::io;
use std::net::IpAddr;

use muxtunnel_gateway_config::Cidr;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::io::netlink::Netlink;

/// The step that failed, and its error.
type Failed = (String, io::Error);

/// Sets the addresses of an interface. Removes other addresses except those of scope link. When the
/// last IPv4 address is removed, the kernel drops all IPv4 routes of the interface
/// (`fib_disable_ip`), so set the routes afterwards.
///
/// # Errors
/// The step that failed, and the kernel's error.
pub(super) fn set_addresses(
    netlink: &mut Netlink<RouteNetlinkMessage>,
    index: u32,
    wanted: &[Cidr],
) -> Result<(), Failed> {
    let listing = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let answers = netlink.request(listing, NLM_F_DUMP);
    let answers = answers.map_err(|error| ("listing the addresses".to_owned(), error))?;
    let mut there = Vec::new();
    for answer in answers {
        let RouteNetlinkMessage::NewAddress(address) = answer else {
            continue;
        };
        if address.header.index != index || address.header.scope == AddressScope::Link {
            continue;
        }
        match address_of(&address) {
            Some(cidr) if wanted.contains(&cidr) => there.push(cidr),
            cidr => {
                let name = cidr.map(|cidr| cidr.to_string()).unwrap_or_default();
                let what = || format!("removing the address {name}");
                let removed = netlink.request(RouteNetlinkMessage::DelAddress(address), 0);
                removed.map_err(|error| (what(), error))?;
            }
        }
    }
    for cidr in wanted.iter().filter(|cidr| !there.contains(cidr)) {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.family = family(cidr.address);
        message.header.prefix_len = cidr.length;
        message.attributes = vec![
            AddressAttribute::Local(cidr.address),
            AddressAttribute::Address(cidr.address),
        ];
        let message = RouteNetlinkMessage::NewAddress(message);
        let added = netlink.request(message, NLM_F_CREATE | NLM_F_EXCL);
        added.map_err(|error| (format!("adding the address {cidr}"), error))?;
    }
    Ok(())
}

pub(super) fn address_of(message: &AddressMessage) -> Option<Cidr> {
    let attributes = || message.attributes.iter();
    // An IPv4 address has both attributes. `Local` is this host's address, and `Address` may be the
    // address of a point-to-point peer.
    let local = attributes().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = local.or_else(|| {
        attributes().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })?;
    Some(Cidr {
        address,
        length: message.header.prefix_len,
    })
}

/// Routes networks to an interface. Removes other routes of protocol `static` to that interface
/// from the main routing table.
///
/// # Errors
/// The step that failed and the kernel's error. If adding a route failed, also the route.
pub(super) fn set_routes(
    netlink: &mut Netlink<RouteNetlinkMessage>,
    index: u32,
    wanted: &[Cidr],
) -> Result<(), (Option<Cidr>, String, io::Error)> {
    let answers = netlink.request(
        RouteNetlinkMessage::GetRoute(RouteMessage::default()),
        NLM_F_DUMP,
    );
    let answers = answers.map_err(|error| (None, "listing the routes".to_owned(), error))?;
    let wanted: Vec<_> = wanted.iter().filter_map(masked).collect();
    let mut there = Vec::new();
    for answer in answers {
        let RouteNetlinkMessage::NewRoute(route) = answer else {
            continue;
        };
        let is_here = route.attributes.contains(&RouteAttribute::Oif(index))
            && route.header.table == RouteHeader::RT_TABLE_MAIN;
        if !is_here {
            continue;
        }
        match route_of(&route) {
            Some(cidr) if wanted.contains(&cidr) => there.push(cidr),
            Some(cidr) if route.header.protocol == RouteProtocol::Static => {
                let removed = netlink.request(RouteNetlinkMessage::DelRoute(route), 0);
                removed.map_err(|error| (None, format!("removing the route {cidr}"), error))?;
            }
            _ => {}
        }
    }
    for cidr in wanted.iter().filter(|cidr| !there.contains(cidr)) {
        let message = RouteNetlinkMessage::NewRoute(route_to(*cidr, index));
        // `NLM_F_EXCL`: never replace a route to another interface.
        let added = netlink.request(message, NLM_F_CREATE | NLM_F_EXCL);
        added.map_err(|error| (Some(*cidr), format!("adding the route {cidr}"), error))?;
    }
    Ok(())
}

/// Clears the host bits, because the kernel rejects a route with host bits.
fn masked(cidr: &Cidr) -> Option<Cidr> {
    let network = cidr.network()?;
    Some(Cidr {
        address: network.network(),
        length: network.prefix_len(),
    })
}

fn route_to(cidr: Cidr, index: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(cidr.address),
        destination_prefix_length: cidr.length,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        scope: match cidr.address {
            IpAddr::V4(_) => RouteScope::Link,
            IpAddr::V6(_) => RouteScope::Universe,
        },
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes = vec![
        RouteAttribute::Destination(cidr.address.into()),
        RouteAttribute::Oif(index),
    ];
    message
}

fn route_of(message: &RouteMessage) -> Option<Cidr> {
    let destination = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => Some((*address).into()),
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some((*address).into()),
            _ => None,
        });
    // A default route has no destination attribute.
    let any = match message.header.address_family {
        AddressFamily::Inet => Some(IpAddr::from([0; 4])),
        AddressFamily::Inet6 => Some(IpAddr::from([0_u16; 8])),
        _ => None,
    };
    Some(Cidr {
        address: destination.or(any)?,
        length: message.header.destination_prefix_length,
    })
}

const fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
