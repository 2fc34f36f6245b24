//! One request of an HTTP proxy client, and its response.
//!
//! hyper reads exactly one request from the client's socket, sends the request through a separate
//! stream, and returns the response with `Connection: close`. Bytes that the client sends after its
//! request reach no target. The local end of the stream is a pair of Unix sockets.
//! `listener/http.rs` has already read, checked and rewritten the head of the request.
//!
//! Bounds: [`HEAD_BYTES_MAX`] for the head of a response and for each of the two read buffers, and
//! [`FIELDS_MAX`] fields. hyper limits the line of a chunk to 16 KiB. Bodies are streamed.

use std::cell::Cell;
use std::error::Error;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version, client, server};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot};

use crate::base::closing::Reason;
use crate::ingress::listener::http::{FIELDS_MAX as REQUEST_FIELDS_MAX, is_hop_by_hop};
use crate::io::duplex::ByteStream;
use crate::io::local_end::LocalEnd;

/// Maximum size of a response's head, and of the data that hyper reads ahead from either side, in
/// bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of header fields of a response.
const FIELDS_MAX: usize = 128;
/// How long a body waits for the target's 100 (Continue). curl waits equally long.
const CONTINUE_TIME: Duration = Duration::from_secs(1);

type BoxError = Box<dyn Error + Send + Sync>;

/// A client with one request.
pub(super) struct Exchange {
    pub(super) client: Box<dyn LocalEnd>,
    /// The rewritten head of the request, and the bytes that the client sent after the head.
    pub(super) request: Vec<u8>,
    /// The other end of the stream's socket.
    pub(super) target: UnixStream,
    /// Receives the reason why the stream ended.
    pub(super) ended: oneshot::Receiver<Reason>,
}

impl Exchange {
    /// Runs until the client has received its response or has been reset.
    pub(super) async fn run(self) {
        if let Some(client) = self.serve().await {
            client.say_goodbye().await;
        }
    }

    /// Returns the client's socket once the whole response is written. If the exchange was cut,
    /// drops the socket, which resets the connection, and returns `None`.
    async fn serve(self) -> Option<Box<dyn LocalEnd>> {
        let Self {
            client,
            request,
            target,
            ended,
        } = self;
        let (sender, to_target) = client::conn::http1::Builder::new()
            .preserve_header_case(true)
            .max_headers(FIELDS_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake(TokioIo::new(target))
            .await
            .ok()?;
        let once = Cell::new(Some((sender, ended)));
        let service = service_fn(|request| {
            let once = once.take();
            async move {
                let (sender, ended) = once.ok_or("the client sent more than one request")?;
                Ok::<_, BoxError>(forward(sender, ended, request).await)
            }
        });
        let io = TokioIo::new(ClientIo {
            unread: request,
            socket: ByteStream(client),
            is_flushed: false,
        });
        let mut to_client = server::conn::http1::Builder::new()
            .keep_alive(false)
            .preserve_header_case(true)
            .auto_date_header(false)
            .header_read_timeout(None)
            .max_headers(REQUEST_FIELDS_MAX + 2)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(io, service);
        let to_target = async {
            if let Err(error) = to_target.await {
                tracing::debug!(%error, "The exchange with an HTTP target failed");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            served = &mut to_client => {
                if let Err(error) = served {
                    tracing::debug!(%error, "The exchange with an HTTP client failed");
                }
            }
            () = to_target => {}
        }
        let io = to_client.into_parts().io.into_inner();
        io.is_flushed.then_some(io.socket.0)
    }
}

/// Sends `request` to the target and returns its response, or an error response from this gateway.
async fn forward(
    mut sender: client::conn::http1::SendRequest<RequestBody>,
    ended: oneshot::Receiver<Reason>,
    mut request: Request<Incoming>,
) -> Response<Either<ResponseBody, Full<Bytes>>> {
    let is_head = request.method() == Method::HEAD;
    *request.version_mut() = Version::HTTP_11;
    let mut gate = None;
    if request.headers().contains_key(header::EXPECT) {
        let is_continued = Arc::new(Notify::new());
        let opened = Arc::clone(&is_continued);
        gate = Some(Box::pin(async move {
            let _ = tokio::time::timeout(CONTINUE_TIME, is_continued.notified()).await;
        }) as Gate);
        hyper::ext::on_informational(&mut request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                opened.notify_one();
            }
        });
    }
    let request = request.map(|inner| RequestBody { gate, inner });
    let mut response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(%error, "An HTTP target sent no valid response");
            let text = "The target closed the connection before its response, or its response is not valid HTTP.\n";
            return failure(text);
        }
    };
    let encoding = response.headers_mut().remove(header::TRANSFER_ENCODING);
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if response.status().is_informational() || !encoding.iter().all(is_chunked) {
        let text = "The gateway does not support the response: the target switched protocols, or used a transfer coding other than chunked.\n";
        return failure(text);
    }
    let is_framed = encoding.is_some() || response.headers().contains_key(header::CONTENT_LENGTH);
    remove_hop_by_hop(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    let has_end = is_framed || is_head || response.body().is_end_stream();
    response.map(|inner| {
        let ended = (!has_end).then_some(ended);
        Either::Left(ResponseBody { inner, ended })
    })
}

fn remove_hop_by_hop(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = fields
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != header::CONTENT_LENGTH)
        .collect();
    let removed: Vec<HeaderName> = fields
        .keys()
        .filter(|name| is_hop_by_hop(name.as_str()) || named.contains(name))
        .cloned()
        .collect();
    for name in removed {
        fields.remove(name);
    }
}

fn failure(text: &'static str) -> Response<Either<ResponseBody, Full<Bytes>>> {
    let mut response = Response::new(Either::Right(Full::from(text)));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

type Gate = Pin<Box<dyn Future<Output = ()>>>;

/// The body of a request. If the client sent `Expect: 100-continue` (RFC 9110, section 10.1.1),
/// `gate` delays the body until the target has sent 100 (Continue), but for at most
/// [`CONTINUE_TIME`]. The first poll of `inner` makes hyper send 100 (Continue) to the client.
struct RequestBody {
    gate: Option<Gate>,
    inner: Incoming,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(gate) = &mut self.gate {
            ready!(gate.as_mut().poll(cx));
            self.gate = None;
        }
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of a response. `ended` is set if the body ends with the target's connection. A Unix
/// socket has no reset, so only the stream can report whether the body was cut.
struct ResponseBody {
    inner: Incoming,
    ended: Option<oneshot::Receiver<Reason>>,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            return Poll::Ready(Some(frame.map_err(BoxError::from)));
        }
        let Some(ended) = &mut self.ended else {
            return Poll::Ready(None);
        };
        let reason = ready!(Pin::new(ended).poll(cx));
        self.ended = None;
        Poll::Ready(match reason {
            Ok(Reason::Completed) => None,
            Ok(_) | Err(_) => Some(Err("the stream was cut".into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The client's socket, preceded by the bytes that were already read.
struct ClientIo {
    unread: Vec<u8>,
    socket: ByteStream<Box<dyn LocalEnd>>,
    /// Whether hyper has written all data and has requested the shutdown of the socket. The socket
    /// stays open. The caller closes it later.
    is_flushed: bool,
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, buffer);
        }
        let length = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread[..length]);
        self.unread.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
