//! A layer of the kube client that reports each request and its answer to an observer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Method, Request, Response, StatusCode, Uri};
use tower::{Layer, Service};

/// Receives the reports.
pub trait Observer: Clone + Send + 'static {
    /// State of a request until its answer.
    type Asked: Send;

    /// A request is sent.
    fn asked(&self, method: &Method, uri: &Uri) -> Self::Asked;

    /// A request is answered with `status`, or fails without an answer (`None`).
    fn answered(&self, asked: Self::Asked, status: Option<StatusCode>);
}

/// Layer of the client.
#[derive(Debug, Clone)]
pub struct ObserverLayer<O>(pub O);

impl<O: Clone, S> Layer<S> for ObserverLayer<O> {
    type Service = ObservedService<O, S>;

    fn layer(&self, inner: S) -> Self::Service {
        ObservedService {
            inner,
            observer: self.0.clone(),
        }
    }
}

/// See [`ObserverLayer`].
#[derive(Debug, Clone)]
pub struct ObservedService<O, S> {
    inner: S,
    observer: O,
}

impl<O, S, B, R> Service<Request<B>> for ObservedService<O, S>
where
    O: Observer,
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    R: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let asked = self.observer.asked(request.method(), request.uri());
        let observer = self.observer.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            observer.answered(asked, answer.as_ref().ok().map(Response::status));
            answer
        })
    }
}

/// Whether a request starts a watch.
pub fn is_watch(uri: &Uri) -> bool {
    let mut pairs = uri.query().unwrap_or_default().split('&');
    pairs.any(|pair| pair.starts_with("watch="))
}
