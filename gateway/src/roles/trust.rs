//! Ends sessions and streams that the configuration or the credentials no longer permit.
//!
//! If a peer is revoked, its session ends at once. If a deny rule now forbids the target of a
//! stream, the stream ends at once. If a forward or an allow rule is removed, the streams that it
//! admitted continue. The operator derives allow rules from forwards, so otherwise an edit of a
//! forward would cut streams.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::Reloadable;
use rustls::pki_types::UnixTime;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::io::proof::Proof;
use crate::io::security::Credentials;
use crate::io::transport::Side;
use crate::net::dial::is_denied;
use crate::net::policy::Authorizer;
use crate::net::protected_addresses::ProtectedAddresses;
use crate::session::mux::Mux;

/// Interval between checks for expired certificates and peers.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Applies each change of `reloadable` and `credentials` to a worker's `sessions`. `side`: whether
/// this side dialled or accepted the carriers of the sessions. Never returns.
pub(crate) async fn follow(
    sessions: impl Fn() -> Vec<Rc<dyn Mux>>,
    side: Side,
    mut reloadable: watch::Receiver<Arc<Reloadable>>,
    mut credentials: watch::Receiver<Arc<Credentials>>,
    protected: &ProtectedAddresses,
) {
    let mut expiry = tokio::time::interval(EXPIRY_CHECK_INTERVAL);
    expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = expiry.tick() => {
                let (now, credentials) = (UnixTime::now(), Arc::clone(&credentials.borrow()));
                let standing = |proof: &Proof| credentials.standing_in_time(proof, now);
                for session in sessions() {
                    session.verify_again(&standing);
                }
            }
            Ok(()) = reloadable.changed() => {
                let in_force = Arc::clone(&reloadable.borrow_and_update());
                for session in sessions() {
                    let peer = session.identity();
                    let authorizer =
                        Authorizer::of_exit(&in_force, protected, peer.as_deref());
                    session.cut_denied(&|target, address| is_denied(target, address, authorizer));
                }
            }
            Ok(()) = credentials.changed() => {
                let credentials = Arc::clone(&credentials.borrow_and_update());
                for session in sessions() {
                    session.verify_again(&|proof| credentials.standing(proof, side));
                }
            }
        }
    }
}
