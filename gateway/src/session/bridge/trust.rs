//! Ends streams and links whose peer or target is no longer trusted.

use std::rc::Rc;

use muxtunnel_codes::Code;

use super::Bridge;
use super::link::Link;
use super::links::State;
use crate::base::closing::Reason;
use crate::io::local_socket::LocalAddress;
use crate::io::transport::{Proof, Standing};
use crate::session::end::SessionEnd;
use crate::session::mux::Progress;

impl<L: Link> Bridge<L> {
    /// Checks the proof of each link's peer against `standing`. If a proof is no longer accepted,
    /// the link and its streams end. If the certificate of a link's peer has expired, the session
    /// drains, since streams cannot move to another link.
    pub(super) fn verify_again(self: &Rc<Self>, standing: &dyn Fn(&Proof) -> Standing) {
        // All links have one identity.
        if let Some(Standing::Revoked(reason)) = self.proof().as_ref().map(standing) {
            self.telemetry.streams.refused(Code::PeerRevoked);
            return self.end(SessionEnd::Revoked(reason));
        }
        for member in self.all_links() {
            match member.proof().map(standing) {
                None | Some(Standing::Good) => {}
                Some(Standing::Expired) => self.drain_expired(),
                Some(Standing::Unverified(reason) | Standing::Revoked(reason)) => {
                    self.telemetry.streams.refused(Code::PeerRevoked);
                    member.distrust(SessionEnd::Revoked(reason));
                }
            }
        }
    }

    /// Stops taking streams. The session ends with its last open stream.
    fn drain_expired(self: &Rc<Self>) {
        let links = self.all_links();
        if links.iter().all(|member| member.state() == State::Leaving) {
            return;
        }
        let peer = self.peer();
        tracing::info!(%peer, "The peer's certificate has expired, so the session takes no further streams and drains");
        self.advance(Progress::GoingAway);
        links.iter().for_each(|member| self.take_no_more(member));
        let bridge = Rc::clone(self);
        tokio::task::spawn_local(async move {
            bridge.idle().await;
            bridge.end(SessionEnd::ShutDown);
        });
    }

    /// Cuts the open streams whose target `denied` rejects. `denied` receives the target as
    /// configured and the address that was dialled.
    pub(super) fn cut_denied(&self, denied: &dyn Fn(&str, &LocalAddress) -> bool) {
        for io in self.all_streams() {
            let dialled = io.account.dialled();
            if dialled.is_some_and(|(target, address)| denied(target, address)) {
                io.abandon(Reason::Denied, None);
            }
        }
    }
}
