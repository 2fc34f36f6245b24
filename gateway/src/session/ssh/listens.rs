//! Listeners of one connection: tcpip-forward and cancel-tcpip-forward (RFC 4254, section 7.1).
//!
//! SSH identifies a listener by the address in the form in which the requester wrote it. SSH has no
//! message for the end of a listener.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use muxtunnel_proto::{
    LISTEN_ADDRESS_LENGTH_MAX, LISTENS_MAX, ListenError, ListenEvent, ListenId, Priority, Reason,
    Refusal, listen_target,
};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::base::tasks::Tasks;
use crate::io::ssh::{Connection, NoChannel};
use crate::session::bridge::link;

pub(super) struct Listens {
    connection: Connection,
    listeners: RefCell<BTreeMap<ListenId, Listener>>,
    /// The number of the listener that the peer requested last.
    last: Cell<u32>,
    /// The peer's answers about listeners that this side requested, at most two for each.
    tell: mpsc::UnboundedSender<ListenEvent>,
    told: Mutex<mpsc::UnboundedReceiver<ListenEvent>>,
    tasks: Tasks,
}

struct Listener {
    /// The listener's address as the requester wrote it.
    address: String,
    port: u16,
    /// Sends the answer to the waiting peer.
    answer: Option<oneshot::Sender<Option<u16>>>,
}

impl Listens {
    pub(super) fn new(connection: Connection, tasks: Tasks) -> Rc<Self> {
        let (tell, told) = mpsc::unbounded_channel();
        Rc::new(Self {
            connection,
            listeners: RefCell::default(),
            last: Cell::new(0),
            tell,
            told: Mutex::new(told),
            tasks,
        })
    }

    /// Returns the next event of a listener that this side requested.
    pub(super) async fn news(&self) -> ListenEvent {
        match self.told.lock().await.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// Handles the peer's request to listen.
    pub(super) fn asked(
        &self,
        address: String,
        port: u16,
        answer: oneshot::Sender<Option<u16>>,
    ) -> Option<ListenEvent> {
        let known = port > 0 && self.find(&address, port).is_some();
        let number = self.last.get().checked_add(1)?;
        let listen = ListenId::from_number(number)?;
        let written = ip_of(&address)?;
        if known || self.listeners.borrow().len() >= LISTENS_MAX {
            return None;
        }
        self.last.set(number);
        let listener = Listener {
            address,
            port,
            answer: Some(answer),
        };
        self.listeners.borrow_mut().insert(listen, listener);
        Some(ListenEvent::Asked {
            listen,
            address: SocketAddr::new(written, port).to_string(),
            priority: Priority::Auto,
        })
    }

    /// Handles the peer's cancellation.
    pub(super) fn given_up(&self, address: &str, port: u16) -> Option<ListenEvent> {
        let listen = self.find(address, port)?;
        self.listeners.borrow_mut().remove(&listen);
        Some(ListenEvent::GivenUp { listen })
    }

    /// The target of a channel from this listener of the peer.
    pub(super) fn target_of(&self, address: &str, port: u16) -> Option<String> {
        self.find(address, port).map(listen_target)
    }

    /// The address that the channels of a listener on this side report.
    pub(super) fn address_of(&self, listen: ListenId) -> Option<(String, u16)> {
        let listeners = self.listeners.borrow();
        let listener = listeners.get(&listen)?;
        Some((listener.address.clone(), listener.port))
    }

    fn find(&self, address: &str, port: u16) -> Option<ListenId> {
        let listeners = self.listeners.borrow();
        let is_it = |listener: &Listener| listener.address == address && listener.port == port;
        let mut found = listeners.iter().filter(|(_, listener)| is_it(listener));
        found.next().map(|(listen, _)| *listen)
    }

    async fn ask(self: Rc<Self>, listen: ListenId, host: String, port: u16) {
        let event = match self.connection.listen(&host, port).await {
            Ok(port) => {
                let is_wanted = match self.listeners.borrow_mut().get_mut(&listen) {
                    Some(listener) => {
                        listener.port = port;
                        true
                    }
                    None => false,
                };
                if !is_wanted {
                    return self.connection.unlisten(&host, port).await;
                }
                let address = match host.contains(':') {
                    true => format!("[{host}]:{port}"),
                    false => format!("{host}:{port}"),
                };
                ListenEvent::Listening { listen, address }
            }
            Err(NoChannel::Refused(_)) => {
                self.listeners.borrow_mut().remove(&listen);
                let text = format!("the peer does not listen on {host} port {port}");
                let refusal = Refusal::new(Reason::NotAllowed, text);
                ListenEvent::Ended { listen, refusal }
            }
            // The connection and all requests on it have ended.
            Err(NoChannel::Lost) => return,
        };
        // If this fails, the link has ended.
        let _ = self.tell.send(event);
    }
}

/// The address that a client requests. An empty text or `*` means all IPv4 addresses.
fn ip_of(address: &str) -> Option<IpAddr> {
    match address {
        "" | "*" => Some(IpAddr::from([0, 0, 0, 0])),
        "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
        address => {
            let bare = address.trim_start_matches('[').trim_end_matches(']');
            bare.parse().ok()
        }
    }
}

impl link::Listens for Rc<Listens> {
    fn listen(&self, listen: ListenId, address: &str, _: Priority) -> Result<(), ListenError> {
        let length = address.len();
        let too_long = ListenError::AddressTooLong { length };
        if length > LISTEN_ADDRESS_LENGTH_MAX {
            return Err(too_long);
        }
        let Ok(written) = address.parse::<SocketAddr>() else {
            return Err(ListenError::Unsupported);
        };
        let (host, port) = (written.ip().to_string(), written.port());
        let listener = Listener {
            address: host.clone(),
            port,
            answer: None,
        };
        self.listeners.borrow_mut().insert(listen, listener);
        drop(self.tasks.spawn(Self::clone(self).ask(listen, host, port)));
        Ok(())
    }

    fn unlisten(&self, listen: ListenId) {
        let listener = self.listeners.borrow_mut().remove(&listen);
        if let Some(Listener { address, port, .. }) = listener {
            let connection = self.connection.clone();
            drop(self.tasks.spawn(async move {
                connection.unlisten(&address, port).await;
            }));
        }
    }

    fn listening(&self, listen: ListenId, address: &str) {
        let port = address.parse().map(|address: SocketAddr| address.port());
        let mut listeners = self.listeners.borrow_mut();
        if let (Some(listener), Ok(port)) = (listeners.get_mut(&listen), port) {
            listener.port = port;
            if let Some(answer) = listener.answer.take() {
                // This fails if the requester has given up the listener. The requester reports this
                // separately.
                let _ = answer.send(Some(port));
            }
        }
    }

    fn end_listen(&self, listen: ListenId, _: &Refusal) {
        let listener = self.listeners.borrow_mut().remove(&listen);
        if let Some(answer) = listener.and_then(|listener| listener.answer) {
            let _ = answer.send(None);
        }
    }
}
