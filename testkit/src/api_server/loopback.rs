//! The server over HTTP, for another process.

use axum::Router;
use axum::extract::State;
use http::Request;

use super::{Answer, FakeApi};

impl FakeApi {
    /// Answers whatever is asked for.
    pub fn router(&self) -> Router {
        Router::new().fallback(any).with_state(self.clone())
    }
}

async fn any(State(api): State<FakeApi>, request: axum::extract::Request) -> Answer {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let request = Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    api.answer(request).await.unwrap()
}
