//! Creates and deletes the TUN interface of a gateway. Both operations need CAP_NET_ADMIN. The
//! gateway that opens the interface ([`crate::io::tun`]) then needs no capability.
//!
//! Settings that already match remain unchanged, so a gateway that has the interface open continues
//! to run. The module changes addresses and routes of this interface only. Reverse path filters
//! (`rp_filter`) need no change: the sources of packets that come out of the interface are
//! addresses that the host routes into the interface.

mod forwarding;
mod host;
mod link;
mod network;
mod queues;

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
pub(crate) use forwarding::Forwarding;
pub(crate) use host::HostAddresses;
use link::Link;
pub(crate) use queues::{await_start, check_made_for, check_opened};

/// Maximum number of packets that the kernel queues for a busy gateway: at 10 Gbit/s, half a second
/// of packets of 64 KiB.
const QUEUE_PACKETS: u32 = 10_000;
/// Major and minor number of the TUN driver's node (Documentation/admin-guide/devices.txt).
const NODE: (u32, u32) = (10, 200);
/// The mode that udev sets. Access to an interface depends on its owner, not on the node's mode.
const NODE_MODE: u32 = 0o666;
/// Folder with a subfolder of sysctls for each interface. The kernel forwards an IPv4 packet if the
/// interface that received the packet has `forwarding` 1.
const CONF_IPV4: &str = "net/ipv4/conf";
/// Names in [`CONF_IPV4`] that need no change: `all` and `default` apply to further interfaces, and
/// the loopback interface receives no packets to forward.
const NO_INTERFACES: [&str; 3] = ["all", "default", "lo"];
/// The sysctl that makes a host forward IPv6 packets. The kernel forwards no IPv6 packets without it.
const FORWARDING_IPV6: &str = "net/ipv6/conf/all/forwarding";

/// The requested state of an interface.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) device: String,
    /// Path of the TUN driver's node, which is created if it does not exist.
    pub(crate) node: String,
    /// The user who may open the interface.
    pub(crate) owner: u32,
    pub(crate) mtu: u16,
    /// Number of queues that the gateway opens.
    pub(crate) queues: u16,
    pub(crate) addresses: Vec<Cidr>,
    pub(crate) routes: Vec<Cidr>,
    /// How the host forwards packets of the IP versions of `addresses` and `routes` between this
    /// interface and its other interfaces.
    pub(crate) forwarding: Forwarding,
}

/// Why an interface cannot get its requested state.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InterfaceError {
    #[error("interface {device}: {what} failed: {error}{}", hint(error))]
    System {
        device: String,
        what: String,
        error: io::Error,
    },
    #[error("interface {0} exists, but is not a TUN interface: choose another name, or delete it")]
    NotTun(String),
    #[error(
        "interface {device} was created for one queue: delete it (`muxgate tun delete --device {device}`), and create it again with `--queues {queues}`"
    )]
    OneQueue { device: String, queues: u16 },
    #[error(
        "interface {0} was created for several queues: configure the same number of queues at its gateway (`network.queues`, `--queues`), or delete the interface (`muxgate tun delete --device {0}`) and create it again without `--queues`"
    )]
    SeveralQueues(String),
    #[error(
        "another process has interface {device} open: the interface has {open} open queues, and this gateway opened {expected}, two for each configured queue. End that process, or choose another interface"
    )]
    OpenElsewhere {
        device: String,
        open: u32,
        expected: u32,
    },
    #[error(transparent)]
    Tun(#[from] TunError),
    #[error(
        "cannot create the device node {node}: {error}. The command needs CAP_MKNOD, and must not run in a user namespace"
    )]
    Node { node: String, error: io::Error },
    #[error("node {0} exists, but is not the node of the TUN driver (character device 10:200)")]
    OtherNode(String),
    #[error(
        "another interface already has a route to {route}: remove that route, or use the two halves of {route}, which are longer prefixes"
    )]
    Routed { route: Cidr },
    #[error(
        "cannot set sysctl {key} to 1: {error}. In containers /proc/sys is read-only: set net.ipv4.ip_forward for IPv4 and net.ipv6.conf.all.forwarding for IPv6 in the pod (`securityContext.sysctls`), or omit --forward"
    )]
    Forwarding { key: String, error: io::Error },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ". This requires CAP_NET_ADMIN",
        _ => "",
    }
}

/// Returns the route that contains `peer`. A carrier to `peer` would run inside itself.
pub(crate) fn carrier_loop(routes: &[Cidr], peer: IpAddr) -> Option<Cidr> {
    let mut routes = routes.iter().copied();
    routes.find(|route| route.contains(peer))
}

impl Interface {
    /// Creates the interface, or changes the settings that differ.
    ///
    /// # Errors
    /// [`InterfaceError`]. Completed steps stay in force, and another call continues with the other
    /// steps.
    pub(crate) fn create(&self) -> Result<(), InterfaceError> {
        let connected = Netlink::route();
        let mut netlink = connected.map_err(|error| self.failed("opening netlink", error))?;
        make_node(&self.node)?;
        let link = self.kept(&mut netlink)?;
        // The order matters: a route needs an interface that is up, and the kernel selects the
        // source of a route from the addresses.
        self.set(&mut netlink, link.index, None)
            .map_err(|error| self.failed("setting the MTU", error))?;
        network::set_addresses(&mut netlink, link.index, &self.addresses)
            .map_err(|(what, error)| self.failed(what, error))?;
        self.set(&mut netlink, link.index, Some(LinkFlags::Up))
            .map_err(|error| self.failed("bringing up the interface", error))?;
        set_routes(&mut netlink, &self.device, link.index, &self.routes)?;
        forwarding::set(&self.device, self.forwarding)
            .map_err(|error| self.failed("setting the nftables table", error))?;
        self.set_forwarding()
    }

    /// Returns the interface. Creates the interface, or makes it persistent and sets its owner, if
    /// needed.
    fn kept(&self, netlink: &mut Netlink<RouteNetlinkMessage>) -> Result<Link, InterfaceError> {
        let find = |netlink: &mut Netlink<RouteNetlinkMessage>| {
            Link::named(netlink, &self.device)
                .map_err(|error| self.failed("looking up the interface", error))
        };
        let is_right = |link: &Link| link.is_persistent && link.owner == Some(self.owner);
        match find(netlink)? {
            Some(link) if !link.is_tun => return Err(InterfaceError::NotTun(self.device.clone())),
            Some(link) => {
                queues::check(&link, &self.device, self.queues)?;
                if is_right(&link) {
                    return Ok(link);
                }
            }
            None => {}
        }
        tun::keep(&self.node, &self.device, self.owner, self.queues > 1)?;
        let made = find(netlink)?;
        made.ok_or_else(|| self.failed("looking up the interface", io::ErrorKind::NotFound.into()))
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
        if !self.forwarding.is_on() {
            return Ok(());
        }
        let has = |is_ipv6| {
            let mut cidrs = self.addresses.iter().chain(&self.routes);
            cidrs.any(|cidr| cidr.address.is_ipv6() == is_ipv6)
        };
        let mut keys = Vec::new();
        if has(false) {
            let interfaces = std::fs::read_dir(format!("/proc/sys/{CONF_IPV4}"));
            let interfaces = interfaces
                .map_err(|error| self.failed("listing the sysctls of the interfaces", error))?;
            let names = interfaces.filter_map(|folder| folder.ok()?.file_name().into_string().ok());
            let names = names.filter(|name| !NO_INTERFACES.contains(&name.as_str()));
            keys.extend(names.map(|name| format!("{CONF_IPV4}/{name}/forwarding")));
        }
        if has(true) {
            keys.push(FORWARDING_IPV6.to_owned());
        }
        for key in keys {
            let path = format!("/proc/sys/{key}");
            // A pod usually inherits the node's value of the sysctl, and cannot write the sysctl.
            // So a value of 1 is not written again.
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

/// Sets the addresses of a TUN interface that is up, and routes `routes` to it. Removes other
/// addresses except those of scope link.
///
/// # Errors
/// [`InterfaceError`].
pub(crate) fn assign(
    device: &str,
    addresses: &[Cidr],
    routes: &[Cidr],
) -> Result<(), InterfaceError> {
    let connected = Netlink::route();
    let mut netlink = connected.map_err(|error| failed(device, "opening netlink", error))?;
    let link = Link::named(&mut netlink, device);
    let link = link.map_err(|error| failed(device, "looking up the interface", error))?;
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

/// Deletes the TUN interface `device`, with its addresses and routes. Returns whether the interface
/// existed.
///
/// # Errors
/// [`InterfaceError`].
pub(crate) fn delete(device: &str) -> Result<bool, InterfaceError> {
    let connected = Netlink::route();
    let mut netlink = connected.map_err(|error| failed(device, "opening netlink", error))?;
    let link = Link::named(&mut netlink, device);
    let Some(link) = link.map_err(|error| failed(device, "looking up the interface", error))?
    else {
        return Ok(false);
    };
    if !link.is_tun {
        return Err(InterfaceError::NotTun(device.to_owned()));
    }
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    let deleted = netlink.request(RouteNetlinkMessage::DelLink(message), 0);
    deleted.map_err(|error| failed(device, "deleting the interface", error))?;
    forwarding::remove(device)
        .map_err(|error| failed(device, "deleting the nftables table", error))?;
    Ok(true)
}

fn failed(device: &str, what: impl Into<String>, error: io::Error) -> InterfaceError {
    InterfaceError::System {
        device: device.to_owned(),
        what: what.into(),
        error,
    }
}

/// Creates the TUN driver's node if the path does not exist.
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
    // mknod(2) clears the bits of the umask.
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
