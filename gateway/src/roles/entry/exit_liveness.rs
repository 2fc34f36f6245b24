//! Detects that the exit of a session without a carrier is gone for good. Its address does not answer, and its name
//! resolves only to other exits.
//!
//! An exit that vanishes says nothing: its pod was deleted without a grace period, or its node is lost. Either sign
//! alone is not enough: nobody answers behind a path that is cut for a while either, and a name leaves out an exit
//! that is not ready for a moment.

use std::future::pending;

use tokio::sync::watch;

use super::dial_context::DialContext;
use super::exits::is_ipv4;
use crate::net::egress::Address;
use crate::session::mux::{Mux, Progress};

/// Waits until the exit of the session is gone for good. `exit`: where it is dialled. `failures`: dials of further
/// carriers in a row that came to nothing; each is followed by one look at the name, if the session has no carrier.
/// Never ends where no name could tell: `exit` is a literal address, a name that is dialled as such since it resolves
/// to one exit, what a proxy looks up, a Unix socket, a command, or a rendezvous.
pub(super) async fn until_gone(
    mux: &dyn Mux,
    exit: &Address,
    failures: &mut watch::Receiver<u32>,
    dial_context: &DialContext,
) {
    let no_name = exit.ip().is_none() || dial_context.is_single(exit.name());
    if no_name || dial_context.leaf.is_some() {
        return pending().await;
    }
    loop {
        // It cannot fail: who dials holds the sender.
        let _ = failures.changed().await;
        if !is_lost(mux, failures) {
            continue;
        }
        // One that leads nowhere, or whose servers do not answer, says nothing of this exit.
        let Ok(found) = dial_context.addresses(exit.name()).await else {
            continue;
        };
        // It may have come back meanwhile.
        if leads_elsewhere(&found, exit) && is_lost(mux, failures) {
            return;
        }
    }
}

/// Whether the session has no carrier and could not be given another one. An exit that goes away in order has left
/// its name by itself: that says nothing of its streams.
fn is_lost(mux: &dyn Mux, failures: &watch::Receiver<u32>) -> bool {
    *failures.borrow() > 0 && mux.waits() && mux.progress() == Progress::Ready
}

/// Whether a name that resolves to `found` has other exits, and no longer `exit`. A look-up may bring the addresses of
/// one kind alone, so those of the other kind do not count.
fn leads_elsewhere(found: &[Address], exit: &Address) -> bool {
    let kind = is_ipv4(exit);
    let others = found.iter().any(|other| is_ipv4(other) == kind);
    others && !found.iter().any(|other| other.is_same(exit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_of_an_exit_only_where_it_leads_to_others_of_its_kind() {
        let resolved = |ip: &str| Address::resolved("exit.example.com:1", ip.parse().unwrap());
        let exit = resolved("10.0.0.1:1");
        for (found, elsewhere) in [
            (&["10.0.0.2:1"][..], true),
            (&["[fd00::1]:1", "10.0.0.2:1"], true),
            (&["10.0.0.2:1", "10.0.0.1:1"], false),
            (&["10.0.0.1:1"], false),
            (&["[fd00::1]:1"], false),
            (&[], false),
        ] {
            let found: Vec<Address> = found.iter().map(|ip| resolved(ip)).collect();
            assert_eq!(leads_elsewhere(&found, &exit), elsewhere, "{found:?}");
        }
        let behind_a_proxy = [Address::unresolved("exit.example.com:1")];
        assert!(!leads_elsewhere(&behind_a_proxy, &exit));
    }
}
