//! The API server on a loopback port, for an operator in a separate process, with the status of the
//! gateways in its pods.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use muxtunnel_gateway_config::status::Status;
use tokio::net::TcpListener;

use super::FakeApi;
use super::kubelet::Healthy;
use crate::tunnel_controller::observe::Gateways;

/// The addresses of the gateways that were asked.
static ASKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The addresses of the gateways that were asked since the last call.
pub(crate) fn take_asked() -> Vec<String> {
    std::mem::take(&mut *ASKED.lock().unwrap())
}

/// Serves while the runtime lives. A gateway's status is at `/gateways/ADDRESS`.
pub(crate) async fn listen(api: &FakeApi) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/gateways/{address}", get(gateway))
        .with_state(api.clone())
        .fallback_service(api.router());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

async fn gateway(
    State(api): State<FakeApi>,
    Path(address): Path<String>,
) -> Result<Json<Status>, (StatusCode, String)> {
    ASKED.lock().unwrap().push(address.clone());
    let status = Healthy(api).status(&address).await;
    status
        .map(Json)
        .map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error))
}
