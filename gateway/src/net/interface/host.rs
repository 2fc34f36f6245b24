//! The addresses that this host uses itself.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteVia};

use super::link::Link;
use super::network::address_of;
use super::{InterfaceError, failed};
use crate::io::netlink::Netlink;

/// The addresses that this host has, and those through which it routes.
#[derive(Debug, Default)]
pub(crate) struct HostAddresses {
    /// Addresses of the TUN interface.
    pub(crate) of_device: Vec<IpAddr>,
    /// Addresses of the other interfaces.
    of_others: Vec<IpAddr>,
    /// Gateways of routes, in all routing tables.
    gateways: Vec<IpAddr>,
}

impl HostAddresses {
    /// Reads the addresses from the kernel. `device`: the TUN interface. Needs no capability.
    ///
    /// # Errors
    /// [`InterfaceError`].
    pub(crate) fn read(device: &str) -> Result<Self, InterfaceError> {
        Self::listed(device)
            .map_err(|error| failed(device, "listing the addresses and routes", error))
    }

    fn listed(device: &str) -> io::Result<Self> {
        let mut netlink = Netlink::route()?;
        let index = Link::named(&mut netlink, device)?.map(|link| link.index);
        let mut all = Self::default();
        let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        for answer in netlink.request(addresses, NLM_F_DUMP)? {
            if let RouteNetlinkMessage::NewAddress(message) = answer
                && let Some(cidr) = address_of(&message)
            {
                match Some(message.header.index) == index {
                    true => all.of_device.push(cidr.address),
                    false => all.of_others.push(cidr.address),
                }
            }
        }
        let routes = RouteNetlinkMessage::GetRoute(RouteMessage::default());
        for answer in netlink.request(routes, NLM_F_DUMP)? {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                all.gateways.extend(gateways(&route.attributes));
            }
        }
        Ok(all)
    }

    /// Whether another interface has `address`, or a route has it as its gateway.
    pub(crate) fn uses(&self, address: IpAddr) -> bool {
        self.of_others.contains(&address) || self.gateways.contains(&address)
    }
}

/// The gateways of a route, which has several next hops or one.
fn gateways(attributes: &[RouteAttribute]) -> Vec<IpAddr> {
    let found = attributes.iter().flat_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(address)) => vec![(*address).into()],
        RouteAttribute::Gateway(RouteAddress::Inet6(address)) => vec![(*address).into()],
        RouteAttribute::Via(RouteVia::Inet(address)) => vec![(*address).into()],
        RouteAttribute::Via(RouteVia::Inet6(address)) => vec![(*address).into()],
        RouteAttribute::MultiPath(hops) => {
            let hops = hops.iter().map(|hop| gateways(&hop.attributes));
            hops.flatten().collect()
        }
        _ => Vec::new(),
    });
    found.collect()
}
