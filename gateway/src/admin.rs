//! The admin port: `/healthz`, `/readyz`, `/metrics`, `/status`.
//!
//! Its own thread and runtime: a busy worker never delays a probe, and a slow scraper never delays a
//! byte. Read-only; reaches no socket but its own.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};

use crate::metrics;
use crate::telemetry::Telemetry;

/// Serves until the process ends.
pub(crate) async fn serve(listener: std::net::TcpListener, telemetry: Arc<Telemetry>) {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(serve_metrics))
        .route(
            "/status",
            get(|State(t): State<Arc<Telemetry>>| async move { Json(t.status()) }),
        )
        .with_state(telemetry);
    let served = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => axum::serve(listener, router).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        tracing::error!(%error, "The admin port failed");
    }
}

async fn readyz(State(telemetry): State<Arc<Telemetry>>) -> impl IntoResponse {
    if telemetry.ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: no carrier, or shutting down; see /status\n",
        )
    }
}

async fn serve_metrics(State(telemetry): State<Arc<Telemetry>>) -> impl IntoResponse {
    match metrics::render(telemetry) {
        Ok(text) => Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text)),
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}
