//! The admin thread: the admin port, the configuration file, credentials, and signals.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::{Config, Drain, Reloadable, Role, Security};
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio::time::Instant;

use super::admin::AdminHosts;
use super::signals::Signals;
use crate::base::files::FollowedFiles;
use crate::base::telemetry::Telemetry;
use crate::base::unwind::caught;
use crate::io::security::{self, Credentials};
use crate::observe::carrier_sampler;
use crate::roles::worker::Phase;

/// Maximum time for which clients that arrive keep the ports open, if the deadline is more than twice
/// as late.
const ACCEPT_MOST: Duration = Duration::from_secs(30);

/// The work of the admin thread.
pub(super) struct Control {
    pub(super) role: Role,
    pub(super) drain: Drain,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) reloadable: watch::Sender<Arc<Reloadable>>,
    pub(super) credentials: watch::Sender<Arc<Credentials>>,
    pub(super) credential_files: FollowedFiles,
    /// The credentials of the SSH listener of an exit whose `protocol` is not SSH.
    pub(super) ssh: Option<(watch::Sender<Arc<Credentials>>, Security, FollowedFiles)>,
    pub(super) telemetry: Arc<Telemetry>,
}

impl Control {
    /// Runs until the process ends. `file` is the configuration file, with the text that was read
    /// at the start.
    ///
    /// If the thread fails, the process stops: without this thread, it would take no signal, and its
    /// admin port would not answer.
    pub(super) fn run(
        self,
        listener: Option<(std::net::TcpListener, AdminHosts)>,
        file: Option<(PathBuf, Config, String)>,
    ) {
        let phase = self.phase.clone();
        if let Err(panic) = caught(|| self.work(listener, file)) {
            tracing::error!(
                panic,
                "The admin thread failed by a fault of this gateway; stopping"
            );
            phase.send_replace(Phase::Deadline);
        }
    }

    fn work(
        self,
        listener: Option<(std::net::TcpListener, AdminHosts)>,
        file: Option<(PathBuf, Config, String)>,
    ) {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "Cannot start the runtime of the admin thread; stopping");
                self.phase.send_replace(Phase::Deadline);
                return;
            }
        };
        runtime.block_on(async {
            let admin = async {
                match listener {
                    Some((listener, hosts)) => {
                        tokio::join!(
                            self.serve(listener, hosts),
                            carrier_sampler::follow(&self.telemetry)
                        );
                    }
                    None => std::future::pending().await,
                }
            };
            let follow = async {
                match file {
                    Some((path, config, text)) => {
                        let (reloadable, telemetry) = (&self.reloadable, &self.telemetry);
                        super::reload::follow(&path, config, text, reloadable, telemetry).await;
                    }
                    None => std::future::pending().await,
                }
            };
            let credentials = security::follow(
                self.role,
                self.reloadable.subscribe(),
                self.credential_files.clone(),
                &self.credentials,
                &self.telemetry,
            );
            let ssh = async {
                if let Some((credentials, security, files)) = &self.ssh {
                    let states = &self.telemetry.files;
                    let security = (security, self.role);
                    security::follow_files(security, files.clone(), credentials, states).await;
                }
            };
            tokio::join!(
                admin,
                follow,
                credentials,
                ssh,
                super::other_files::follow(self.reloadable.subscribe(), &self.telemetry.files),
                self.hear_signals()
            );
        });
    }

    async fn serve(&self, listener: std::net::TcpListener, hosts: AdminHosts) {
        match super::admin::serve(listener, hosts, Arc::clone(&self.telemetry)).await {
            Ok(never) => match never {},
            Err(error) => {
                tracing::error!(%error, "The admin port failed; stopping");
                self.phase.send_replace(Phase::Deadline);
            }
        }
    }

    /// SIGTERM drains the gateway. SIGINT or a second SIGTERM ends the process at once. SIGUSR1 has
    /// no effect, because scripts send it to other programs to make them reopen their logs.
    async fn hear_signals(&self) {
        let mut terminate = Signals::install(SignalKind::terminate());
        let mut interrupt = Signals::install(SignalKind::interrupt());
        let _ignored = Signals::install(SignalKind::user_defined1());
        tokio::select! {
            () = interrupt.next() => {}
            () = terminate.next() => {
                tokio::select! {
                    () = self.drain() => {}
                    () = terminate.next() => {}
                    () = interrupt.next() => {}
                }
            }
        }
        self.phase.send_replace(Phase::Deadline);
    }

    async fn drain(&self) {
        let accept = Duration::from_secs(self.drain.accept_seconds.into());
        let deadline = Duration::from_secs(self.drain.deadline_seconds.into());
        tracing::info!(?accept, ?deadline, "Draining");
        self.telemetry.set_draining();
        let begun = Instant::now();
        self.phase.send_replace(Phase::Draining);
        let most = begun + accept.max(ACCEPT_MOST.min(deadline / 2));
        // Nodes and load balancers may still send connections here.
        tokio::select! {
            () = quiet_for(accept, || self.telemetry.arrival()) => {}
            () = tokio::time::sleep_until(most) => {}
        }
        self.phase.send_replace(Phase::Closed);
        tokio::time::sleep_until(begun + deadline).await;
    }
}

/// Waits until no arrival has occurred for `quiet`.
async fn quiet_for<A: Future<Output = ()>>(quiet: Duration, arrival: impl Fn() -> A) {
    while tokio::time::timeout(quiet, arrival()).await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ports_stay_open_until_nothing_has_arrived_for_a_while() {
        let (arrivals, quiet) = (Notify::new(), Duration::from_secs(5));
        let begun = Instant::now();
        let clients = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(4)).await;
                arrivals.notify_one();
            }
        };
        tokio::join!(clients, quiet_for(quiet, || arrivals.notified()));
        assert_eq!(begun.elapsed(), Duration::from_secs(17));
        quiet_for(Duration::ZERO, || arrivals.notified()).await;
    }
}
