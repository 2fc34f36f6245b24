//! One iperf server: started, read while it runs, ended.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use muxtunnel_bench_api::agent::{ServerReport, ServerStart, ServerStop};
use tokio::process::Child;
use tokio::sync::watch;

use super::lines::for_each_line;
use super::process;
use crate::iperf::Receiver;

/// Time for iperf to listen.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for streams to end.
const STOP_WAIT_SECONDS_MAX: u32 = 120;
/// Ports below are not ours to open.
const PORT_MIN: u16 = 1024;

pub(super) struct IperfServer {
    child: Child,
    receiver: watch::Receiver<Receiver>,
}

impl IperfServer {
    /// Starts iperf and returns when it listens.
    ///
    /// # Errors
    /// It cannot be started, or says that it cannot listen, or says nothing in time.
    pub(super) async fn start(iperf: &Path, request: &ServerStart) -> anyhow::Result<Self> {
        if request.port < PORT_MIN {
            bail!("port {} is below {PORT_MIN}", request.port);
        }
        let port = request.port.to_string();
        let (child, stdout, stderr) =
            process::start(iperf, &["-s", "-i", "1", "-f", "b", "-p", &port])?;
        let (sender, mut receiver) = watch::channel(Receiver::default());
        // The task ends with the process, whose outputs it reads.
        tokio::spawn(async move {
            let take = |line: &str| sender.send_modify(|receiver| receiver.handle_line(line));
            tokio::join!(for_each_line(stdout, take), for_each_line(stderr, take));
        });
        // Whether it settled, and how, is read from the state afterwards.
        let settled = receiver.wait_for(|r| r.is_listening() || r.bind_error().is_some());
        let in_time = tokio::time::timeout(LISTEN_TIMEOUT, settled).await.is_ok();
        let state = receiver.borrow().clone();
        if let Some(error) = state.bind_error() {
            bail!("iperf -s -p {}: {error}", request.port);
        }
        if !state.is_listening() {
            let how = if in_time {
                "ended at once"
            } else {
                "did not listen in time"
            };
            bail!("iperf -s -p {} {how}: {}", request.port, state.tail());
        }
        Ok(Self { child, receiver })
    }

    /// Waits for the streams to end, ends the server and gives what it received.
    pub(super) async fn stop(mut self, request: &ServerStop) -> ServerReport {
        let wait = Duration::from_secs(request.wait_s.min(STOP_WAIT_SECONDS_MAX).into());
        let streams = request.connections as usize;
        let ended = self
            .receiver
            .wait_for(|receiver| receiver.ended() >= streams);
        // Whether all ended in time is in the report: `ended`.
        let _ = tokio::time::timeout(wait, ended).await;
        let report = self.receiver.borrow().report();
        self.end().await;
        report
    }

    /// Ends the process and waits until its port is free.
    pub(super) async fn end(mut self) {
        // An error says that it has ended already.
        let _ = self.child.kill().await;
    }
}
