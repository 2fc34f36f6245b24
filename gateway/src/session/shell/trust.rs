//! Ends carriers and streams once their peer or target is no longer trusted.
//!
//! The verifier of proofs ([`crate::io::security`]) and the authorizer of targets
//! ([`crate::net::policy`]) decide whom to trust. This module applies their decisions.

use std::rc::Rc;

use muxtunnel_codes::Code;

use super::{Engine, Shell};
use crate::base::closing::Reason;
use crate::io::local_socket::LocalAddress;
use crate::io::proof::{Proof, Standing};
use crate::session::end::SessionEnd;

impl<E: Engine> Shell<E> {
    /// Implements [`Mux::verify_again`](crate::session::mux::Mux::verify_again). If a proof is no
    /// longer accepted, its carrier ends at once, and the session continues if it has or gets a
    /// valid carrier. If the peer is revoked, the session ends with its streams. If the peer's
    /// certificate has expired and streams cannot move to another carrier, the session drains.
    pub(super) fn verify_again(self: &Rc<Self>, standing: &dyn Fn(&Proof) -> Standing) {
        // All carriers have one identity.
        if let Some(Standing::Revoked(reason)) = self.carriers.proof().as_ref().map(standing) {
            self.telemetry.streams.refused(Code::PeerRevoked);
            return self.end(SessionEnd::Revoked(reason));
        }
        let carriers = self.carriers.all();
        let running = carriers.iter().filter(|carrier| carrier.is_running());
        let proved = running.filter_map(|carrier| Some((carrier, standing(carrier.proof()?))));
        let proved: Vec<_> = proved.collect();
        for (carrier, standing) in proved {
            match standing {
                Standing::Good => {}
                Standing::Expired if E::resumes(self) => {
                    let reason = "the peer's certificate has expired";
                    carrier.distrust(SessionEnd::GivenUp(reason.to_owned()));
                }
                Standing::Expired => self.drain_expired(),
                Standing::Unverified(reason) | Standing::Revoked(reason) => {
                    self.telemetry.streams.refused(Code::PeerRevoked);
                    carrier.distrust(SessionEnd::Revoked(reason));
                }
            }
        }
    }

    /// Stops taking streams. The session ends with its last open stream.
    fn drain_expired(self: &Rc<Self>) {
        if self.has_expired.replace(true) {
            return;
        }
        let peer = self.peer();
        tracing::info!(%peer, "The peer's certificate has expired, so the session takes no further streams and drains");
        self.leave();
        E::go_away(self);
        let shell = Rc::clone(self);
        tokio::task::spawn_local(async move {
            shell.idle().await;
            shell.end(SessionEnd::ShutDown);
        });
    }

    /// Implements [`Mux::cut_denied`](crate::session::mux::Mux::cut_denied).
    pub(super) fn cut_denied(self: &Rc<Self>, denied: &dyn Fn(&str, &LocalAddress) -> bool) {
        for io in self.streams.all() {
            let dialled = io.account.dialled();
            if dialled.is_some_and(|(target, address)| denied(target, address)) {
                E::abandon(self, &io, Reason::Denied, None);
            }
        }
    }
}
