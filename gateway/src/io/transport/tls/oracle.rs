//! Properties of any TLS peer, for tests and fuzz targets.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use futures::executor::block_on;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;
use crate::io::duplex::Duplex;
use crate::io::transport::{Detached, HANDSHAKE_BYTES_MAX};

pub(crate) use super::record::oracle::records;

/// Maximum number of bytes that one run changes.
const CHANGES_MAX: usize = 32;

/// A client and a server that accept each other.
pub(in crate::io) fn both() -> (Tls, Tls) {
    match made() {
        Ok(both) => both,
        Err(error) => unreachable!("{error}"),
    }
}

impl Tls {
    /// The configuration for a dial of the exit with the name `exit`, and the name to request.
    pub(super) fn client(&self) -> (Arc<ClientConfig>, ServerName<'static>) {
        match self.exits.get("exit") {
            Some(exit) => (Arc::clone(&exit.client), exit.server_name.clone()),
            None => unreachable!("these are no credentials of an entry"),
        }
    }
}

fn made() -> std::result::Result<(Tls, Tls), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let ca = dir.path().join("ca");
    std::fs::write(&ca, params.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(params, key);
    let end =
        |own: &str, peer: &str, role| -> std::result::Result<Tls, Box<dyn std::error::Error>> {
            let params = CertificateParams::new([own.to_owned()])?;
            let key = KeyPair::generate()?;
            let config = Certificates {
                certificate: dir.path().join("certificate"),
                key: dir.path().join("key"),
                ca: ca.clone(),
                peers: vec![Peer {
                    name: Some(peer.to_owned()),
                    ..Peer::with_certificate_name(peer.to_owned())
                }],
            };
            let certificate = params.signed_by(&key, &issuer)?;
            std::fs::write(&config.certificate, certificate.pem())?;
            std::fs::write(&config.key, key.serialize_pem())?;
            Ok(Tls::load(&config, role)?)
        };
    Ok((
        end("entry", "exit", Role::Entry)?,
        end("exit", "entry", Role::Exit)?,
    ))
}

/// The ends of all runs, because a key pair costs as much as several handshakes.
static ENDS: LazyLock<(Tls, Tls)> = LazyLock::new(both);

/// One direction of a connection in memory.
#[derive(Debug, Default)]
struct Direction {
    bytes: VecDeque<u8>,
    /// Number of bytes that were written.
    written: usize,
    /// The offsets of the bytes that change on the way, and how they change.
    changes: Vec<(usize, u8)>,
    /// Whether a byte has changed.
    has_changed: bool,
    ended: bool,
    reader: Option<Waker>,
}

impl Direction {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let at = self.written;
            let changes = self.changes.iter().filter(|(offset, _)| *offset == at);
            let change = changes.fold(0, |all, (_, change)| all ^ change);
            self.has_changed |= change != 0;
            self.bytes.push_back(byte ^ change);
            self.written += 1;
        }
        self.wake();
    }

    fn end(&mut self) {
        self.ended = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

/// One end of a connection in memory. A read returns at most `piece` bytes.
#[derive(Debug)]
struct End {
    from: Rc<RefCell<Direction>>,
    to: Rc<RefCell<Direction>>,
    piece: usize,
    read: RefCell<usize>,
}

impl Duplex for End {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut from = self.from.borrow_mut();
        if from.bytes.is_empty() && !from.ended {
            from.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_writable(&self, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn try_read(&self, bytes: &mut [u8]) -> Result<usize> {
        let mut from = self.from.borrow_mut();
        if from.bytes.is_empty() && !from.ended {
            return Err(ErrorKind::WouldBlock.into());
        }
        let length = bytes.len().min(self.piece).min(from.bytes.len());
        for (byte, read) in bytes.iter_mut().zip(from.bytes.drain(..length)) {
            *byte = read;
        }
        *self.read.borrow_mut() += length;
        Ok(length)
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        let mut to = self.to.borrow_mut();
        slices.iter().for_each(|slice| to.write(slice));
        Ok(slices.iter().map(|slice| slice.len()).sum())
    }

    fn finish(&self) -> Result<()> {
        self.to.borrow_mut().end();
        Ok(())
    }
}

impl Transport for End {
    fn shut(&self) {
        self.to.borrow_mut().end();
    }

    fn detach(self: Box<Self>) -> Result<Detached> {
        Err(ErrorKind::Unsupported.into())
    }
}

/// Two ends of a connection.
fn connected(piece: usize) -> (End, End) {
    let [up, down] = [(); 2].map(|()| Rc::new(RefCell::new(Direction::default())));
    let end = |from: &Rc<_>, to: &Rc<_>| End {
        from: Rc::clone(from),
        to: Rc::clone(to),
        piece,
        read: RefCell::new(0),
    };
    (end(&down, &up), end(&up, &down))
}

/// Runs one side of the handshake, and ends its direction if it fails.
async fn shake<H: handshake::Hands>(end: &End, hands: H) -> Result<handshake::Made> {
    let made = handshake::run(end, hands).await;
    if made.is_err() {
        end.shut();
    }
    assert!(*end.read.borrow() <= HANDSHAKE_BYTES_MAX);
    made
}

/// Runs the handshake of `ends` to its end. If a changed length makes both ends wait for bytes, the
/// connection ends, as it does at the time limit of handshakes.
fn until_ended<T>(both: impl Future<Output = T>, ends: [&End; 2]) -> T {
    let mut both = pin!(both);
    let mut before = None;
    loop {
        if let Some(made) = both.as_mut().now_or_never() {
            return made;
        }
        let done = ends.map(|end| (*end.read.borrow(), end.to.borrow().written));
        if before == Some(done) {
            ends.iter().for_each(|end| end.shut());
        }
        before = Some(done);
    }
}

/// A handshake between honest ends over a path that changes bytes, or a peer that sends only the
/// input. The first byte selects the case and the length of the pieces that a read returns.
///
/// Checks that a handshake fails or gives both ends the same keys and the certificates that the
/// peer has; that it succeeds if no byte changes; that no end reads more than
/// [`HANDSHAKE_BYTES_MAX`]; and that the strange peer gets no connection.
pub(crate) fn handshakes(input: &[u8]) {
    let Some((&flags, rest)) = input.split_first() else {
        return;
    };
    let piece = 1 + usize::from(flags >> 2) * 64;
    let (near, far) = connected(piece);
    let (client, server) = &*ENDS;
    let dials = || {
        let (config, name) = client.client();
        let alpn = Inside::Carrier.alpn();
        UnbufferedClientConnection::new_with_alpn(config, name, alpn)
    };
    let accepts = || UnbufferedServerConnection::new(server.servers.of(Inside::Carrier));
    let (Ok(dials), Ok(accepts)) = (dials(), accepts()) else {
        unreachable!("the configuration of an end is not valid");
    };
    match flags & 3 {
        0 | 1 => {
            let (mut up, mut down) = (near.to.borrow_mut(), far.to.borrow_mut());
            for change in rest.chunks_exact(3).take(CHANGES_MAX) {
                let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
                let direction = if at & 1 == 0 { &mut up } else { &mut down };
                direction.changes.push((at >> 1, change[2]));
            }
            drop((up, down));
            let both = async { futures::join!(shake(&near, dials), shake(&far, accepts)) };
            let made = until_ended(both, [&near, &far]);
            let has_changed = near.to.borrow().has_changed || far.to.borrow().has_changed;
            judge(made, has_changed);
        }
        2 => {
            far.to.borrow_mut().write(rest);
            far.shut();
            assert!(block_on(shake(&near, dials)).is_err());
        }
        _ => {
            near.to.borrow_mut().write(rest);
            near.shut();
            assert!(block_on(shake(&far, accepts)).is_err());
        }
    }
}

/// Checks the results of both ends of a handshake.
fn judge(made: (Result<handshake::Made>, Result<handshake::Made>), has_changed: bool) {
    let (client, server) = &*ENDS;
    let certificate_of = |tls: &Tls| tls.certificate.fingerprint.clone();
    let check = |made: &handshake::Made, part: Part<'_>, own: &Tls, peer: &Tls| {
        assert_eq!(
            made.alpn.as_deref(),
            Inside::Carrier.alpn().first().map(Vec::as_slice)
        );
        let proof = own.proof(part, made.chain.clone());
        let shown = proof
            .ok()
            .and_then(|proof| proof.chain.first().and_then(facts));
        assert_eq!(
            shown.map(|shown| shown.fingerprint),
            Some(certificate_of(peer))
        );
    };
    match made {
        (Ok(near), Ok(far)) => {
            check(&near, Part::Dials(To::exit("exit")), client, server);
            check(&far, Part::Accepts, server, client);
        }
        // A client has finished before the server has read its last message.
        (Ok(near), Err(_)) => {
            assert!(has_changed);
            check(&near, Part::Dials(To::exit("exit")), client, server);
        }
        (near, far) => {
            assert!(has_changed, "{:?} {:?}", near.err(), far.err());
        }
    }
}

/// A certificate of a peer. Checks that its name is the first one of `peers` that it has, and that
/// no certificate has a name only because other names are permitted, too.
pub(crate) fn certificates(input: &[u8]) {
    const PEERS: [&str; 4] = [
        "exit",
        "entry.example",
        "10.0.0.1",
        "spiffe://example/entry",
    ];
    static VERIFIERS: LazyLock<Vec<PeerVerifier>> = LazyLock::new(|| {
        let of = |peers: &[&str]| {
            let peer = |peer: &&str| Peer::with_certificate_name((*peer).to_owned());
            let peers = peers.iter().map(peer).collect();
            match PeerVerifier::new(Vec::new(), &provider(), peers) {
                Ok(verifier) => verifier,
                Err(error) => unreachable!("{error}"),
            }
        };
        let alone = PEERS.map(|peer| of(&[peer]));
        alone.into_iter().chain([of(&PEERS)]).collect()
    });
    let certificate = CertificateDer::from(input);
    let name = |verifier: &PeerVerifier| verifier.identity(&certificate, UnixTime::now()).ok();
    let alone = VERIFIERS[..PEERS.len()].iter().map(name);
    assert_eq!(name(&VERIFIERS[PEERS.len()]), alone.flatten().next());
    // A certificate whose dates this side shows has an end, or ended before 1970.
    if let Some(facts) = facts(&certificate) {
        assert!(not_after(&certificate).is_some() || facts.not_after.as_str() < "1970");
    }
}
