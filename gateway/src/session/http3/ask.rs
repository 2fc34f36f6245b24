//! A request of the peer's.

use std::rc::Rc;
use std::time::Duration;

use http::{Response, StatusCode};
use muxtunnel_proto::{Outcome, Refusal};
use quinn::VarInt;

use super::frame::{self, Cut, Frame, Frames};
use super::message::{self, Asks, Malformed};
use super::qpack::{self, Unreadable};
use super::{Receiving, Sending, Shared, UNREADABLE, code};
use crate::session::bridge::link::{Ask, Sender};
use crate::session::connect::answer;
use crate::session::quic_streams::Broken;

/// How long the fields of a request may take, from their first byte.
const FIELDS_TIME_MAX: Duration = Duration::from_secs(5);
/// How long an answer that there is no stream may wait for credit.
const REFUSAL_MAX: Duration = Duration::from_secs(10);

/// A CONNECT that waits for its answer.
pub(crate) struct Asked {
    target: String,
    sender: Sending,
    receiver: Receiving,
    shared: Rc<Shared>,
}

/// Why a request is none that waits for an answer.
enum NotAsked {
    /// The peer took it back.
    Cancelled,
    /// It is answered by this status, and what else comes is not read.
    Answered(StatusCode, VarInt),
    /// It has not come as a whole.
    Incomplete,
    Broken(Broken),
}

impl From<Cut> for NotAsked {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Peer(_) | Cut::Connection(_) => Self::Cancelled,
            Cut::TooLong => TOO_LARGE,
            Cut::Broken(broken) => Self::Broken(broken),
        }
    }
}

impl From<Unreadable> for NotAsked {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::TooLarge => TOO_LARGE,
            Unreadable::Malformed => Self::Broken(UNREADABLE),
        }
    }
}

impl From<Malformed> for NotAsked {
    fn from(_: Malformed) -> Self {
        Self::Answered(StatusCode::BAD_REQUEST, code::MESSAGE_ERROR)
    }
}

const TOO_LARGE: NotAsked = NotAsked::Answered(
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    code::EXCESSIVE_LOAD,
);

impl Asked {
    /// What a new stream asks for; `None`: nothing that is left to be answered.
    pub(super) async fn read(
        (mut sender, mut receiver): (Sending, Receiving),
        shared: Rc<Shared>,
    ) -> Option<Self> {
        match target(&mut receiver, &shared).await {
            Ok(target) => {
                return Some(Self {
                    target,
                    sender,
                    receiver,
                    shared,
                });
            }
            Err(NotAsked::Cancelled) => shared.traffic.taken_back(),
            Err(NotAsked::Answered(status, code)) => {
                answer_with(sender, receiver, &answer::status(status), code);
            }
            Err(NotAsked::Incomplete) => {
                sender.reject(code::REQUEST_INCOMPLETE);
                receiver.reject(code::REQUEST_INCOMPLETE);
            }
            Err(NotAsked::Broken(broken)) => shared.traffic.break_off(broken),
        }
        None
    }
}

/// Where a request is to lead.
async fn target(receiver: &mut Receiving, shared: &Shared) -> Result<String, NotAsked> {
    let mut frames = Frames::new(&shared.budget);
    let frame = tokio::time::timeout(FIELDS_TIME_MAX, frames.next(receiver.stream())).await;
    let fields = match frame.map_err(|_| NotAsked::Incomplete)?? {
        Some(Frame { kind, body }) if kind == frame::HEADERS => body,
        Some(_) => {
            let problem = "a request that does not begin with its fields";
            return Err(NotAsked::Broken(frame::unexpected(problem)));
        }
        None => return Err(NotAsked::Incomplete),
    };
    match message::request(qpack::decode(&fields)?)? {
        Asks::Tunnel(target) => Ok(target),
        Asks::Nothing(status) => Err(NotAsked::Answered(status, code::NO_ERROR)),
    }
}

/// Answers a request for good; `code`: why nothing more of it is read.
fn answer_with(mut sender: Sending, mut receiver: Receiving, answer: &Response<()>, code: VarInt) {
    let answer = message::push_answer(answer);
    drop(tokio::task::spawn_local(async move {
        let said = tokio::time::timeout(REFUSAL_MAX, sender.say(answer)).await;
        if let Ok(Ok(())) = said {
            // A peer that has gone needs no answer.
            let _ = sender.finish();
        }
        receiver.reject(code);
    }));
}

impl Ask for Asked {
    type Sender = Sending;
    type Receiver = Receiving;

    fn target(&self) -> &str {
        &self.target
    }

    fn accept(mut self, address: &str) -> Result<(Sending, Receiving), Outcome> {
        let answer = message::push_answer(&answer::granted(address));
        self.sender.say_soon(answer);
        Ok((self.sender, self.receiver))
    }

    fn refuse(self, refusal: &Refusal) {
        let answer = answer::refused(refusal);
        answer_with(self.sender, self.receiver, &answer, code::NO_ERROR);
    }

    /// A client that resets its own half alone is seen once its target is dialled: to wait for a reset (`received_reset`)
    /// leaves something behind in the library where the wait is dropped. Until then the stream counts as one of the client's.
    async fn abandoned(&mut self) {
        self.sender.stopped().await;
        self.shared.traffic.taken_back();
    }
}
