//! The library's connection, for both sides.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{PingPong, RecvStream, client, server};
use http::Request;
use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::SessionError;

use super::carried::Carried;
use super::meter::{Meter, TURN_FRAMES};
use super::windows::Windows;
use super::{
    AHEAD_PART, FRAME_BYTES_MAX, HEADER_BYTES_MAX, OVERHEAD_MAX, RESETS_REMEMBERED_FOR,
    RESETS_REMEMBERED_MAX, SEND_BUFFER_BYTES, STREAMS_AT_FIRST, Traffic, end_of,
};
use crate::base::telemetry::CarrierStats;
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

pub(super) struct Connection {
    state: State,
    meter: Rc<RefCell<Meter>>,
    traffic: Rc<Traffic>,
    /// How the peer has exceeded a rate, after this side has ended the connection for it.
    excess: Option<&'static str>,
}

enum State {
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
    /// Creates a connection on a transport, from which `unread` was already read.
    pub(super) fn new(
        (side, traffic): (Side, &Rc<Traffic>),
        (unread, stats): (Vec<u8>, Arc<CarrierStats>),
        windows: &Windows,
        config: &SessionConfig,
    ) -> Self {
        let meter = Rc::new(RefCell::new(Meter::default()));
        let transport = (side, Rc::clone(&traffic.transport));
        let ahead_max = config.memory.receive.0 / AHEAD_PART;
        let ahead_max = usize::try_from(ahead_max).unwrap_or(usize::MAX);
        let carried = Carried::new(transport, unread, &meter, (stats, ahead_max));
        let state = match side {
            Side::Dials => State::Dialling(Box::pin(client_builder(windows).handshake(carried))),
            Side::Accepts => {
                let handshake = server_builder(windows, config).handshake(carried);
                State::Greeting(Box::new(handshake))
            }
        };
        Self {
            state,
            meter,
            traffic: Rc::clone(traffic),
            excess: None,
        }
    }

    /// The handle for the connection's PINGs; `None`: the handle is not available yet, or was
    /// already taken.
    pub(super) fn pings(&mut self) -> Option<PingPong> {
        match &mut self.state {
            State::Client { connection, .. } => connection.ping_pong(),
            State::Server(connection) => connection.ping_pong(),
            State::Dialling(_) | State::Greeting(_) => None,
        }
    }

    /// Drives the connection until its next event. A caller may drop the future and call again.
    pub(super) async fn next(&mut self) -> Event {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let polled = self.state.poll_next(context);
        if self.excess.is_none() {
            self.excess = self.meter.borrow().excess();
            if self.excess.is_some() {
                // The meter passes no further frame, so the library only writes.
                if self.state.end() {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                return Poll::Ready(Event::Ended(self.abused()));
            }
        }
        match polled {
            Poll::Ready(Event::Ended(_)) if self.excess.is_some() => {
                Poll::Ready(Event::Ended(self.abused()))
            }
            Poll::Ready(event) => Poll::Ready(event),
            Poll::Pending => {
                self.traffic
                    .join_small(&self.meter.borrow_mut().take_small());
                if self.meter.borrow_mut().begin_turn() {
                    // The tasks of streams take their turn first.
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    fn abused(&self) -> SessionEnd {
        SessionEnd::Protocol(SessionError::Violation {
            code: None,
            problem: self.excess.unwrap_or_default().to_owned(),
        })
    }

    /// Sets the window of each stream. The window takes effect once the peer has read the new
    /// setting.
    pub(super) fn set_window(&mut self, bytes: u32) {
        // This fails while the previous change waits for the peer's acknowledgement. The next
        // change follows soon.
        let _ = match &mut self.state {
            State::Client { connection, .. } => connection.set_initial_window_size(bytes),
            State::Server(connection) => connection.set_initial_window_size(bytes),
            State::Dialling(_) | State::Greeting(_) => Ok(()),
        };
    }

    /// Stops taking streams, so that the connection ends with its last stream.
    pub(super) fn go_away(&mut self) {
        match &mut self.state {
            // The library ends the connection once no handle can open a stream.
            State::Client { looks, .. } => drop(looks.take()),
            State::Server(connection) => connection.graceful_shutdown(),
            State::Dialling(_) | State::Greeting(_) => {}
        }
    }
}

impl State {
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

    /// Ends the connection with a code. Returns whether the library can do so: only a server can.
    fn end(&mut self) -> bool {
        let Self::Server(connection) = self else {
            return false;
        };
        connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
        true
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
        .max_local_error_reset_streams(None)
        .data_frame_budget(OVERHEAD_MAX);
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
        // A turn cannot have more streams.
        .max_pending_accept_reset_streams(TURN_FRAMES)
        .max_local_error_reset_streams(None)
        .data_frame_budget(OVERHEAD_MAX);
    if config.protocol.can().listen {
        builder.enable_connect_protocol();
    }
    builder
}
