//! One run of iperf between the agents of a path.

use std::time::Duration;

use anyhow::Context;
use muxtunnel_bench_api::agent::{ClientReport, ClientRun, ServerReport, ServerStart, ServerStop};
use muxtunnel_bench_api::runner::Pair;

use crate::http_client::Client;

/// Seconds for streams to end after the client has ended, while the gateways' buffers drain.
const DRAIN_SECONDS_MAX: u32 = 60;
/// Seconds for streams to end after an error of the client, when some streams may not exist.
const BROKEN_WAIT_SECONDS: u32 = 2;
/// Time for an agent to start iperf.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// Additional time-out of the requests of a run, after the seconds of the run.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(DRAIN_SECONDS_MAX as u64 + 30);

/// Starts the server, runs the client, stops the server. Returns both reports.
pub(super) async fn transfer(
    client: &Client,
    pair: &Pair,
    request: &ClientRun,
) -> anyhow::Result<(ClientReport, ServerReport)> {
    let start = ServerStart {
        port: pair.server_iperf_port,
        udp: request.udp.is_some(),
    };
    let url = format!("{}/v1/server/start", pair.server_url);
    client
        .post::<()>(&url, &start, START_TIMEOUT)
        .await
        .context("cannot start the iperf server")?;

    let deadline = Duration::from_secs(request.seconds.into()) + ANSWER_TIMEOUT;
    let url = format!("{}/v1/client", pair.client_url);
    let sent = client.post::<ClientReport>(&url, request, deadline).await;

    // The server is stopped even if the client failed, because otherwise its port would stay in
    // use.
    let all_sent = sent
        .as_ref()
        .is_ok_and(|report| report.complaints.is_empty());
    let wait_s = if all_sent {
        DRAIN_SECONDS_MAX
    } else {
        BROKEN_WAIT_SECONDS
    };
    let stop = ServerStop {
        connections: request.connections,
        wait_s,
    };
    let url = format!("{}/v1/server/stop", pair.server_url);
    let received = client
        .post::<ServerReport>(&url, &stop, ANSWER_TIMEOUT)
        .await;
    let sent = sent.context("cannot run the iperf client")?;
    let received = received.context("cannot stop the iperf server")?;
    Ok((sent, received))
}

/// The error lines of the client as the cause of missing figures.
pub(super) fn complaints(sent: &ClientReport) -> String {
    match sent.complaints.as_slice() {
        [] => "no usable figures".to_owned(),
        complaints => format!("the iperf client reports: {}", complaints.join("; ")),
    }
}
