//! Why a rendezvous refuses a connection or a visit.

use muxtunnel_codes::Code;
use muxtunnel_proto::Reason;
use muxtunnel_proto::rendezvous::Word;

use super::MEET_MAX;
use super::meeting::{Ended, VisitRefused};
use super::wire::write;
use crate::base::handshake_limiter::has_gone;
use crate::io::key_refusal::KeyRefusal;
use crate::io::transport::Transport;

/// A connection that was refused.
pub(super) struct HandshakeError {
    /// The identity of the leaf, if it has proved one.
    pub(super) name: String,
    pub(super) code: Code,
    pub(super) problem: String,
    /// Whether the attempt counts as failed, because of an unknown key, an invalid message or a
    /// timeout.
    pub(super) is_failure: bool,
}

impl HandshakeError {
    pub(super) fn failed(problem: impl ToString) -> Self {
        Self {
            name: String::new(),
            code: Code::MeetingRefused,
            problem: problem.to_string(),
            is_failure: true,
        }
    }

    pub(super) fn gone(problem: impl ToString) -> Self {
        Self {
            is_failure: false,
            ..Self::failed(problem)
        }
    }
}

impl From<std::io::Error> for HandshakeError {
    fn from(error: std::io::Error) -> Self {
        let code = KeyRefusal::code_of(&error).unwrap_or(Code::MeetingRefused);
        let failed = match has_gone(&error) {
            true => Self::gone(error),
            false => Self::failed(error),
        };
        Self { code, ..failed }
    }
}

/// Why two leaves did not meet.
pub(super) struct Missed {
    pub(super) code: Code,
    pub(super) reason: Reason,
    pub(super) problem: String,
}

impl Missed {
    pub(super) fn of(refused: VisitRefused) -> Self {
        Self {
            code: refused.code(),
            reason: refused.reason(),
            problem: refused.to_string(),
        }
    }

    pub(super) fn by(ended: &Ended) -> Self {
        let reason = match ended {
            Ended::NoMember(_) => Reason::NotAllowed,
            Ended::Share => Reason::General,
        };
        Self {
            code: ended.code(),
            reason,
            problem: ended.to_string(),
        }
    }
}

/// Sends the reason of a refusal. If the peer does not read in time, the connection closes without
/// the reason.
pub(super) async fn refuse(control: &dyn Transport, reason: Reason, text: &str) {
    let word = Word::Refused {
        code: reason.code() as u8,
        reason: format!("{}: {text}", Code::MeetingRefused),
    };
    let _ = tokio::time::timeout(MEET_MAX, write(control, &word)).await;
}
