//! A layer of the kube client that passes each request and its answer through an [`Interceptor`].

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response, Uri};
use tower::{BoxError, Layer, Service};

/// The answer to a request. The request is sent when this future is polled.
pub type Answer<R> = BoxFuture<'static, Result<Response<R>, BoxError>>;

/// Observes or refuses requests.
pub trait Interceptor {
    /// Returns the answer to a request. `send` creates the request.
    fn intercept<R: Send + 'static>(
        &self,
        method: &Method,
        uri: &Uri,
        send: impl FnOnce() -> Answer<R>,
    ) -> Answer<R>;
}

/// Layer of the client.
#[derive(Debug, Clone)]
pub struct InterceptorLayer<I>(pub I);

impl<I: Clone, S> Layer<S> for InterceptorLayer<I> {
    type Service = InterceptedService<I, S>;

    fn layer(&self, inner: S) -> Self::Service {
        InterceptedService {
            inner,
            interceptor: self.0.clone(),
        }
    }
}

/// See [`InterceptorLayer`].
#[derive(Debug, Clone)]
pub struct InterceptedService<I, S> {
    inner: S,
    interceptor: I,
}

impl<I, S, B, R> Service<Request<B>> for InterceptedService<I, S>
where
    I: Interceptor,
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Answer<R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Answer<R> {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let inner = &mut self.inner;
        let send = || -> Answer<R> {
            let answer = inner.call(request);
            Box::pin(async move { answer.await.map_err(Into::into) })
        };
        self.interceptor.intercept(&method, &uri, send)
    }
}

/// Whether a request starts a watch.
pub fn is_watch(uri: &Uri) -> bool {
    let mut pairs = uri.query().unwrap_or_default().split('&');
    pairs.any(|pair| pair.starts_with("watch="))
}
