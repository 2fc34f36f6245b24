//! The leaf's side of a rendezvous: connects a leaf to the other leaf.

use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::Leaf as Configured;
use muxtunnel_gateway_config::status::FileUse;
use muxtunnel_proto::rendezvous::{Purpose, Ticket, Word};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpStream;

use super::proof::Greeted;
use super::secrets::Secret;
use super::wire::{read, write};
use crate::base::file_states::FileStates;
use crate::base::files::{FollowedFiles, Unusable};
use crate::base::printable::Printable;

/// Maximum time for the rendezvous and the other leaf together, on ordinary paths.
pub(crate) const MEET_MAX: Duration = Duration::from_secs(12);

/// The credentials of a leaf, which all workers share.
#[derive(Clone)]
pub(crate) struct Leaf {
    name: String,
    file: PathBuf,
    followed: FollowedFiles,
    secret: Arc<Mutex<Arc<Secret>>>,
}

impl Leaf {
    /// Reads the secret.
    ///
    /// # Errors
    /// The file is invalid.
    pub(crate) fn read(configured: &Configured) -> Result<Self, Unusable> {
        let file = PathBuf::from(&configured.secret_file);
        let followed = FollowedFiles::look(FileUse::Rendezvous, &[&file]);
        let secret = Arc::new(Secret::read(&file)?);
        Ok(Self {
            name: configured.name.clone(),
            file,
            followed,
            secret: Arc::new(Mutex::new(secret)),
        })
    }

    /// Uses a changed file for new connections. An invalid file is reported and has no other
    /// effect.
    pub(super) async fn follow(&self, states: &FileStates) {
        let mut followed = self.followed.clone();
        followed.publish(states, &Ok::<_, Unusable>(()));
        followed.follow(states, || self.read_again()).await;
    }

    fn read_again(&self) -> Result<(), Unusable> {
        let secret = Secret::read(&self.file).inspect_err(|error| {
            tracing::error!(%error, "New secret rejected; the last valid secret remains in force");
        })?;
        *self.secret() = Arc::new(secret);
        tracing::info!(
            name = self.name,
            "Secret reloaded; new connections to the rendezvous use it"
        );
        Ok(())
    }

    fn secret(&self) -> MutexGuard<'_, Arc<Secret>> {
        self.secret.lock()
    }

    /// Requests that the rendezvous connects `tcp` to the other leaf, within `limit`.
    ///
    /// # Errors
    /// The rendezvous refused the request, does not have the secret, or has disconnected.
    pub(crate) async fn visit(&self, tcp: &mut TcpStream, limit: Duration) -> std::io::Result<()> {
        self.meet(tcp, Purpose::Visit, limit).await
    }

    /// Works as [`Self::visit`], for a leaf that was invited.
    ///
    /// # Errors
    /// The errors of [`Self::visit`].
    pub(crate) async fn attend(
        &self,
        tcp: &mut TcpStream,
        ticket: Ticket,
        limit: Duration,
    ) -> std::io::Result<()> {
        self.meet(tcp, Purpose::Attend(ticket), limit).await
    }

    /// Registers the leaf, so that the rendezvous sends [`invitation`]s on the connection.
    ///
    /// # Errors
    /// The errors of [`Self::visit`].
    pub(crate) async fn register(
        &self,
        tcp: &mut TcpStream,
        limit: Duration,
    ) -> std::io::Result<()> {
        self.meet(tcp, Purpose::Register, limit).await
    }

    async fn meet(
        &self,
        tcp: &mut TcpStream,
        purpose: Purpose,
        limit: Duration,
    ) -> std::io::Result<()> {
        let meet = tokio::time::timeout(limit, self.prove(tcp, purpose));
        meet.await.unwrap_or_else(|_| {
            let text = format!("the rendezvous did not answer within {} s", limit.as_secs());
            Err(Error::new(ErrorKind::TimedOut, text))
        })
    }

    async fn prove(&self, tcp: &mut TcpStream, purpose: Purpose) -> std::io::Result<()> {
        tcp.set_nodelay(true)?;
        let nonce = rand::random();
        let name = self.name.clone();
        let greeting = Word::Greeting {
            purpose,
            nonce,
            name: name.clone(),
        };
        write(tcp, &greeting).await?;
        let challenge = match read(tcp).await? {
            Word::Challenge(challenge) => challenge,
            word => return Err(refused(word)),
        };
        let greeted = Greeted {
            purpose,
            nonce,
            name,
            challenge,
        };
        let secret = Arc::clone(&self.secret());
        write(tcp, &Word::Proof(greeted.proof(&secret))).await?;
        match read(tcp).await? {
            Word::Accepted(proof) if greeted.is_accepted_by(&secret, &proof) => Ok(()),
            Word::Accepted(_) => Err(Error::other(format!(
                "the rendezvous did not prove that it has the secret of the name {:?}: check the address of the \
                 rendezvous, and the secret",
                greeted.name
            ))),
            word => Err(refused(word)),
        }
    }
}

/// Reads the ticket of the next visitor.
///
/// # Errors
/// The rendezvous has disconnected, or sent another message.
pub(crate) async fn invitation(tcp: &mut TcpStream) -> std::io::Result<Ticket> {
    match read(tcp).await? {
        Word::Invite(ticket) => Ok(ticket),
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
