//! `muxbench agent`: one end of a measured path.
//!
//! The agent receives requests ([`muxtunnel_bench_api::agent`]) and returns the figures of iperf
//! and of the probes. It owns the echo port, and at most one iperf server and one iperf client at a
//! time. The runner decides which runs take place, and judges the figures.

mod echo;
mod info;
mod iperf_client;
mod iperf_server;
mod lines;
mod listening;
mod process;
mod rtt;

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use muxtunnel_bench_api::agent::{
    ClientReport, ClientRun, Info, RttProbe, RttReport, ServerReport, ServerStart, ServerStop,
};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::serve::{Refusal, guarded};
use crate::token::{Admission, Token};
use iperf_server::IperfServer;

/// One end of a measured path, which runs iperf at request.
pub struct Agent {
    /// Listener for requests.
    pub http: TcpListener,
    /// Listener of the echo port.
    pub echo: TcpListener,
    /// The token that requests must have.
    pub token: Token,
    /// The iperf 2 program.
    pub iperf: PathBuf,
}

struct Shared {
    iperf: PathBuf,
    info: Info,
    server: Mutex<Option<IperfServer>>,
    /// Held while a client runs, because two concurrent clients would disturb each other.
    client: Mutex<()>,
}

impl Agent {
    /// Serves until cancelled.
    ///
    /// # Errors
    /// If iperf is missing or is not version 2, or a listener fails.
    pub async fn serve(self) -> anyhow::Result<()> {
        let info = info::read(&self.iperf).await?;
        let shared = Arc::new(Shared {
            iperf: self.iperf,
            info,
            server: Mutex::new(None),
            client: Mutex::new(()),
        });
        let routes = Router::new()
            .route("/v1/info", get(tell_info))
            .route("/v1/server/start", post(start_server))
            .route("/v1/server/stop", post(stop_server))
            .route("/v1/client", post(run_client))
            .route("/v1/rtt", post(probe_rtt))
            .with_state(shared);
        let http = axum::serve(self.http, guarded(routes, Admission::Token(self.token)));
        tokio::select! {
            result = async { http.await } => Ok(result?),
            result = echo::serve(self.echo) => result,
        }
    }
}

/// Turns an error into an answer with `status`: 400 for an invalid request, 500 for a failure of
/// the agent.
fn refuse(status: StatusCode) -> impl Fn(anyhow::Error) -> Refusal {
    move |error| Refusal(status, format!("{error:#}"))
}

async fn tell_info(State(shared): State<Arc<Shared>>) -> Json<Info> {
    Json(shared.info.clone())
}

async fn start_server(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<ServerStart>,
) -> Result<StatusCode, Refusal> {
    let mut server = shared.server.lock().await;
    // The old server ends first, because the request may need its port.
    if let Some(old) = server.take() {
        old.end().await;
    }
    let new = IperfServer::start(&shared.iperf, &request).await;
    *server = Some(new.map_err(refuse(StatusCode::INTERNAL_SERVER_ERROR))?);
    Ok(StatusCode::NO_CONTENT)
}

async fn stop_server(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<ServerStop>,
) -> Result<Json<ServerReport>, Refusal> {
    match shared.server.lock().await.take() {
        Some(server) => Ok(Json(server.stop(&request).await)),
        None => Err(Refusal(
            StatusCode::CONFLICT,
            "no iperf server is running".into(),
        )),
    }
}

async fn run_client(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<ClientRun>,
) -> Result<Json<ClientReport>, Refusal> {
    iperf_client::check(&request).map_err(refuse(StatusCode::BAD_REQUEST))?;
    let Ok(_alone) = shared.client.try_lock() else {
        return Err(Refusal(
            StatusCode::CONFLICT,
            "an iperf client is already running".into(),
        ));
    };
    let report = iperf_client::run(&shared.iperf, &request).await;
    report
        .map(Json)
        .map_err(refuse(StatusCode::INTERNAL_SERVER_ERROR))
}

async fn probe_rtt(Json(request): Json<RttProbe>) -> Result<Json<RttReport>, Refusal> {
    let report = rtt::probe(&request).await;
    report
        .map(Json)
        .map_err(refuse(StatusCode::INTERNAL_SERVER_ERROR))
}
