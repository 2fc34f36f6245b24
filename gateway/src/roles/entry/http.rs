//! One request of an HTTP proxy client, and its response.
//!
//! hyper reads exactly one request from the client's socket, sends the request through a separate
//! stream, and returns the response. The local end of the stream is a pair of Unix sockets.
//! `listener/http.rs` has already read, checked and rewritten the head of the request.
//! [`client_io`] ends hyper's input at the end of the request. So the bytes of a client's next
//! request reach no target before `listener/http.rs` has read them, and a client may end its half
//! after its last request. docs/proxy-conformance.md lists the requirements.
//!
//! Bounds: [`HEAD_BYTES_MAX`] for the head of a response, for the informational responses that wait,
//! and for each of the two read buffers, and [`FIELDS_MAX`] fields. hyper limits the line of a chunk
//! to 16 KiB. Bodies are streamed.

mod body_end;
mod client_io;
#[cfg(any(test, feature = "oracles"))]
pub(super) mod oracle;

use std::cell::Cell;
use std::error::Error;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version, client, server};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};

use crate::base::closing::Reason;
use crate::ingress::listener::HEAD_BYTES_MAX as REQUEST_BYTES_MAX;
use crate::ingress::listener::http::FIELDS_MAX as REQUEST_FIELDS_MAX;
use crate::ingress::listener::http::forwarded::{Forwarded, PSEUDONYM, is_hop_by_hop};
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::LocalSocket;
use crate::io::socket::Keepalive;
use crate::roles::worker::Phase;
use client_io::{ClientIo, ClientState, Informational};

/// Maximum size of a response's head, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of header fields of a response.
const FIELDS_MAX: usize = 256;
/// Room for the bytes that the rewriting adds to a request's head: `Host`, `Via` and `Connection`.
const REWRITING_BYTES_MAX: usize = 4 << 10;

type BoxError = Box<dyn Error + Send + Sync>;
type Answered = Response<Either<ResponseBody, Full<Bytes>>>;

/// A client with one request.
pub(super) struct Exchange {
    pub(super) client: LocalSocket,
    pub(super) request: Forwarded,
    /// The bytes that the client sent after the head.
    pub(super) early: Vec<u8>,
    /// The other end of the stream's socket.
    pub(super) target: UnixStream,
    /// Receives the reason why the stream ended.
    pub(super) ended: oneshot::Receiver<Reason>,
    pub(super) phase: watch::Receiver<Phase>,
    /// Detects a client that has vanished; `None`: off.
    pub(super) keepalive: Option<Keepalive>,
}

/// A client that may send a further request.
pub(super) struct Next {
    pub(super) socket: LocalSocket,
    /// The bytes that the client sent after its request.
    pub(super) rest: Vec<u8>,
}

/// What the response depends on.
struct Answering {
    ended: oneshot::Receiver<Reason>,
    state: Rc<ClientState>,
    phase: watch::Receiver<Phase>,
    informational: Option<Arc<Informational>>,
    expects: bool,
}

impl Exchange {
    /// Runs until the client has received its response or has been reset. Returns the client if its
    /// connection persists.
    pub(super) async fn run(self) -> Option<Next> {
        let persists = self.request.persists;
        let state = Rc::new(ClientState::default());
        let next = self.serve(Rc::clone(&state)).await?;
        if persists && state.is_received.get() && !state.closes.get() {
            return Some(next);
        }
        let client: &dyn LocalEnd = &next.socket;
        client.say_goodbye().await;
        None
    }

    /// Returns the client's socket once the whole response is written. If the exchange was cut,
    /// drops the socket, which resets the connection, and returns `None`.
    async fn serve(self, state: Rc<ClientState>) -> Option<Next> {
        let (sender, to_target) = client::conn::http1::Builder::new()
            .preserve_header_case(true)
            .title_case_headers(true)
            .allow_spaces_after_header_name_in_responses(true)
            .allow_obsolete_multiline_headers_in_responses(true)
            .max_headers(FIELDS_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake(TokioIo::new(self.target))
            .await
            .ok()?;
        let informational = Arc::new(Informational::default());
        let context = Answering {
            ended: self.ended,
            state: Rc::clone(&state),
            phase: self.phase,
            informational: self
                .request
                .hears_informational
                .then(|| Arc::clone(&informational)),
            expects: self.request.expects,
        };
        let once = Cell::new(Some((sender, context)));
        let service = service_fn(|request| {
            let once = once.take();
            async move {
                let (sender, context) = once.ok_or("the client sent more than one request")?;
                Ok::<_, BoxError>(forward(sender, context, request).await)
            }
        });
        let client = Rc::new(self.client);
        let io = TokioIo::new(ClientIo::new(
            Rc::clone(&client),
            self.request.head,
            self.early,
            self.request.body,
            Rc::clone(&state),
            Arc::clone(&informational),
        ));
        let mut to_client = server::conn::http1::Builder::new()
            // The end of the request is the end of hyper's input.
            .half_close(true)
            .preserve_header_case(true)
            .title_case_headers(true)
            .header_read_timeout(None)
            .max_headers(REQUEST_FIELDS_MAX + 4)
            .max_buf_size(REQUEST_BYTES_MAX + REWRITING_BYTES_MAX)
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
            _ = informational.write_to(Rc::clone(&client)) => {}
            () = client.failed() => {}
            () = vanished(&client, self.keepalive) => {}
        }
        drop(client);
        let (socket, rest) = to_client.into_parts().io.into_inner().into_rest();
        let socket = Rc::into_inner(socket).filter(|_| state.is_flushed.get())?;
        Some(Next { socket, rest })
    }
}

/// Waits until a client that owes acknowledgements has vanished.
async fn vanished(client: &LocalSocket, keepalive: Option<Keepalive>) {
    let Some(keepalive) = keepalive else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(keepalive.dead_after() / 4).await;
        let path = client.unacknowledged();
        if path.is_some_and(|path| keepalive.has_vanished(&path)) {
            return;
        }
    }
}

/// Sends `request` to the target and returns its response, or an error response from this gateway.
async fn forward(
    mut sender: client::conn::http1::SendRequest<Incoming>,
    context: Answering,
    mut request: Request<Incoming>,
) -> Answered {
    let is_head = request.method() == Method::HEAD;
    *request.version_mut() = Version::HTTP_11;
    let fields = request.headers_mut();
    fields.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if context.expects {
        fields.insert(header::EXPECT, HeaderValue::from_static("100-continue"));
    }
    if let Some(informational) = context.informational {
        hyper::ext::on_informational(&mut request, move |response| {
            informational.push(response.status(), response.headers());
        });
    }
    let received = sender.send_request(request).await;
    let ended = context.ended;
    let response = received
        .map_err(|error| {
            tracing::debug!(%error, "An HTTP target sent no valid response");
            match context.state.is_cut.get() {
                true => (
                    StatusCode::BAD_REQUEST,
                    "The body of the request is not complete.\n",
                ),
                false => (
                    StatusCode::BAD_GATEWAY,
                    "The target closed the connection before its response, or its response is not valid HTTP.\n",
                ),
            }
        })
        .and_then(|response| {
            passed_on(response, is_head, ended).map_err(|text| (StatusCode::BAD_GATEWAY, text))
        });
    let mut response = response.unwrap_or_else(|(status, text)| failure(status, text));
    let is_closing = *context.phase.borrow() > Phase::Running;
    if is_closing || !context.state.is_received.get() {
        // A client that waits with its body must not take this response for that of its next
        // request.
        context.state.closes.set(true);
        let fields = response.headers_mut();
        fields.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Prepares a response for the client.
///
/// # Errors
/// The gateway does not pass this response on, with the reason.
fn passed_on(
    mut response: Response<Incoming>,
    is_head: bool,
    ended: oneshot::Receiver<Reason>,
) -> Result<Answered, &'static str> {
    let status = response.status();
    let version = response.version();
    let fields = response.headers_mut();
    let is_chunked = fields.contains_key(header::TRANSFER_ENCODING);
    if status.is_informational() || (is_chunked && !has_one_coding(fields)) {
        return Err(
            "The gateway does not support the response: the target switched protocols, or used a transfer coding other than chunked.\n",
        );
    }
    fields.remove(header::TRANSFER_ENCODING);
    // A body that is chunked, or that does not exist, has no length.
    let has_no_length = is_chunked || status == StatusCode::NO_CONTENT;
    let has_length = one_length(fields, has_no_length)?;
    remove_hop_by_hop(fields);
    let version_number = match version {
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    };
    if let Ok(via) = HeaderValue::try_from(format!("{version_number} {PSEUDONYM}")) {
        fields.append(header::VIA, via);
    }
    *response.version_mut() = Version::HTTP_11;
    let has_end = is_chunked || has_length || is_head || response.body().is_end_stream();
    Ok(response.map(|inner| {
        let ended = (!has_end).then_some(ended);
        Either::Left(ResponseBody { inner, ended })
    }))
}

/// Whether `Transfer-Encoding` has only the coding chunked, once. Hyper looks at the text after the
/// last comma, so an empty element there does not count as chunked.
fn has_one_coding(fields: &HeaderMap) -> bool {
    let lines = fields.get_all(header::TRANSFER_ENCODING).iter();
    let mut elements = lines.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let last = elements.next_back().unwrap_or_default();
    last.trim_ascii().eq_ignore_ascii_case(b"chunked")
        && elements.all(|element| element.trim_ascii().is_empty())
}

/// Replaces equal values of `Content-Length` by one value (RFC 9110, section 8.6), or removes the
/// field. Returns whether the field remains.
///
/// # Errors
/// The values differ, or one is not a number.
fn one_length(fields: &mut HeaderMap, is_void: bool) -> Result<bool, &'static str> {
    let stated = fields.get_all(header::CONTENT_LENGTH).iter();
    let mut lengths = stated.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let Some(first) = lengths.next().map(|length| length.trim_ascii().to_vec()) else {
        return Ok(false);
    };
    let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    let is_one = is_number && lengths.all(|length| length.trim_ascii() == first);
    let length = HeaderValue::from_bytes(&first);
    if is_void {
        fields.remove(header::CONTENT_LENGTH);
        return Ok(false);
    }
    let (Ok(length), true) = (length, is_one) else {
        return Err("The response has several lengths, or its length is not a number.\n");
    };
    fields.insert(header::CONTENT_LENGTH, length);
    Ok(true)
}

/// Whether a field of a response is passed on: it is neither hop-by-hop nor listed in `Connection`.
fn is_forwarded(name: &HeaderName, fields: &HeaderMap) -> bool {
    let mut listed = fields
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let is = |other: &[u8]| {
        other
            .trim_ascii()
            .eq_ignore_ascii_case(name.as_str().as_bytes())
    };
    // `Connection` must not remove the field that frames the body.
    let is_listed = *name != header::CONTENT_LENGTH && listed.any(is);
    !is_listed && !is_hop_by_hop(name.as_str())
}

fn remove_hop_by_hop(fields: &mut HeaderMap) {
    let removed: Vec<HeaderName> = fields
        .keys()
        .filter(|name| !is_forwarded(name, fields))
        .cloned()
        .collect();
    for name in removed {
        fields.remove(name);
    }
}

fn failure(status: StatusCode, text: &'static str) -> Answered {
    let mut response = Response::new(Either::Right(Full::from(text)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
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

#[cfg(test)]
mod tests;
