//! The admin port: `/healthz`, `/readyz`, `/metrics` and `/status`.
//!
//! The port has its own thread and runtime. So a busy worker does not delay a probe, and a slow
//! scraper does not delay payload. No request changes the gateway or uses a worker.
//!
//! Bounds: [`CONNECTIONS_MAX`] connections with one request each, or fewer if the process may have
//! few open files. A further connection evicts the
//! oldest connection of the address with the most connections. [`TIMES`] bounds the time for the
//! head of a request and for the whole connection. [`HEAD_BYTES_MAX`] bounds the length of a head.

mod host;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::base::handshake_limiter::{EarlyDrop, HandshakeLimiter, Permit};
use crate::base::open_files::OpenFiles;
use crate::base::telemetry::Telemetry;
use crate::net::bind::ACCEPT_RETRY;
use crate::observe::metrics;
pub(super) use host::AdminHosts;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 64;
/// Timeouts of clients.
const TIMES: Times = Times {
    head: Duration::from_secs(5),
    connection: Duration::from_secs(30),
};
/// Maximum length of a request's head, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Timeouts of a client.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// Time until the head of the client's request is complete.
    head: Duration,
    /// Time from the start of the connection until the last byte of the response is sent.
    connection: Duration,
}

/// Serves until the process ends, for requests to an address, to `localhost` and to `hosts`.
///
/// # Errors
/// The system's error. The port then answers no request.
pub(crate) async fn serve(
    listener: std::net::TcpListener,
    hosts: AdminHosts,
    telemetry: Arc<Telemetry>,
) -> std::io::Result<Infallible> {
    serve_within(TIMES, listener, hosts, telemetry).await
}

async fn serve_within(
    times: Times,
    listener: std::net::TcpListener,
    hosts: AdminHosts,
    telemetry: Arc<Telemetry>,
) -> std::io::Result<Infallible> {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(serve_metrics))
        .route(
            "/status",
            get(|State(t): State<Arc<Telemetry>>| async move { Json(t.status()) }),
        )
        .with_state(telemetry)
        .layer(from_fn_with_state(hosts, host::check));
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connections = OpenFiles::of_process().for_admin(CONNECTIONS_MAX);
    let connections = HandshakeLimiter::new(connections, EarlyDrop::Off);
    loop {
        match listener.accept().await {
            Ok((tcp, client)) => {
                // With `EarlyDrop::Off`, `enter` drops no connection.
                if let Ok(permit) = connections.enter(Some(client.ip())) {
                    permit.excused();
                    tokio::spawn(answer(tcp, router.clone(), permit, times));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "Cannot accept a connection on the admin port; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Serves the request of one connection.
async fn answer(tcp: TcpStream, router: Router, mut permit: Permit, times: Times) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.head)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(tcp), TowerToHyperService::new(router));
    tokio::select! {
        // The gateway does not log clients that disconnect or do not send HTTP.
        _ = timeout(times.connection, connection) => {}
        () = permit.evicted() => {}
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

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::Config;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn admin(times: Times) -> std::net::SocketAddr {
        let yaml = "role: Exit\nsecurity: {mode: None}\nlisten: 127.0.0.1:1\n";
        let telemetry = Telemetry::new(&Config::from_yaml(yaml).unwrap(), "", 1, None);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let hosts = Arc::new(["gate.example.com".to_owned()]);
        tokio::spawn(serve_within(times, listener, hosts, telemetry));
        address
    }

    async fn get(address: std::net::SocketAddr) -> String {
        ask(address, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await
    }

    async fn ask(address: std::net::SocketAddr, request: &str) -> String {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut tcp = socket.connect(address).await.unwrap();
        tcp.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tcp.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn silent_connections_keep_nobody_out_and_are_bounded() {
        // Timeouts that do not expire during the test.
        let never = Duration::from_hours(1);
        let times = Times {
            head: never,
            connection: never,
        };
        let address = admin(times).await;
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = get(address).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("ok\n"),
            "{answer}"
        );
        // A further connection evicts the oldest connection.
        for tcp in &mut silent[..CONNECTIONS_MAX] {
            let ended = timeout(Duration::from_secs(60), tcp.read(&mut [0])).await;
            assert!(matches!(ended.unwrap(), Ok(0) | Err(_)));
        }
    }

    #[tokio::test]
    async fn a_web_page_whose_name_resolves_to_the_gateway_reads_nothing() {
        let address = admin(TIMES).await;
        for path in ["/status", "/metrics", "/readyz", "/healthz", "/other"] {
            for (request, status) in [
                (
                    format!("GET {path} HTTP/1.1\r\nHost: evil.example:64001\r\n\r\n"),
                    "421",
                ),
                (
                    format!("GET http://evil.example{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
                    "421",
                ),
                (
                    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n"),
                    "400",
                ),
                (format!("GET {path} HTTP/1.1\r\n\r\n"), "400"),
            ] {
                let answer = ask(address, &request).await;
                assert!(
                    answer.starts_with(&format!("HTTP/1.1 {status} ")),
                    "{request}: {answer}"
                );
                assert!(!answer.contains("role"), "{answer}");
            }
        }
        for host in [
            "127.0.0.1",
            &address.to_string(),
            "[::1]:64001",
            "localhost",
            "gate.example.com:1",
        ] {
            let answer = ask(
                address,
                &format!("GET /status HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            )
            .await;
            assert!(
                answer.starts_with("HTTP/1.1 200 OK\r\n"),
                "{host}: {answer}"
            );
        }
        let answer = ask(address, "GET /healthz HTTP/1.0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn a_client_that_does_not_finish_its_request_is_ended_in_time() {
        let address = admin(TIMES).await;
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /healthz HTT").await.unwrap();
        let begun = tokio::time::Instant::now();
        let mut answer = Vec::new();
        let ended = timeout(4 * TIMES.head, slow.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "the connection is still open");
        assert!(begun.elapsed() >= TIMES.head, "{:?}", begun.elapsed());
    }
}
