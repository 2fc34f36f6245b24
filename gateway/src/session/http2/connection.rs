//! The library's connection, for both sides.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{PingPong, RecvStream, client, server};
use http::Request;
use muxtunnel_gateway_config::SessionConfig;

use super::carried::Carried;
use super::windows::Windows;
use super::{
    ERROR_RESETS_MAX, FRAME_BYTES_MAX, HEADER_BYTES_MAX, RESETS_PENDING_MAX, RESETS_REMEMBERED_FOR,
    RESETS_REMEMBERED_MAX, SEND_BUFFER_BYTES, STREAMS_AT_FIRST, end_of,
};
use crate::io::transport::Side;
use crate::session::bridge::link::Payload;
use crate::session::end::SessionEnd;

pub(super) enum Event {
    /// This side may send PINGs, and requests if it dialled.
    Greeted(Option<SendRequest<Payload>>),
    /// The peer has sent a request.
    Asked(Box<(Request<RecvStream>, SendResponse<Payload>)>),
    /// The peer takes no further requests.
    GoingAway,
    Ended(SessionEnd),
}

/// The library's types for a dialled connection.
type Dialled = (SendRequest<Payload>, client::Connection<Carried, Payload>);

pub(super) enum Connection {
    /// This side has not sent its preface.
    Dialling(Pin<Box<dyn Future<Output = Result<Dialled, h2::Error>>>>),
    /// This side opens the streams.
    Client {
        connection: Box<client::Connection<Carried, Payload>>,
        /// Reports whether the peer is shutting down; `None`: the shutdown of either side has
        /// started.
        looks: Option<SendRequest<Payload>>,
    },
    /// The peer has not sent its preface.
    Greeting(Box<server::Handshake<Carried, Payload>>),
    /// The peer opens the streams.
    Server(Box<server::Connection<Carried, Payload>>),
}

impl Connection {
    pub(super) fn new(
        side: Side,
        carried: Carried,
        windows: &Windows,
        config: &SessionConfig,
    ) -> Self {
        match side {
            Side::Dials => Self::Dialling(Box::pin(client_builder(windows).handshake(carried))),
            Side::Accepts => {
                let handshake = server_builder(windows, config).handshake(carried);
                Self::Greeting(Box::new(handshake))
            }
        }
    }

    /// The handle for the connection's PINGs; `None`: the handle is not available yet, or was
    /// already taken.
    pub(super) fn pings(&mut self) -> Option<PingPong> {
        match self {
            Self::Client { connection, .. } => connection.ping_pong(),
            Self::Server(connection) => connection.ping_pong(),
            Self::Dialling(_) | Self::Greeting(_) => None,
        }
    }

    /// Drives the connection until its next event. A caller may drop the future and call again.
    pub(super) async fn next(&mut self) -> Event {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        match self {
            Self::Client { connection, looks } => {
                let ended = Pin::new(&mut **connection).poll(context);
                if let Poll::Ready(ended) = ended {
                    let end = ended.map_or_else(end_of, |()| SessionEnd::Closed);
                    return Poll::Ready(Event::Ended(end));
                }
                let goes = looks.as_mut().map(|looks| looks.poll_ready(context));
                if matches!(goes, Some(Poll::Ready(Err(_)))) {
                    looks.take();
                    return Poll::Ready(Event::GoingAway);
                }
                Poll::Pending
            }
            Self::Server(connection) => connection.poll_accept(context).map(|asked| match asked {
                Some(Ok(asked)) => Event::Asked(Box::new(asked)),
                Some(Err(error)) => Event::Ended(end_of(error)),
                None => Event::Ended(SessionEnd::Closed),
            }),
            Self::Dialling(handshake) => handshake.as_mut().poll(context).map(|made| match made {
                Ok((requests, connection)) => {
                    *self = Self::Client {
                        connection: Box::new(connection),
                        looks: Some(requests.clone()),
                    };
                    Event::Greeted(Some(requests))
                }
                Err(error) => Event::Ended(end_of(error)),
            }),
            Self::Greeting(handshake) => {
                Pin::new(&mut **handshake)
                    .poll(context)
                    .map(|made| match made {
                        Ok(connection) => {
                            *self = Self::Server(Box::new(connection));
                            Event::Greeted(None)
                        }
                        Err(error) => Event::Ended(end_of(error)),
                    })
            }
        }
    }

    /// Sets the window of each stream. The window takes effect once the peer has read the new
    /// setting.
    pub(super) fn set_window(&mut self, bytes: u32) {
        // This fails while the previous change waits for the peer's acknowledgement. The next
        // change follows soon.
        let _ = match self {
            Self::Client { connection, .. } => connection.set_initial_window_size(bytes),
            Self::Server(connection) => connection.set_initial_window_size(bytes),
            Self::Dialling(_) | Self::Greeting(_) => Ok(()),
        };
    }

    /// Stops taking streams, so that the connection ends with its last stream.
    pub(super) fn go_away(&mut self) {
        match self {
            // The library ends the connection once no handle can open a stream.
            Self::Client { looks, .. } => drop(looks.take()),
            Self::Server(connection) => connection.graceful_shutdown(),
            Self::Dialling(_) | Self::Greeting(_) => {}
        }
    }
}

fn client_builder(windows: &Windows) -> client::Builder {
    let mut builder = client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(windows.stream())
        .initial_connection_window_size(windows.connection())
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .initial_max_send_streams(STREAMS_AT_FIRST)
        .max_concurrent_reset_streams(RESETS_REMEMBERED_MAX)
        .reset_stream_duration(RESETS_REMEMBERED_FOR)
        .max_local_error_reset_streams(Some(ERROR_RESETS_MAX));
    builder
}

fn server_builder(windows: &Windows, config: &SessionConfig) -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .initial_window_size(windows.stream())
        .initial_connection_window_size(windows.connection())
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(config.streams_max)
        .max_concurrent_reset_streams(RESETS_REMEMBERED_MAX)
        .reset_stream_duration(RESETS_REMEMBERED_FOR)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        .max_local_error_reset_streams(Some(ERROR_RESETS_MAX));
    if config.protocol.can().listen {
        builder.enable_connect_protocol();
    }
    builder
}
