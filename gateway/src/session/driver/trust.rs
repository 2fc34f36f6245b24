//! Ends carriers and streams once their peer or target is no longer trusted.
//!
//! The verifier of proofs ([`crate::io::security`]) and the authorizer of targets
//! ([`crate::net::policy`]) decide whom to trust. This module applies their decisions.

use std::rc::Rc;

use muxtunnel_codes::Code;
use muxtunnel_proto::Refusal;

use super::{Driver, SessionEnd};
use crate::base::closing::Reason;
use crate::io::local_socket::LocalAddress;
use crate::io::transport::{Proof, Standing};

impl Driver {
    /// Checks the proof of each carrier's peer against `standing`. If a proof is no longer
    /// accepted, its carrier ends at once, and the session continues if it gets a valid carrier. If
    /// the peer is revoked, the session ends with its streams. If the peer's certificate has
    /// expired and the session cannot resume, the session drains.
    pub(crate) fn verify_again(self: &Rc<Self>, standing: &dyn Fn(&Proof) -> Standing) {
        let latest = self.carriers.proof().as_ref().map(standing);
        // All carriers have one identity.
        if let Some(Standing::Revoked(reason)) = latest {
            self.telemetry.streams.refused(Code::PeerRevoked);
            return self.end(SessionEnd::Revoked(reason), None);
        }
        let carriers = self.carriers.all();
        let running = carriers.iter().filter(|carrier| carrier.is_running());
        let proved = running.filter_map(|carrier| Some((carrier, standing(carrier.proof()?))));
        let proved: Vec<_> = proved.collect();
        for (carrier, standing) in proved {
            match standing {
                Standing::Good => {}
                Standing::Expired if self.resumes() => {
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
        self.go_away();
        let driver = Rc::clone(self);
        tokio::task::spawn_local(async move {
            driver.idle().await;
            driver.shut_down();
        });
    }

    /// Why this side refuses further streams of the peer. Needed for JMUX only: the other protocols
    /// tell the peer that the session drains.
    pub(super) fn takes_none(&self) -> Option<Refusal> {
        let has_a_word = self.config.protocol.can().go_away;
        (!has_a_word && self.has_expired.get()).then(|| {
            let text = format!(
                "{}: the certificate of this session has expired",
                Code::Draining
            );
            Refusal::new(muxtunnel_proto::Reason::General, text)
        })
    }

    /// Resets the open streams whose target `denied` rejects. `denied` receives the target as
    /// configured and the address that was dialled.
    pub(crate) fn cut_denied(self: &Rc<Self>, denied: &dyn Fn(&str, &LocalAddress) -> bool) {
        for io in self.streams.all() {
            let dialled = io.account.dialled();
            if dialled.is_some_and(|(target, address)| denied(target, address)) {
                io.abandon(self, Reason::Denied, None);
            }
        }
    }
}
