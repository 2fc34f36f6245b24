//! Shared parts of the HTTP servers of runner and agents: the token check, errors as JSON, the
//! bound on request bodies, and the end at SIGTERM.

use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use muxtunnel_bench_api::ErrorBody;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::token::Admission;

/// Maximum number of bytes of a request. An environment has less than 4 KiB.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// An HTTP answer that reports an error.
#[derive(Debug)]
pub struct Refusal(pub StatusCode, pub String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, axum::Json(ErrorBody { error: self.1 })).into_response()
    }
}

/// Adds the token check to `routes`, and `/healthz` without the check.
pub fn guarded(routes: Router, admission: Admission) -> Router {
    let admission = Arc::new(admission);
    let check = move |request: Request, next: Next| {
        let admission = Arc::clone(&admission);
        async move {
            let offered = request.headers().get(header::AUTHORIZATION);
            if admission.admits(offered.map(http::HeaderValue::as_bytes)) {
                next.run(request).await
            } else {
                let words = "the bearer token is missing, or is not the token of this benchmark";
                Refusal(StatusCode::UNAUTHORIZED, words.into()).into_response()
            }
        }
    };
    routes
        .layer(middleware::from_fn(check))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .route("/healthz", get(|| async { "ok\n" }))
}

/// Listens on `address` (`addr:port`). `[::]` means all addresses of both families, or of IPv4 if
/// the kernel has no IPv6.
///
/// # Errors
/// If the process cannot listen on the address. The error names the address.
pub async fn listen(address: &str) -> anyhow::Result<TcpListener> {
    let listen = async {
        match address.strip_prefix("[::]:") {
            Some(port) => match TcpListener::bind(address).await {
                Ok(listener) => Ok(listener),
                Err(_) => TcpListener::bind(format!("0.0.0.0:{port}")).await,
            },
            None => TcpListener::bind(address).await,
        }
    };
    listen
        .await
        .with_context(|| format!("cannot listen on {address}"))
}

/// Completes at SIGTERM or SIGINT. The first process of a container ignores signals without a
/// handler.
///
/// # Errors
/// If the handlers cannot be installed.
pub async fn asked_to_end() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
