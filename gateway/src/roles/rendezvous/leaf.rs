//! The leaf's side of a rendezvous.
//!
//! A leaf has a control connection to the rendezvous, on which both sides prove their keys. The
//! rendezvous sends a ticket on it, with which the leaf opens one more connection. This connection is
//! the carrier's: the rendezvous joins it to that of the other leaf, and both leaves then prove their
//! keys to each other.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_proto::patience;
use muxtunnel_proto::rendezvous::{KEY_BYTES, Ticket, Word, opening};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use super::wire::{read, write};
use crate::base::printable::Printable;
use crate::io::security::Credentials;
use crate::io::socket::prepare_relayed;
use crate::io::transport::Transport;
use crate::net::egress::{Address, Egress, Step};

/// Maximum time for the rendezvous and the other leaf together, on ordinary paths.
const MEET_MAX: Duration = Duration::from_secs(12);

/// A rendezvous, as a leaf reaches it.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The name of its element of `rendezvous`, or of the exit in `connect`.
    pub(crate) name: &'a str,
    pub(crate) address: &'a Address,
    pub(crate) egress: &'a Egress,
}

impl Place<'_> {
    /// Asks for the exit that has one of `keys`. Returns a connection to this exit.
    ///
    /// # Errors
    /// The rendezvous refused the request, is another gateway, or has disconnected.
    pub(crate) async fn visit(
        self,
        credentials: &Arc<Credentials>,
        keys: Vec<[u8; KEY_BYTES]>,
    ) -> Result<Box<dyn Transport>> {
        let visit = Word::Visit(keys);
        let visit = async |control: Box<dyn Transport>| {
            write(&*control, &visit).await?;
            let ticket = ticket(&*control).await?;
            let carrier = self.open(ticket).await?;
            match read(&*control).await? {
                Word::Joined => Ok(carrier),
                word => Err(refused(word)),
            }
        };
        self.within(credentials, visit).await
    }

    /// Registers an exit. Returns the control connection, on which [`ticket`]s arrive.
    ///
    /// # Errors
    /// The errors of [`Self::visit`].
    pub(crate) async fn register(
        self,
        credentials: &Arc<Credentials>,
    ) -> Result<Box<dyn Transport>> {
        let register = async |control: Box<dyn Transport>| {
            write(&*control, &Word::Register).await?;
            match read(&*control).await? {
                Word::Registered => Ok(control),
                word => Err(refused(word)),
            }
        };
        self.within(credentials, register).await
    }

    /// Opens the connection of `ticket`.
    ///
    /// # Errors
    /// The rendezvous does not answer.
    pub(crate) async fn open(self, ticket: Ticket) -> Result<Box<dyn Transport>> {
        let mut tcp = self.egress.tcp(self.address).await?;
        tcp.write_all(&opening(&ticket)).await?;
        Ok(self.egress.carried(tcp, self.address))
    }

    /// Runs `step` on a new control connection, with one time limit for the proofs and the step.
    async fn within<T>(
        self,
        credentials: &Arc<Credentials>,
        step: impl AsyncFnOnce(Box<dyn Transport>) -> Result<T>,
    ) -> Result<T> {
        let keys = credentials.keys().ok_or_else(|| {
            let text = "a rendezvous requires keys: set security mode PublicKeys";
            Error::new(ErrorKind::InvalidInput, text)
        })?;
        let begun = Instant::now();
        let tcp = self.egress.tcp(self.address).await?;
        prepare_relayed(&tcp);
        let below = self.egress.carried(tcp, self.address);
        let least = patience(MEET_MAX, begun.elapsed());
        let met = async |limit: Duration| {
            let met = async {
                let control = keys.meet(below, (self.name, self.address.host())).await?;
                step(control).await
            };
            tokio::time::timeout(limit, met).await.unwrap_or_else(|_| {
                let text = format!("the rendezvous did not answer within {} s", limit.as_secs());
                Err(Error::new(ErrorKind::TimedOut, text))
            })
        };
        let step = (Step::Meet, self.address.name());
        self.egress.waits.within(step, least, met).await
    }
}

/// Reads the next ticket.
///
/// # Errors
/// The rendezvous has disconnected, refused the request, or sent another message.
pub(crate) async fn ticket(control: &dyn Transport) -> Result<Ticket> {
    match read(control).await? {
        Word::Ticket(ticket) => Ok(ticket),
        word => Err(refused(word)),
    }
}

fn refused(word: Word) -> Error {
    match word {
        Word::Refused { reason, .. } => Error::new(
            ErrorKind::ConnectionRefused,
            format!("the rendezvous refused: {}", Printable(&reason)),
        ),
        _ => Error::new(
            ErrorKind::InvalidData,
            "the rendezvous sent an unexpected message",
        ),
    }
}
