//! What a session does once its peer, or the target of a stream, is trusted no more.

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
    /// Applies `standing` to what the other end of each link has proved. A link whose proof is not accepted any more ends
    /// with its streams; one whose certificate has expired drains, since its streams cannot go on over another.
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

    /// Takes no more streams, and ends with the last one that is open.
    fn drain_expired(self: &Rc<Self>) {
        let links = self.all_links();
        if links.iter().all(|member| member.state() == State::Leaving) {
            return;
        }
        let peer = self.peer();
        tracing::info!(%peer, "The peer's certificate has expired: its session takes no more streams and drains");
        self.advance(Progress::GoingAway);
        links.iter().for_each(|member| self.take_no_more(member));
        let bridge = Rc::clone(self);
        tokio::task::spawn_local(async move {
            bridge.idle().await;
            bridge.end(SessionEnd::ShutDown);
        });
    }

    /// Cuts the open streams whose target, as it was written and as it was dialled, is `denied`.
    pub(super) fn cut_denied(&self, denied: &dyn Fn(&str, &LocalAddress) -> bool) {
        for io in self.all_streams() {
            let dialled = io.account.dialled();
            if dialled.is_some_and(|(target, address)| denied(target, address)) {
                io.abandon(Reason::Denied, None);
            }
        }
    }
}
