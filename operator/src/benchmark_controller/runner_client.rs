//! Queries the runner over HTTP. Requests that change the runner's state require the Lease, like
//! all writes. The gate of the kube client does not cover these requests, so this client has its
//! own gate.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};

use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use muxtunnel_bench_api::runner::{Offer, State};
use muxtunnel_bench_api::{BODY_BYTES_MAX, ErrorBody, HTTP_PORT};

use crate::failure::NotLeader;
use crate::leader::Leadership;
use crate::pods::in_url;

/// Time limit for a request to a pod of the same cluster.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The runner did not answer, or answered with an error.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// No answer in time.
    #[error("the runner did not answer within {} s", REQUEST_TIMEOUT.as_secs())]
    TimedOut,
    /// The connection failed.
    #[error(
        "cannot reach the runner: {0}; check that NetworkPolicies permit connections from the operator to port 64002"
    )]
    Unreachable(Box<dyn std::error::Error + Send + Sync>),
    /// The runner's pod still has the hash of another operator process's token.
    #[error(
        "the runner does not know this operator's token yet; the kubelet updates the token's hash in the runner's pod within 90 s"
    )]
    Unknown,
    /// The runner refused the request.
    #[error("the runner refused the request: {0}")]
    Refused(String),
    /// Another operator is the leader.
    #[error(transparent)]
    NotLeader(NotLeader),
    /// This operator cannot parse the answer.
    #[error("the runner's answer is invalid: {0}")]
    Answer(serde_json::Error),
}

/// A request to a runner.
#[derive(Debug, Clone, Copy)]
pub enum Ask<'a> {
    /// The progress.
    State,
    /// Offers the environment with this index.
    Offer(usize, &'a Offer),
    /// The results are stored.
    Finish,
}

/// The requests to runners.
pub trait RunnerApi: Send + Sync {
    /// Sends a request to the runner at `host`. Returns the progress afterwards.
    fn ask(
        &self,
        host: &str,
        token: &str,
        ask: Ask<'_>,
    ) -> impl Future<Output = Result<State, RunnerError>> + Send;
}

/// The HTTP client of a runner. The client sends only reading requests while the leadership is not
/// held.
#[derive(Clone)]
pub struct HttpRunner {
    client: Client<HttpConnector, Full<Bytes>>,
    leadership: Leadership,
}

impl HttpRunner {
    /// A client with this leadership.
    pub fn new(leadership: Leadership) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(REQUEST_TIMEOUT));
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            leadership,
        }
    }
}

impl RunnerApi for HttpRunner {
    async fn ask(&self, host: &str, token: &str, ask: Ask<'_>) -> Result<State, RunnerError> {
        let (method, path, body) = match ask {
            Ask::State => (Method::GET, "state".to_owned(), Vec::new()),
            Ask::Offer(index, offer) => {
                let body = serde_json::to_vec(offer).map_err(RunnerError::Answer)?;
                (Method::PUT, format!("environments/{index}"), body)
            }
            Ask::Finish => (Method::PUT, "finished".to_owned(), Vec::new()),
        };
        if method != Method::GET && !self.leadership.is_held() {
            return Err(RunnerError::NotLeader(NotLeader));
        }
        let exchange = async {
            let request = Request::builder()
                .method(method)
                .uri(format!("http://{}:{HTTP_PORT}/v1/{path}", in_url(host)))
                .header(header::AUTHORIZATION, format!("Bearer {token}"))
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(body.into()))
                .map_err(|error| RunnerError::Unreachable(error.into()))?;
            let answer = self.client.request(request).await;
            let answer = answer.map_err(|error| RunnerError::Unreachable(error.into()))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), BODY_BYTES_MAX)
                .collect()
                .await;
            Ok::<_, RunnerError>((status, body.map_err(RunnerError::Unreachable)?.to_bytes()))
        };
        let (status, body) = tokio::time::timeout(REQUEST_TIMEOUT, exchange)
            .await
            .map_err(|_| RunnerError::TimedOut)??;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(RunnerError::Answer);
        }
        if status == StatusCode::UNAUTHORIZED {
            return Err(RunnerError::Unknown);
        }
        let words = serde_json::from_slice::<ErrorBody>(&body);
        Err(RunnerError::Refused(
            words.map_or_else(|_| status.to_string(), |body| body.error),
        ))
    }
}
