//! The queues of an interface: whether it was made for as many as its gateway opens, and whether that gateway alone has opened it.

use std::io;

use crate::io::netlink::Netlink;
use crate::net::interface::link::Link;
use crate::net::interface::{InterfaceError, failed};

/// Whether the interface `device`, where there is one, was made for so many queues.
///
/// # Errors
/// [`InterfaceError`] says what to do.
pub(crate) fn check_made_for(device: &str, queues: u16) -> Result<(), InterfaceError> {
    match find(device)? {
        Some(link) if link.is_tun => check(&link, device, queues),
        _ => Ok(()),
    }
}

/// The same of an interface that was found.
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

/// Whether the interface `device` has just those queues that this process has opened: so many that it reads, and as many that it
/// writes. The kernel shares out flows over the queues of all processes, so one that does not know of the other would lose some.
///
/// # Errors
/// [`InterfaceError`] says what to do.
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
    let asked = |error: io::Error| failed(device, "looking it up", error);
    let mut netlink = Netlink::route().map_err(asked)?;
    Link::named(&mut netlink, device).map_err(asked)
}
