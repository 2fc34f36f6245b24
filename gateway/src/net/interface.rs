//! The interface that IP packets come from and go to: made by somebody with CAP_NET_ADMIN, so that the gateway that opens it
//! ([`crate::io::tun`]) needs no capability.
//!
//! What is there as it is to be is kept, so that a gateway that has it open goes on; what differs is changed. Of addresses
//! and routes only those of this interface are touched. Reverse path filters (`rp_filter`) need no change: what comes out
//! of the interface has sources that are routed into it.

mod link;
mod masquerade;
mod network;

use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use muxtunnel_gateway_config::Cidr;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::io::netlink::Netlink;
use crate::io::tun::{self, TunError};
use link::Link;

/// Packets that the kernel holds for a gateway that is busy: at 64 KiB a packet and 10 Gbit/s, half a second.
const QUEUE_PACKETS: u32 = 10_000;
/// The number of the TUN driver's node (Documentation/admin-guide/devices.txt).
const NODE: (u32, u32) = (10, 200);
/// As udev makes it: the kernel asks who owns the interface, not who may open the node.
const NODE_MODE: u32 = 0o666;
/// What has a host pass packets on, and whether it is of IPv6.
const FORWARDING: [(&str, bool); 2] = [
    ("net/ipv4/ip_forward", false),
    ("net/ipv6/conf/all/forwarding", true),
];

/// An interface as it is to be.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) device: String,
    /// The node of the TUN driver; made where there is none.
    pub(crate) node: String,
    /// The user who may open it.
    pub(crate) owner: u32,
    pub(crate) mtu: u16,
    pub(crate) addresses: Vec<Cidr>,
    pub(crate) routes: Vec<Cidr>,
    /// Whether the host passes packets on, of the IP versions of `addresses` and `routes`.
    pub(crate) forward: bool,
    /// Whether the sources of packets that the host passes on between the interface and its other ones become addresses of
    /// the interface that they leave by.
    pub(crate) masquerade: bool,
}

/// An interface cannot be as it is to be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InterfaceError {
    #[error("interface {device}: {what}: {error}{}", hint(error))]
    System {
        device: String,
        what: String,
        error: io::Error,
    },
    #[error("interface {0} is there, but is no TUN interface: name another one, or delete it")]
    NotTun(String),
    #[error(transparent)]
    Tun(#[from] TunError),
    #[error("node {node}: {error}. Making it needs CAP_MKNOD outside of user namespaces")]
    Node { node: String, error: io::Error },
    #[error("node {0} is there, but is none of the TUN driver (character device 10:200)")]
    OtherNode(String),
    #[error(
        "{route} is routed elsewhere already: remove that route, or name the halves of {route}, which are longer prefixes"
    )]
    Routed { route: Cidr },
    #[error(
        "sysctl {key} cannot be set to 1: {error}. Where /proc/sys is read-only, as in containers, have the pod set it (`securityContext.sysctls`), or leave --forward out"
    )]
    Forwarding { key: &'static str, error: io::Error },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ". It needs CAP_NET_ADMIN",
        _ => "",
    }
}

/// The route by which a carrier with `peer` would run inside itself, if there is one.
pub(crate) fn carrier_loop(routes: &[Cidr], peer: IpAddr) -> Option<Cidr> {
    let mut routes = routes.iter().copied();
    routes.find(|route| route.contains(peer))
}

impl Interface {
    /// Makes it, or changes what differs.
    ///
    /// # Errors
    /// [`InterfaceError`]; what was done until then stays, and a further call goes on.
    pub(crate) fn create(&self) -> Result<(), InterfaceError> {
        let connected = Netlink::route();
        let mut netlink = connected.map_err(|error| self.failed("asking the kernel", error))?;
        make_node(&self.node)?;
        let link = self.kept(&mut netlink)?;
        // Addresses first, and routes last: a route needs an interface that is up, and takes its source from there.
        self.set(&mut netlink, link.index, None)
            .map_err(|error| self.failed("setting its MTU", error))?;
        network::set_addresses(&mut netlink, link.index, &self.addresses)
            .map_err(|(what, error)| self.failed(what, error))?;
        self.set(&mut netlink, link.index, Some(LinkFlags::Up))
            .map_err(|error| self.failed("setting it up", error))?;
        set_routes(&mut netlink, &self.device, link.index, &self.routes)?;
        let masquerade = match self.masquerade {
            true => masquerade::set(&self.device),
            false => masquerade::remove(&self.device),
        };
        masquerade.map_err(|error| self.failed("setting its nftables table", error))?;
        self.set_forwarding()
    }

    /// The interface, persistent and of the right owner.
    fn kept(&self, netlink: &mut Netlink<RouteNetlinkMessage>) -> Result<Link, InterfaceError> {
        let find = |netlink: &mut Netlink<RouteNetlinkMessage>| {
            Link::named(netlink, &self.device).map_err(|error| self.failed("looking it up", error))
        };
        let is_right = |link: &Link| link.is_persistent && link.owner == Some(self.owner);
        match find(netlink)? {
            Some(link) if !link.is_tun => return Err(InterfaceError::NotTun(self.device.clone())),
            Some(link) if is_right(&link) => return Ok(link),
            _ => tun::keep(&self.node, &self.device, self.owner)?,
        }
        let made = find(netlink)?;
        made.ok_or_else(|| self.failed("looking it up", io::ErrorKind::NotFound.into()))
    }

    fn set(
        &self,
        netlink: &mut Netlink<RouteNetlinkMessage>,
        index: u32,
        flags: Option<LinkFlags>,
    ) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        if let Some(flags) = flags {
            message.header.flags = flags;
            message.header.change_mask = flags;
        }
        message.attributes = vec![
            LinkAttribute::Mtu(self.mtu.into()),
            LinkAttribute::TxQueueLen(QUEUE_PACKETS),
        ];
        netlink
            .request(RouteNetlinkMessage::SetLink(message), 0)
            .map(drop)
    }

    fn set_forwarding(&self) -> Result<(), InterfaceError> {
        if !self.forward {
            return Ok(());
        }
        let cidrs = || self.addresses.iter().chain(&self.routes);
        for (key, is_ipv6) in FORWARDING {
            if !cidrs().any(|cidr| cidr.address.is_ipv6() == is_ipv6) {
                continue;
            }
            let path = format!("/proc/sys/{key}");
            // A pod has the setting of its node often, and may not write it.
            if std::fs::read_to_string(&path).is_ok_and(|value| value.trim() == "1") {
                continue;
            }
            let written = std::fs::write(&path, "1");
            written.map_err(|error| InterfaceError::Forwarding { key, error })?;
        }
        Ok(())
    }

    fn failed(&self, what: impl Into<String>, error: io::Error) -> InterfaceError {
        failed(&self.device, what, error)
    }
}

/// Gives a TUN interface that is up these addresses, and no others but those of the link, and routes `routes` to it.
///
/// # Errors
/// [`InterfaceError`].
pub(crate) fn assign(
    device: &str,
    addresses: &[Cidr],
    routes: &[Cidr],
) -> Result<(), InterfaceError> {
    let connected = Netlink::route();
    let mut netlink = connected.map_err(|error| failed(device, "asking the kernel", error))?;
    let link = Link::named(&mut netlink, device);
    let link = link.map_err(|error| failed(device, "looking it up", error))?;
    let Some(link) = link.filter(|link| link.is_tun) else {
        return Err(InterfaceError::NotTun(device.to_owned()));
    };
    network::set_addresses(&mut netlink, link.index, addresses)
        .map_err(|(what, error)| failed(device, what, error))?;
    set_routes(&mut netlink, device, link.index, routes)
}

fn set_routes(
    netlink: &mut Netlink<RouteNetlinkMessage>,
    device: &str,
    index: u32,
    routes: &[Cidr],
) -> Result<(), InterfaceError> {
    let set = network::set_routes(netlink, index, routes);
    set.map_err(|(route, what, error)| match (route, error.raw_os_error()) {
        (Some(route), Some(libc::EEXIST)) => InterfaceError::Routed { route },
        _ => failed(device, what, error),
    })
}

/// Deletes the TUN interface `device`, with its addresses and routes. Returns whether there was one.
///
/// # Errors
/// [`InterfaceError`].
pub(crate) fn delete(device: &str) -> Result<bool, InterfaceError> {
    let connected = Netlink::route();
    let mut netlink = connected.map_err(|error| failed(device, "asking the kernel", error))?;
    let link = Link::named(&mut netlink, device);
    let Some(link) = link.map_err(|error| failed(device, "looking it up", error))? else {
        return Ok(false);
    };
    if !link.is_tun {
        return Err(InterfaceError::NotTun(device.to_owned()));
    }
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    let deleted = netlink.request(RouteNetlinkMessage::DelLink(message), 0);
    deleted.map_err(|error| failed(device, "deleting it", error))?;
    masquerade::remove(device)
        .map_err(|error| failed(device, "deleting its nftables table", error))?;
    Ok(true)
}

fn failed(device: &str, what: impl Into<String>, error: io::Error) -> InterfaceError {
    InterfaceError::System {
        device: device.to_owned(),
        what: what.into(),
        error,
    }
}

/// Makes the node where nothing is.
fn make_node(node: &str) -> Result<(), InterfaceError> {
    let wrong = |error: io::Error| InterfaceError::Node {
        node: node.to_owned(),
        error,
    };
    let (major, minor) = NODE;
    let number = makedev(major, minor);
    match std::fs::metadata(node) {
        Ok(found) if found.file_type().is_char_device() && found.rdev() == number => return Ok(()),
        Ok(_) => return Err(InterfaceError::OtherNode(node.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(wrong(error)),
    }
    mknodat(
        CWD,
        Path::new(node),
        FileType::CharacterDevice,
        Mode::from_raw_mode(NODE_MODE),
        number,
    )
    .map_err(|error| wrong(error.into()))?;
    // The mode of mknod(2) is without the bits of the umask.
    let permissions = std::fs::Permissions::from_mode(NODE_MODE);
    std::fs::set_permissions(node, permissions).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_with_the_peer_in_it_is_a_loop() {
        let routes = ["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap());
        let loops = |peer: &str| carrier_loop(&routes, peer.parse().unwrap()).is_some();
        assert!(loops("10.1.2.3") && loops("fd00::1") && loops("::ffff:10.0.0.1"));
        assert!(!loops("192.0.2.1") && !loops("2001:db8::1"));
    }
}
