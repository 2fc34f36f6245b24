//! Listeners that the peer requested, on the side that was dialled. This side announces each
//! connection that arrives.

use std::rc::Rc;

use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::StatusCode;
use muxtunnel_proto::{LISTENS_MAX, ListenEvent, ListenId, Priority, Reason, Refusal};
use tokio::sync::{mpsc, oneshot};

use super::super::halves::{Receiving, Sending};
use super::super::{Http2, Traffic};
use super::message::{Message, Messages, Token};
use super::{Listeners, News, WAITING_MAX, end, receive, send_all};
use crate::session::bridge::link::{NoStream, Opened, Payload};
use crate::session::connect::answer;
use crate::session::mux::Local;

/// The stream's halves: to the peer and from the peer.
type Halves = (SendStream<Payload>, RecvStream);

pub(super) enum Served {
    /// This side has not answered the request.
    Asked(Box<(SendResponse<Payload>, RecvStream)>),
    /// This side listens. The channel takes messages for the listener's stream.
    Listening(mpsc::Sender<Message>),
}

/// A connection that waits to be accepted.
pub(super) struct Waiting {
    listen: ListenId,
    accepted: oneshot::Sender<Result<Halves, NoStream>>,
}

/// Guard of a waiting connection. Dropping the guard removes the connection from the table.
struct Waits {
    listeners: Rc<Listeners>,
    token: Token,
    accepted: oneshot::Receiver<Result<Halves, NoStream>>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.listeners.waiting.borrow_mut().remove(&self.token);
    }
}

impl Listeners {
    /// Handles the peer's request for a listener on `address`.
    pub(in super::super) fn asked(
        &self,
        address: String,
        mut answer: SendResponse<Payload>,
        body: RecvStream,
    ) -> Option<ListenEvent> {
        let mut served = self.served.borrow_mut();
        let number = self.last.get().wrapping_add(1);
        let listen = ListenId::from_number(number);
        let Some(listen) = listen.filter(|_| served.len() < LISTENS_MAX) else {
            let text = format!("the connection has reached its limit of {LISTENS_MAX} listeners");
            let refusal = Refusal::new(Reason::General, text);
            // A closed connection needs no answer.
            let _ = answer.send_response(answer::refused(&refusal), true);
            return None;
        };
        self.last.set(number);
        served.insert(listen, Served::Asked(Box::new((answer, body))));
        Some(ListenEvent::Asked {
            listen,
            address,
            priority: Priority::Auto,
        })
    }

    /// Tells the peer that this side listens.
    pub(in super::super) fn listening(self: &Rc<Self>, listen: ListenId, address: &str) {
        let mut served = self.served.borrow_mut();
        let Some(Served::Asked(asked)) = served.remove(&listen) else {
            return;
        };
        let (says, said) = mpsc::channel(WAITING_MAX);
        served.insert(listen, Served::Listening(says));
        drop(served);
        let (mut answer, body) = *asked;
        let sender = answer.send_response(answer::granted(address), false);
        let listeners = Rc::clone(self);
        self.spawn(async move {
            if let Ok(sender) = sender {
                listeners.serve((sender, body), said).await;
            }
            listeners.forget(listen);
            let given_up = ListenEvent::GivenUp { listen };
            listeners.tell(News::Listener(given_up)).await;
        });
    }

    /// Tells the peer that this side does not listen, or has stopped listening.
    pub(in super::super) fn end_listen(&self, listen: ListenId, refusal: &Refusal) {
        match self.forget(listen) {
            Some(Served::Asked(asked)) => {
                let (mut answer, _) = *asked;
                // A closed connection needs no answer.
                let _ = answer.send_response(answer::refused(refusal), true);
            }
            Some(Served::Listening(says)) => {
                // If the queue is full, the peer sees only the end of the stream.
                let _ = says.try_send(Message::Ended(refusal.clone()));
            }
            None => {}
        }
    }

    /// Removes the listener, and refuses its waiting connections.
    fn forget(&self, listen: ListenId) -> Option<Served> {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut()).into_iter();
        let (gone, stay) = waiting.partition(|(_, waiting)| waiting.listen == listen);
        self.waiting.replace(stay);
        let gone: std::collections::BTreeMap<Token, Waiting> = gone;
        for waiting in gone.into_values() {
            let refusal = Refusal::new(Reason::General, "the listener has ended");
            let _ = waiting.accepted.send(Err(NoStream::Refused(refusal)));
        }
        self.served.borrow_mut().remove(&listen)
    }

    async fn serve(&self, (mut sender, mut receiver): Halves, said: mpsc::Receiver<Message>) {
        tokio::select! {
            () = self.hear(&mut receiver) => {
                // This fails if the stream has ended.
                let _ = sender.send_data(Payload::empty(), true);
            }
            () = send_all(&mut sender, said) => end(&mut sender, &mut receiver).await,
        }
    }

    async fn hear(&self, receiver: &mut RecvStream) {
        let mut messages = Messages::default();
        while let Some(message) = receive(receiver, &mut messages).await {
            if let Message::Refused(token, refusal) = message {
                let waiting = self.waiting.borrow_mut().remove(&token);
                if let Some(waiting) = waiting {
                    // This fails if the connection has just closed.
                    let _ = waiting.accepted.send(Err(NoStream::Refused(refusal)));
                }
            }
        }
    }

    /// Announces a connection that arrived at `listen` to the peer, and waits until the peer
    /// accepts the connection.
    pub(in super::super) fn open(
        self: &Rc<Self>,
        listen: ListenId,
        traffic: &Rc<Traffic>,
    ) -> Local<'static, Result<Opened<Http2>, NoStream>> {
        let waits = self.wait_for(listen);
        let traffic = Rc::clone(traffic);
        Box::pin(async move {
            let mut waits = waits?;
            let accepted = (&mut waits.accepted).await;
            let (sender, receiver) = accepted.unwrap_or(Err(NoStream::Lost))?;
            Ok(Opened {
                sender: Sending::new(sender, Rc::clone(&traffic)),
                receiver: Receiving::new(receiver, traffic),
                address: String::new(),
            })
        })
    }

    fn wait_for(self: &Rc<Self>, listen: ListenId) -> Result<Waits, NoStream> {
        let served = self.served.borrow();
        let Some(Served::Listening(says)) = served.get(&listen) else {
            let text = "the listener has ended";
            return Err(NoStream::Refused(Refusal::new(Reason::General, text)));
        };
        let token = Token::random();
        let is_full = self.waiting.borrow().len() >= WAITING_MAX;
        if is_full || says.try_send(Message::Arrived(token)).is_err() {
            let text =
                format!("{WAITING_MAX} connections already wait for the entry to accept them");
            return Err(NoStream::Refused(Refusal::new(Reason::General, text)));
        }
        let (tell, accepted) = oneshot::channel();
        let waiting = Waiting {
            listen,
            accepted: tell,
        };
        self.waiting.borrow_mut().insert(token, waiting);
        Ok(Waits {
            listeners: Rc::clone(self),
            token,
            accepted,
        })
    }

    /// Handles the peer's request to accept the connection that `path` identifies.
    pub(in super::super) fn accepted(
        &self,
        path: &str,
        mut answer: SendResponse<Payload>,
        body: RecvStream,
    ) {
        let token = Token::of_path(path);
        let waiting = token.and_then(|token| self.waiting.borrow_mut().remove(&token));
        let Some(waiting) = waiting else {
            // The connection has closed, or was already accepted. A peer that is gone needs no
            // answer.
            let _ = answer.send_response(answer::status(StatusCode::NOT_FOUND), true);
            return;
        };
        let accepted = answer.send_response(answer::status(StatusCode::OK), false);
        let accepted = accepted.map(|sender| (sender, body));
        // This fails if the connection has just closed; then the stream is reset.
        let _ = waiting.accepted.send(accepted.map_err(|_| NoStream::Lost));
    }
}
