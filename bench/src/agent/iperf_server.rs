//! One iperf server: starts it, reads its output, and ends it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use muxtunnel_bench_api::agent::{ServerReport, ServerStart, ServerStop};
use tokio::process::Child;
use tokio::sync::watch;

use super::lines::for_each_line;
use super::{listening, process};
use crate::iperf::Receiver;

/// Time-out for iperf to listen.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Greatest time to wait until streams end, in seconds.
const STOP_WAIT_SECONDS_MAX: u32 = 120;
/// Time to wait for the line about datagrams out of order, which follows the total of a stream.
const LAST_LINE: Duration = Duration::from_millis(200);
/// Least port number. Lower ports need privileges.
const PORT_MIN: u16 = 1024;

pub(super) struct IperfServer {
    child: Child,
    receiver: watch::Receiver<Receiver>,
}

impl IperfServer {
    /// Starts iperf and returns when it listens.
    ///
    /// # Errors
    /// If iperf cannot be started, reports that it cannot listen, or does not listen in time.
    pub(super) async fn start(iperf: &Path, request: &ServerStart) -> anyhow::Result<Self> {
        if request.port < PORT_MIN {
            bail!("port is {}: expected {PORT_MIN} to 65535", request.port);
        }
        let port = request.port.to_string();
        let mut arguments = vec!["-s", "-i", "1", "-f", "b", "-p", &port];
        arguments.extend(request.udp.then_some("-u"));
        let (child, stdout, stderr) = process::start(iperf, &arguments)?;
        let (sender, mut receiver) = watch::channel(Receiver::default());
        // The task reads the outputs of the process, so it ends with the process.
        tokio::spawn(async move {
            let take = |line: &str| sender.send_modify(|receiver| receiver.handle_line(line));
            tokio::join!(for_each_line(stdout, take), for_each_line(stderr, take));
        });
        // The result is ignored, because the state below shows whether iperf listens or has failed.
        let settled = receiver.wait_for(|r| r.is_listening() || r.bind_error().is_some());
        let in_time = tokio::time::timeout(LISTEN_TIMEOUT, settled).await.is_ok();
        let state = receiver.borrow().clone();
        if let Some(error) = state.bind_error() {
            bail!("iperf -s -p {}: {error}", request.port);
        }
        let too_late = || format!("did not listen within {} s", LISTEN_TIMEOUT.as_secs());
        if !state.is_listening() {
            let how = if in_time {
                "ended at once".to_owned()
            } else {
                too_late()
            };
            bail!("iperf -s -p {} {how}: {}", request.port, state.tail());
        }
        if !request.udp {
            let listening = listening::until_listening(request.port);
            let Ok(read) = tokio::time::timeout(LISTEN_TIMEOUT, listening).await else {
                bail!("iperf -s -p {} {}", request.port, too_late());
            };
            read.context("the table of TCP sockets cannot be read")?;
        }
        Ok(Self { child, receiver })
    }

    /// Waits for the streams to end, ends the server and returns its figures.
    pub(super) async fn stop(mut self, request: &ServerStop) -> ServerReport {
        let wait = Duration::from_secs(request.wait_s.min(STOP_WAIT_SECONDS_MAX).into());
        let streams = request.connections as usize;
        let ended = self
            .receiver
            .wait_for(|receiver| receiver.ended() >= streams);
        // The report's `ended` shows whether all streams ended in time.
        let _ = tokio::time::timeout(wait, ended).await;
        if self.receiver.borrow().report().datagrams.is_some() {
            tokio::time::sleep(LAST_LINE).await;
        }
        let report = self.receiver.borrow().report();
        self.end().await;
        report
    }

    /// Ends the process and waits until its port is free.
    pub(super) async fn end(mut self) {
        // An error means that the process has already ended.
        let _ = self.child.kill().await;
    }
}
