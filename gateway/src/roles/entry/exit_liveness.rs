//! Detects that the exit of a session without a carrier is permanently gone: its address does not
//! answer, and its name resolves only to other exits.
//!
//! An exit may disappear without notice, for example if its pod is deleted without a grace period
//! or its node is lost. Both signs are necessary. The address of an exit behind an interrupted path
//! also does not answer, and a name temporarily omits an exit that is not ready.

use std::future::pending;

use tokio::sync::watch;

use super::dial_context::DialContext;
use crate::net::egress::Address;
use crate::session::mux::{Mux, Progress};

/// Waits until the exit of the session is permanently gone. `exit` is the dialled address.
/// `failures` is the number of consecutive failed dials of further carriers. After each failure,
/// the name is resolved once if the session has no carrier. The function never returns if `exit` is
/// a literal address, a Unix socket, a command or a rendezvous. It also never returns for a name
/// with one exit, which each dial resolves again, and for a name that a proxy resolves.
pub(super) async fn until_gone(
    mux: &dyn Mux,
    exit: &Address,
    failures: &mut watch::Receiver<u32>,
    dial_context: &DialContext,
) {
    if exit.ip().is_none() || dial_context.is_single(exit) {
        return pending().await;
    }
    loop {
        // The caller holds the sender, so the wait cannot fail.
        let _ = failures.changed().await;
        if !is_lost(mux, failures) {
            continue;
        }
        // A name that does not resolve, or whose name servers do not answer, is no sign that this
        // exit is gone.
        let Ok(found) = dial_context.addresses_of(exit).await else {
            continue;
        };
        // A carrier may have been established in the meantime.
        if leads_elsewhere(&found, exit) && is_lost(mux, failures) {
            return;
        }
    }
}

/// Whether the session has no carrier, redialling failed, and the exit has not shut down in order.
/// After an orderly shutdown, the name also no longer resolves to the exit. But the session does
/// not count as lost, because its streams may be alive.
fn is_lost(mux: &dyn Mux, failures: &watch::Receiver<u32>) -> bool {
    *failures.borrow() > 0 && mux.waits() && mux.progress() == Progress::Ready
}

/// Whether a name that resolves to `found` has other exits and no longer includes `exit`. A look-up
/// may return the addresses of one family only, so the function ignores addresses of the other
/// family.
fn leads_elsewhere(found: &[Address], exit: &Address) -> bool {
    let kind = exit.is_ipv4();
    let others = found.iter().any(|other| other.is_ipv4() == kind);
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
