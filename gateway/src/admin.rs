//! The admin port: `/healthz`, `/readyz`, `/metrics`, `/status`, and of an entry `/offer`.
//!
//! Its own thread and runtime: a busy worker never delays a probe, and a slow scraper never delays a
//! byte. Changes nothing, and reaches no socket but its own; only `/offer` has a worker open a stream, one at a time
//! and of bounded length ([`crate::entry`]).

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};

use crate::entry::{NoOffer, Offers};
use crate::metrics;
use crate::telemetry::Telemetry;

/// Serves until the process ends. `offers`: an entry's.
pub(crate) async fn serve(
    listener: std::net::TcpListener,
    telemetry: Arc<Telemetry>,
    offers: Option<Arc<Offers>>,
) {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(serve_metrics))
        .route(
            "/status",
            get(|State(t): State<Arc<Telemetry>>| async move { Json(t.status()) }),
        )
        .route("/offer", get(serve_offer).with_state(offers))
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

/// What the exit offers, as it is.
async fn serve_offer(State(offers): State<Option<Arc<Offers>>>) -> impl IntoResponse {
    let Some(offers) = offers else {
        let line = "only an entry has sessions with exits that it could ask\n".to_owned();
        return Err((StatusCode::NOT_FOUND, line));
    };
    match offers.fetch().await {
        Ok(offer) => Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], offer)),
        Err(error) => Err((status_of(&error), format!("{error}\n"))),
    }
}

const fn status_of(error: &NoOffer) -> StatusCode {
    match error {
        NoOffer::Busy => StatusCode::TOO_MANY_REQUESTS,
        NoOffer::NoSession | NoOffer::NotOpened(_) | NoOffer::NoSocket(_) | NoOffer::GoingAway => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        NoOffer::Refused(_) | NoOffer::Abandoned | NoOffer::Cut { .. } | NoOffer::TooLong => {
            StatusCode::BAD_GATEWAY
        }
        NoOffer::TimedOut => StatusCode::GATEWAY_TIMEOUT,
    }
}
