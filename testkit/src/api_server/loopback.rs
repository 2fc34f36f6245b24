//! The server over HTTP, for another process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use axum::Router;
use axum::extract::State;
use http::Request;

use super::{Answer, FakeApi};

impl FakeApi {
    /// The routes of the server.
    pub fn router(&self) -> Router {
        Router::new().fallback(any).with_state(self.clone())
    }

    /// Serves on a loopback port, in its own thread, which ends with the test's process.
    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let router = self.router();
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, router).await.unwrap();
            });
        });
        address
    }
}

async fn any(State(api): State<FakeApi>, request: axum::extract::Request) -> Answer {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let request = Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    api.answer(request).await.unwrap()
}
