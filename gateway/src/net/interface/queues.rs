//! Checks the queues of an interface: their number, and that no other process has opened them.

use std::io;

use crate::io::netlink::Netlink;
use crate::net::interface::link::Link;
use crate::net::interface::{InterfaceError, failed};

/// Checks that the interface `device`, if it exists, was created for one or for several queues, as
/// `queues` requires.
///
/// # Errors
/// [`InterfaceError::OneQueue`] or [`InterfaceError::SeveralQueues`] if not.
pub(crate) fn check_made_for(device: &str, queues: u16) -> Result<(), InterfaceError> {
    match find(device)? {
        Some(link) if link.is_tun => check(&link, device, queues),
        _ => Ok(()),
    }
}

/// Works as [`check_made_for`], for an interface that was already looked up.
pub(super) fn check(link: &Link, device: &str, queues: u16) -> Result<(), InterfaceError> {
    match (link.has_several, queues > 1) {
        (false, true) => Err(InterfaceError::OneQueue {
            device: device.to_owned(),
            queues,
        }),
        (true, false) => Err(InterfaceError::SeveralQueues(device.to_owned())),
        _ => Ok(()),
    }
}

/// Checks that no other process has opened queues of the interface `device`. This process has
/// opened `queues` queues to read, and as many to write. The kernel distributes flows over the
/// queues of all processes, so another process would get some of the flows.
///
/// # Errors
/// [`InterfaceError::OpenElsewhere`] if another process has opened queues.
pub(crate) fn check_opened(device: &str, queues: u16) -> Result<(), InterfaceError> {
    let expected = u32::from(queues);
    match find(device)? {
        Some(link) if (link.queues, link.detached) != (expected, expected) => {
            Err(InterfaceError::OpenElsewhere {
                device: device.to_owned(),
                open: link.queues + link.detached,
                expected: 2 * expected,
            })
        }
        _ => Ok(()),
    }
}

fn find(device: &str) -> Result<Option<Link>, InterfaceError> {
    let asked = |error: io::Error| failed(device, "looking up the interface", error);
    let mut netlink = Netlink::route().map_err(asked)?;
    Link::named(&mut netlink, device).map_err(asked)
}
