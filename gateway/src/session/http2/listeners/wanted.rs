//! The dialling side of listeners: it requests listeners at the peer, and accepts the connections
//! that the peer announces.

use std::rc::Rc;

use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use muxtunnel_proto::{
    LISTEN_ADDRESS_LENGTH_MAX, LISTENS_MAX, ListenError, ListenEvent, ListenId, Outcome, Reason,
    Refusal,
};
use tokio::sync::mpsc;

use super::super::Traffic;
use super::message::{Message, Messages, Token};
use super::{ACCEPT, LISTEN, Listeners, News, WAITING_MAX, end, receive, request, send_all};
use crate::session::bridge::link::Payload;
use crate::session::connect::answer;

/// Accepts or refuses a connection that arrived.
pub(crate) struct Arrived {
    token: Token,
    /// The address of the listener that this side requested.
    address: Rc<str>,
    requests: SendRequest<Payload>,
    /// The channel for messages of the listener's stream.
    says: mpsc::WeakSender<Message>,
}

impl Arrived {
    /// Sends a request that accepts the connection. If the connection has closed in the meantime,
    /// bytes that were sent before the answer are lost.
    ///
    /// # Errors
    /// The carrier has ended.
    pub(in super::super) fn accept(
        mut self,
        traffic: &Traffic,
    ) -> Result<(ResponseFuture, SendStream<Payload>), Outcome> {
        let kind = (traffic.scheme(), ACCEPT);
        let request = request(kind, &self.address, &self.token.path());
        let request = request.map_err(|_| Outcome::CarrierLost)?;
        // The library delays the request until the peer takes another stream.
        let asked = self.requests.send_request(request, false);
        asked.map_err(|_| Outcome::CarrierLost)
    }

    pub(in super::super) fn refuse(&self, refusal: &Refusal) {
        if let Some(says) = self.says.upgrade() {
            // If the queue is full, the peer gets no refusal, and drops the connection after a
            // timeout.
            let _ = says.try_send(Message::Refused(self.token, refusal.clone()));
        }
    }
}

impl Listeners {
    /// Requests a listener of the peer on `address`.
    ///
    /// # Errors
    /// The request cannot be sent.
    pub(in super::super) fn ask(
        self: &Rc<Self>,
        listen: ListenId,
        address: &str,
        requests: Option<SendRequest<Payload>>,
        traffic: &Rc<Traffic>,
    ) -> Result<(), ListenError> {
        let requests = requests.ok_or(ListenError::NotReady)?;
        if !requests.is_extended_connect_protocol_enabled() {
            return Err(ListenError::Unsupported);
        }
        let length = address.len();
        if length == 0 || length > LISTEN_ADDRESS_LENGTH_MAX {
            return Err(ListenError::AddressTooLong { length });
        }
        let mut wanted = self.wanted.borrow_mut();
        if wanted.len() >= LISTENS_MAX {
            return Err(ListenError::TooMany);
        }
        let (says, said) = mpsc::channel(WAITING_MAX);
        let asking = Asking {
            listeners: Rc::clone(self),
            listen,
            address: address.into(),
            requests,
            says: says.downgrade(),
            traffic: Rc::clone(traffic),
        };
        wanted.insert(listen, says);
        drop(wanted);
        self.spawn(async move { asking.run(said).await });
        Ok(())
    }

    /// Tells the peer to stop listening.
    pub(in super::super) fn give_up(&self, listen: ListenId) {
        self.wanted.borrow_mut().remove(&listen);
    }
}

/// A listener whose request is in progress or granted.
struct Asking {
    listeners: Rc<Listeners>,
    listen: ListenId,
    address: Rc<str>,
    requests: SendRequest<Payload>,
    says: mpsc::WeakSender<Message>,
    traffic: Rc<Traffic>,
}

impl Asking {
    async fn run(self, said: mpsc::Receiver<Message>) {
        let refusal = match self.asked().await {
            Ok(halves) => self.listen(halves, said).await,
            Err(refusal) => refusal,
        };
        // If this side no longer requests the listener, the end of the listener is not reported.
        let is_wanted = self.listeners.wanted.borrow_mut().remove(&self.listen);
        if is_wanted.is_some() {
            let listen = self.listen;
            let ended = ListenEvent::Ended { listen, refusal };
            self.listeners.tell(News::Listener(ended)).await;
        }
    }

    async fn asked(&self) -> Result<(SendStream<Payload>, RecvStream), Refusal> {
        let general = |error: h2::Error| Refusal::new(Reason::General, error.to_string());
        let request = request((self.traffic.scheme(), LISTEN), &self.address, "/")?;
        let mut requests = self.requests.clone();
        let room = std::future::poll_fn(|context| requests.poll_ready(context)).await;
        room.map_err(general)?;
        let (answer, sender) = requests.send_request(request, false).map_err(general)?;
        let (head, receiver) = answer.await.map_err(general)?.into_parts();
        answer::read(&head)?;
        let address = Some(answer::address(&head)).filter(|address| !address.is_empty());
        let address = address.unwrap_or_else(|| self.address.to_string());
        let listen = self.listen;
        let listening = ListenEvent::Listening { listen, address };
        self.listeners.tell(News::Listener(listening)).await;
        Ok((sender, receiver))
    }

    /// Exchanges messages on the listener's stream until the stream ends; returns the reason.
    async fn listen(
        &self,
        (mut sender, mut receiver): (SendStream<Payload>, RecvStream),
        said: mpsc::Receiver<Message>,
    ) -> Refusal {
        let refusal = tokio::select! {
            refusal = self.hear(&mut receiver) => {
                // This fails if the stream has ended.
                let _ = sender.send_data(Payload::empty(), true);
                refusal
            }
            () = send_all(&mut sender, said) => Refusal::new(Reason::General, "this gateway no longer requests the listener"),
        };
        end(&mut sender, &mut receiver).await;
        refusal
    }

    async fn hear(&self, receiver: &mut RecvStream) -> Refusal {
        let mut messages = Messages::default();
        loop {
            match receive(receiver, &mut messages).await {
                Some(Message::Arrived(token)) => {
                    let arrived = Arrived {
                        token,
                        address: Rc::clone(&self.address),
                        requests: self.requests.clone(),
                        says: self.says.clone(),
                    };
                    let news = News::Arrived(self.listen, arrived);
                    self.listeners.tell(news).await;
                }
                Some(Message::Ended(refusal)) => return refusal,
                Some(Message::Refused(..) | Message::Unknown) => {}
                None => return Refusal::new(Reason::General, "the exit ended the listener"),
            }
        }
    }
}
