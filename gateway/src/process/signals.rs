//! Signals of the process.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals of one kind. Their default action does not take place.
pub(super) struct Signals(Option<Signal>);

impl Signals {
    /// Installs the handler. If this fails, the log has the error, and no signal arrives.
    pub(super) fn install(kind: SignalKind) -> Self {
        let installed = signal(kind).inspect_err(|error| {
            tracing::error!(%error, ?kind, "Cannot install a signal handler; the signal has its default action");
        });
        Self(installed.ok())
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) {
        match &mut self.0 {
            // The stream of a signal does not end.
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }
}
