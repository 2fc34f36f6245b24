//! The clients of a listener: reads their requests, and opens a stream for each.
//!
//! A client of an HTTP proxy may send further requests on its connection. For each request, the
//! gateway reads the head again, authenticates the user again and opens a stream of its own.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use muxtunnel_codes::Code;
use muxtunnel_proto::Source;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::http::{Exchange, Next};
use super::listen::{Opening, Route};
use super::refused::Refused;
use super::{Entry, Underway};
use crate::base::forward::Admission;
use crate::base::handshake_limiter::Permit;
use crate::base::open_files::{self, Use, stream_pair};
use crate::ingress::listener::greeting::{Heard, Speaker, next_begins};
use crate::ingress::listener::http::forwarded::Forwarded;
use crate::ingress::listener::{Rejection, Request};
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::{LocalAddress, LocalSocket};
use crate::io::socket::Keepalive;
use crate::roles::worker::{Phase, wait_for};
use crate::stream::account::{Ended, Local};
use crate::stream::early_data::Connection;

/// A client that has connected.
struct Client {
    socket: LocalSocket,
    /// The address of the socket's other end.
    address: Option<IpAddr>,
    /// The address in the PROXY header.
    source: Option<Source>,
    refused: Refused,
    /// The route of the client's listener, while the listener exists.
    route: Weak<RefCell<Route>>,
}

impl Client {
    fn speaker<'a>(&'a self, entry: &'a Entry) -> Speaker<'a> {
        Speaker {
            socket: &self.socket,
            address: self.address,
            long_heads: &entry.long_heads,
        }
    }
}

impl Entry {
    /// Opens a stream for a new connection, or resets the connection.
    pub(super) fn take(
        self: &Rc<Self>,
        socket: LocalSocket,
        client: LocalAddress,
        at: &Rc<RefCell<Route>>,
    ) {
        let route = at.borrow().clone();
        let client = Client {
            socket,
            address: client.ip(),
            source: None,
            refused: Refused::new(&self.telemetry, &route.forward, client),
            route: Rc::downgrade(at),
        };
        let underway = self.underway.borrow().clone();
        if let Some(url) = route.ingress_protocol.straight() {
            let heard = Heard {
                request: Request::raw(url),
                rest: Vec::new(),
                source: None,
            };
            match route.admit(&client.socket) {
                Ok(admission) => self.lead(client, admission, &route, heard, underway),
                Err(code) => client.refused.report(code, code.cause()),
            }
            return;
        }
        if open_files::check(&client.socket, Use::Refusal).is_err() {
            let code = Code::OpenFilesExhausted;
            return client.refused.report(code, code.cause());
        }
        let Ok(permit) = self.greetings.enter(client.address) else {
            let Rejection { code, problem, .. } = Rejection::evicted();
            return client.refused.report(code, problem);
        };
        let entry = Rc::clone(self);
        tokio::task::spawn_local(async move {
            entry.hear(client, &route, permit, underway).await;
        });
    }

    /// Reads the client's first request.
    async fn hear(
        self: &Rc<Self>,
        mut client: Client,
        route: &Route,
        mut permit: Permit,
        underway: Option<Underway>,
    ) {
        let mut source = None;
        let speaker = client.speaker(self);
        let heard = tokio::select! {
            biased;
            heard = route.ingress_protocol.hear(&speaker, &mut source) => heard,
            () = permit.evicted() => Err(Rejection::evicted()),
        };
        client.source = source;
        if let Some(Source::Tcp {
            client: address, ..
        }) = source
        {
            client.refused.client = address.into();
        }
        self.heard(client, route, heard, permit, underway).await;
    }

    /// Waits for the next request of an HTTP client, which begins with `rest`, and reads it. A
    /// client that sends no further request ends in order, and is not refused.
    async fn hear_next(self: &Rc<Self>, client: Client, rest: Vec<u8>) {
        let underway = self.underway.borrow().clone();
        let entered = self.greetings.enter(client.address);
        let (Some(_), Ok(mut idle)) = (&underway, entered) else {
            return client.socket.end_in_order();
        };
        // A client without a request has not failed.
        idle.excused();
        let bytes = tokio::select! {
            biased;
            bytes = next_begins(&client.socket, rest) => bytes,
            () = idle.evicted() => Vec::new(),
            () = wait_for(self.phase.clone(), Phase::Closed) => Vec::new(),
        };
        // The time of the request begins now.
        drop(idle);
        let route = client.route.upgrade().filter(|_| !bytes.is_empty());
        let route = route.map(|route| route.borrow().clone());
        let (Some(route), Ok(mut permit)) = (route, self.greetings.enter(client.address)) else {
            return client.socket.end_in_order();
        };
        let speaker = client.speaker(self);
        let protocol = &route.ingress_protocol;
        let heard = tokio::select! {
            biased;
            heard = protocol.hear_next(&speaker, bytes, client.source) => heard,
            () = permit.evicted() => Err(Rejection::evicted()),
        };
        self.heard(client, &route, heard, permit, underway).await;
    }

    /// Opens a stream to the requested target, or rejects the client. Once the target is known, the
    /// connection counts against the limits of its forward.
    async fn heard(
        self: &Rc<Self>,
        client: Client,
        route: &Route,
        heard: Result<Option<Heard>, Rejection>,
        mut permit: Permit,
        underway: Option<Underway>,
    ) {
        match &heard {
            Ok(_) => permit.succeeded(),
            Err(rejection) if rejection.is_failure() => permit.failed(),
            Err(_) => {}
        }
        let rejection = match heard {
            Ok(None) => return,
            Ok(Some(heard)) => match route.admit(&client.socket) {
                Ok(admission) => return self.lead(client, admission, route, heard, underway),
                Err(code) => Rejection {
                    reply: heard.request.answer.refused(None),
                    code,
                    problem: code.cause(),
                },
            },
            Err(rejection) => rejection,
        };
        client.refused.report(rejection.code, rejection.problem);
        let socket: &dyn LocalEnd = &client.socket;
        tokio::select! {
            biased;
            () = socket.end_with(&rejection.reply) => {}
            () = permit.evicted() => {}
        }
    }

    /// Opens a stream for a client.
    fn lead(
        self: &Rc<Self>,
        client: Client,
        admission: Admission,
        route: &Route,
        heard: Heard,
        underway: Option<Underway>,
    ) {
        let source = route.ingress_protocol.tells(heard.source, &client.socket);
        let refused = client.refused.clone();
        let Request {
            url,
            forwarded,
            answer,
        } = heard.request;
        let (mut early, mut ended) = (heard.rest, Ended::default());
        let socket: Box<dyn LocalEnd> = match forwarded {
            None => Box::new(client.socket),
            Some(forwarded) => {
                let early = std::mem::take(&mut early);
                match stream_pair() {
                    Ok(pair) => {
                        let (near, hears) = self.exchange(client, forwarded, early, pair);
                        ended = hears;
                        near
                    }
                    Err(error) => {
                        let problem = format!("cannot create a socket for the request: {error}");
                        refused.report(Code::OpenFilesExhausted, &problem);
                        let (socket, reply) = (client.socket, answer.refused(None));
                        tokio::task::spawn_local(async move {
                            let socket: &dyn LocalEnd = &socket;
                            socket.end_with(&reply).await;
                        });
                        return;
                    }
                }
            }
        };
        let local = Local::Client {
            address: refused.client.clone(),
            target: Rc::clone(&url),
            admission,
            ended,
        };
        let further = route.ingress_protocol.further(&url);
        let opening = Opening::new(self, (url, further), route.priority, refused, underway);
        opening.open(Connection {
            socket,
            local,
            early,
            answer,
            source,
            has_next: false,
        });
    }

    /// Starts an exchange of one HTTP request with a client. Returns the local end of its stream,
    /// and the sender for the reason why the stream ended.
    fn exchange(
        self: &Rc<Self>,
        client: Client,
        request: Forwarded,
        early: Vec<u8>,
        (near, target): (UnixStream, UnixStream),
    ) -> (Box<dyn LocalEnd>, Ended) {
        let (sender, ended) = oneshot::channel();
        let Client {
            socket,
            address,
            source,
            refused,
            route,
        } = client;
        let exchange = Exchange {
            client: socket,
            request,
            early,
            target,
            ended,
            phase: self.phase.clone(),
            keepalive: Keepalive::of(self.reloadable.borrow().timeouts),
        };
        exchange.client.set_keepalive(exchange.keepalive);
        let guard = self.exchanges.borrow().clone();
        let entry = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let next = exchange.run().await;
            drop(guard);
            if let Some(Next { socket, rest }) = next {
                let client = Client {
                    socket,
                    address,
                    source,
                    refused,
                    route,
                };
                entry.hear_next(client, rest).await;
            }
        });
        let near = Box::new(LocalSocket::Unix(near));
        (near, RefCell::new(Some(sender)))
    }
}
