//! A leaf's side: how it comes to a connection with the other leaf.

use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::Leaf as Configured;
use muxtunnel_proto::rendezvous::{Purpose, Ticket, Word};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpStream;

use super::proof::Greeted;
use super::secrets::Secret;
use super::wire::{read, write};
use crate::base::files::{FollowedFiles, Unusable};
use crate::base::printable::Printable;

/// How long the rendezvous and the other leaf may take together.
const MEET_MAX: Duration = Duration::from_secs(12);

/// What a leaf shows; shared by all workers.
#[derive(Clone)]
pub(crate) struct Leaf {
    name: String,
    file: PathBuf,
    followed: FollowedFiles,
    secret: Arc<Mutex<Arc<Secret>>>,
}

impl Leaf {
    /// Reads its secret.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn read(configured: &Configured) -> Result<Self, Unusable> {
        let file = PathBuf::from(&configured.secret_file);
        let followed = FollowedFiles::look(&[&file]);
        let secret = Arc::new(Secret::read(&file)?);
        Ok(Self {
            name: configured.name.clone(),
            file,
            followed,
            secret: Arc::new(Mutex::new(secret)),
        })
    }

    /// Shows what a changed file says from the next connection on. One that cannot be used changes nothing.
    pub(super) async fn follow(&self) {
        let changed = || match Secret::read(&self.file) {
            Ok(secret) => {
                *self.secret() = Arc::new(secret);
                tracing::info!(
                    name = self.name,
                    "Another secret is shown to the rendezvous from now on"
                );
            }
            Err(error) => {
                tracing::error!(%error, "Secret not taken over; the last good one stays");
            }
        };
        self.followed.clone().follow(changed).await;
    }

    fn secret(&self) -> MutexGuard<'_, Arc<Secret>> {
        self.secret.lock()
    }

    /// Makes a connection to the rendezvous one to the other leaf.
    ///
    /// # Errors
    /// It is refused, does not know the secret, or is gone.
    pub(crate) async fn visit(&self, tcp: &mut TcpStream) -> std::io::Result<()> {
        self.meet(tcp, Purpose::Visit).await
    }

    /// The same for one that was invited.
    ///
    /// # Errors
    /// As [`Self::visit`].
    pub(crate) async fn attend(&self, tcp: &mut TcpStream, ticket: Ticket) -> std::io::Result<()> {
        self.meet(tcp, Purpose::Attend(ticket)).await
    }

    /// Has visitors announced on the connection: [`invitation`].
    ///
    /// # Errors
    /// As [`Self::visit`].
    pub(crate) async fn register(&self, tcp: &mut TcpStream) -> std::io::Result<()> {
        self.meet(tcp, Purpose::Register).await
    }

    async fn meet(&self, tcp: &mut TcpStream, purpose: Purpose) -> std::io::Result<()> {
        let meet = tokio::time::timeout(MEET_MAX, self.prove(tcp, purpose));
        meet.await.unwrap_or_else(|_| {
            let text = format!(
                "the rendezvous did not answer within {} s",
                MEET_MAX.as_secs()
            );
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
            Word::Accepted(_) => Err(Error::other(
                "the rendezvous does not know the secret of the name",
            )),
            word => Err(refused(word)),
        }
    }
}

/// The next visitor's ticket.
///
/// # Errors
/// The rendezvous is gone, or says something else.
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
            format!("the rendezvous refuses: {}", Printable(&reason)),
        ),
        _ => Error::new(
            ErrorKind::InvalidData,
            "the rendezvous says what makes no sense now",
        ),
    }
}
