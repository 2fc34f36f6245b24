//! The report of a session that has ended.

use std::borrow::Cow;

use muxtunnel_codes::Code;

use super::Entry;
use crate::net::egress::Address;
use crate::session::end::SessionEnd;
use crate::session::hello;
use crate::session::mux::Mux;

/// Why no session became ready. `refused`: why the exit refused this entry's key, if it did.
pub(super) fn reason(refused: Option<String>) -> Cow<'static, str> {
    refused.map_or(
        Cow::Borrowed("the session ended before it was ready"),
        Cow::Owned,
    )
}

/// Logs the end of a session with `exit`. Returns why the exit refused this entry's key, if it did.
pub(super) fn report(
    entry: &Entry,
    mux: &(dyn Mux + 'static),
    exit: &Address,
    end: SessionEnd,
) -> Option<String> {
    let code = Code::CarrierLost;
    match end {
        SessionEnd::Refused(reason) => {
            let code = Code::KeyRefused;
            entry.telemetry.streams.refused(code);
            tracing::warn!(%code, %exit, %reason, "The exit refused the carrier");
            return Some(format!("{code}: {reason}"));
        }
        SessionEnd::ShutDown => {
            tracing::info!(%exit, peer = %mux.peer(), "Session shut down");
        }
        SessionEnd::Finished(_) if !mux.was_ready() => {
            tracing::info!(%exit, "The exit accepts no more sessions");
        }
        end if !mux.was_ready() => {
            let advice = hello::advice(entry.session.protocol);
            tracing::warn!(%code, %exit, reason = %end, advice, "Carrier ended before the exit sent its hello");
        }
        end => tracing::warn!(%code, %exit, reason = %end, "Carrier ended"),
    }
    None
}
