//! Checks the queues of an interface: their number, that no other process has opened them, and that
//! they get packets.

use std::io;
use std::time::Duration;

use crate::io::netlink::Netlink;
use crate::net::interface::link::Link;
use crate::net::interface::{InterfaceError, failed};

/// How long the kernel may take to start an interface.
const START_MAX: Duration = Duration::from_secs(5);
/// Time between two looks at an interface that starts.
const START_EVERY: Duration = Duration::from_millis(1);

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

/// Waits until the kernel passes packets to the queues of the interface `device`, for at most
/// [`START_MAX`]. When a process opens the first queue, the kernel starts the interface in the
/// background (linkwatch), and until then drops all packets without a trace. Does not wait for an
/// interface that is down.
///
/// # Errors
/// [`InterfaceError`]: the interface cannot be looked up.
pub(crate) fn await_start(device: &str) -> Result<(), InterfaceError> {
    let mut find = finder(device)?;
    for _ in 0..START_MAX.as_millis() / START_EVERY.as_millis() {
        if find()?.is_none_or(|link| !link.is_starting) {
            return Ok(());
        }
        std::thread::sleep(START_EVERY);
    }
    tracing::warn!(
        device,
        "The interface has no carrier or is dormant: the kernel drops its packets"
    );
    Ok(())
}

fn find(device: &str) -> Result<Option<Link>, InterfaceError> {
    finder(device)?()
}

/// Looks the interface up, again and again.
fn finder(
    device: &str,
) -> Result<impl FnMut() -> Result<Option<Link>, InterfaceError>, InterfaceError> {
    let asked = |error: io::Error| failed(device, "looking up the interface", error);
    let mut netlink = Netlink::route().map_err(asked)?;
    Ok(move || Link::named(&mut netlink, device).map_err(asked))
}
