//! The HTTP client for agents and gateways: JSON requests and answers, with a deadline and a bound
//! on the answer.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use muxtunnel_bench_api::{BODY_BYTES_MAX, ErrorBody};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::token::Token;

/// Time-out of a connection to an agent or gateway.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client that sends the benchmark's token.
#[derive(Clone)]
pub struct Client {
    inner: HyperClient<HttpConnector, Full<Bytes>>,
    authorization: String,
}

impl Client {
    /// A client with `token`.
    #[must_use]
    pub fn new(token: &Token) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        // The client keeps no idle connections, because each environment has new pods.
        let inner = HyperClient::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector);
        Self {
            inner,
            authorization: token.header(),
        }
    }

    /// Sends `GET url`. Returns the answer, parsed from JSON, within `deadline`.
    ///
    /// # Errors
    /// If there is no connection, no answer in time, an error status, or an answer of another type.
    pub async fn get<T: DeserializeOwned>(
        &self,
        url: &str,
        deadline: Duration,
    ) -> anyhow::Result<T> {
        self.ask(Method::GET, url, Bytes::new(), deadline).await
    }

    /// Sends `POST url` with `body` as JSON. Returns the answer, parsed from JSON, within
    /// `deadline`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post<T: DeserializeOwned>(
        &self,
        url: &str,
        body: &impl Serialize,
        deadline: Duration,
    ) -> anyhow::Result<T> {
        let body = serde_json::to_vec(body)?.into();
        self.ask(Method::POST, url, body, deadline).await
    }

    /// Sends `PUT url` with `body` as JSON. Returns the answer, parsed from JSON, within
    /// `deadline`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn put<T: DeserializeOwned>(
        &self,
        url: &str,
        body: &impl Serialize,
        deadline: Duration,
    ) -> anyhow::Result<T> {
        let body = serde_json::to_vec(body)?.into();
        self.ask(Method::PUT, url, body, deadline).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        url: &str,
        body: Bytes,
        deadline: Duration,
    ) -> anyhow::Result<T> {
        let answer = self.send(method, url, body, deadline).await?;
        // An answer without content is `null`, which is `()`.
        let answer: &[u8] = if answer.is_empty() { b"null" } else { &answer };
        serde_json::from_slice(answer).with_context(|| format!("cannot parse the answer of {url}"))
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        body: Bytes,
        deadline: Duration,
    ) -> anyhow::Result<Bytes> {
        let exchange = self.exchange(method, url, body);
        let Ok(outcome) = tokio::time::timeout(deadline, exchange).await else {
            bail!("{url} did not answer within {} s", deadline.as_secs());
        };
        let (status, answer) = outcome.with_context(|| format!("{url} cannot be reached"))?;
        if status.is_success() {
            return Ok(answer);
        }
        match serde_json::from_slice::<ErrorBody>(&answer) {
            Ok(body) => bail!("{url}: {}", body.error),
            Err(_) => bail!("{url} answered {status}"),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        url: &str,
        body: Bytes,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header(header::AUTHORIZATION, &self.authorization)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let answer = self.inner.request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), BODY_BYTES_MAX)
            .collect()
            .await;
        let body = body.map_err(|error| anyhow!("cannot read the answer: {error}"))?;
        Ok((status, body.to_bytes()))
    }
}
