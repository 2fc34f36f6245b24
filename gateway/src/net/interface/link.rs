//! The attributes of an interface that the kernel reports.

use std::io;

use netlink_packet_core::Nla;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use crate::io::netlink::Netlink;

/// Attributes of TUN interfaces (linux/if_link.h), which the netlink library does not name.
const IFLA_TUN_OWNER: u16 = 1;
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_PERSIST: u16 = 6;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_TUN_NUM_DISABLED_QUEUES: u16 = 9;
/// The value of `IFLA_TUN_TYPE` for TUN. TAP is 2 (`IFF_TAP`).
const IFF_TUN: u32 = 1;

/// A network interface.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) index: u32,
    /// Whether the interface is up, but the kernel still drops its packets.
    pub(super) is_starting: bool,
    /// Whether the interface is a TUN interface, and not a TAP interface.
    pub(super) is_tun: bool,
    /// Whether the interface remains after the last process has closed it.
    pub(super) is_persistent: bool,
    /// The user who may open the interface.
    pub(super) owner: Option<u32>,
    /// Whether the interface can have several queues.
    pub(super) has_several: bool,
    /// Number of open queues that receive packets. The number is 0 if the interface was created for
    /// one queue.
    pub(super) queues: u32,
    /// Number of open queues that receive no packets, because they are detached (`TUNSETQUEUE`).
    pub(super) detached: u32,
}

impl Link {
    /// Looks up an interface by name. Returns `None` if the interface does not exist.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(super) fn named(
        netlink: &mut Netlink<RouteNetlinkMessage>,
        name: &str,
    ) -> io::Result<Option<Self>> {
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        let answers = match netlink.request(RouteNetlinkMessage::GetLink(message), 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            answers => answers?,
        };
        let link = answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(Self::of(&link)),
            _ => None,
        });
        Ok(link)
    }

    fn of(message: &LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: message.header.index,
            is_starting: flags.contains(LinkFlags::Up) && !flags.contains(LinkFlags::Running),
            ..Self::default()
        };
        let infos = message
            .attributes
            .iter()
            .flat_map(|attribute| match attribute {
                LinkAttribute::LinkInfo(infos) => infos.as_slice(),
                _ => &[],
            });
        for info in infos {
            if let LinkInfo::Data(InfoData::Tun(attributes)) = info {
                attributes.iter().for_each(|attribute| link.take(attribute));
            }
        }
        link
    }

    fn take(&mut self, attribute: &impl Nla) {
        let mut bytes = vec![0; attribute.value_len()];
        attribute.emit_value(&mut bytes);
        let value = match (bytes[..].try_into(), &bytes[..]) {
            (Ok(four), _) => u32::from_ne_bytes(four),
            (_, [one]) => u32::from(*one),
            _ => return,
        };
        match attribute.kind() {
            IFLA_TUN_OWNER => self.owner = Some(value),
            IFLA_TUN_TYPE => self.is_tun = value == IFF_TUN,
            IFLA_TUN_PERSIST => self.is_persistent = value != 0,
            IFLA_TUN_MULTI_QUEUE => self.has_several = value != 0,
            IFLA_TUN_NUM_QUEUES => self.queues = value,
            IFLA_TUN_NUM_DISABLED_QUEUES => self.detached = value,
            _ => {}
        }
    }
}
