//! Both ends of connections on loopback.

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use muxtunnel_gateway_config::{Certificates, Config, Peer, Role, Security, SessionConfig};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, ConnectionIdGenerator, Runtime, UdpPoller};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::steering::Ids;
use super::*;

/// The protocol of most tests.
pub(crate) const PROTOCOL: &str = "QUIC";

/// The configuration of a session with this role.
pub(crate) fn session(protocol: &str, role: &str) -> SessionConfig {
    config(protocol, role).session()
}

pub(crate) fn config(protocol: &str, role: &str) -> Config {
    let security = "{mode: Certificates, certificate: /c, key: /k, ca: /a}";
    let memory = "{receive: 16Mi, retain: 4Mi}";
    let names = if role == ENTRY {
        "  certificateNames: [far]\n"
    } else {
        ""
    };
    let text =
        format!("{role}\n{names}protocol: {protocol}\nsecurity: {security}\nmemory: {memory}\n");
    Config::from_yaml(&text).unwrap()
}

pub(crate) const ENTRY: &str = "role: Entry\nconnect:\n- name: far\n  address: far:1";
pub(crate) const EXIT: &str = "role: Exit\nlisten: '127.0.0.1:1'";

/// The credentials of `entry` and `exit`. Each pair consists of the end's own name and the
/// permitted name of its peer.
pub(crate) fn credentials(entry: (&str, &str), exit: (&str, &str)) -> [Credentials; 2] {
    let dir = tempfile::tempdir().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = dir.path().join("ca");
    std::fs::write(&ca, params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    [(entry, Role::Entry), (exit, Role::Exit)].map(|((own, peer), role)| {
        let params = CertificateParams::new([own.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let config = Certificates {
            certificate: dir.path().join("certificate"),
            key: dir.path().join("key"),
            ca: ca.clone(),
            peers: vec![Peer {
                name: (role == Role::Entry).then(|| "exit".to_owned()),
                ..Peer::with_certificate_name(peer.to_owned())
            }],
        };
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(&config.certificate, certificate.pem()).unwrap();
        std::fs::write(&config.key, key.serialize_pem()).unwrap();
        Credentials::load(&Security::Certificates(config), role).unwrap()
    })
}

/// The result of a dial at both ends. `retries`: whether the client must prove its address first.
async fn met(
    protocol: &str,
    [near, far]: [impl std::borrow::Borrow<Credentials>; 2],
    retries: bool,
) -> (Result<Connection>, Result<Connection>) {
    let (near, far) = (near.borrow(), far.borrow());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    let listener = Listener::new(socket, (0, 1), (&session(protocol, EXIT), 1), far).unwrap();
    let patience = Patience::fixed(Duration::from_secs(20));
    let accepts = async {
        let mut attempt = listener.next().await.unwrap();
        assert!(!attempt.is_validated());
        if retries {
            attempt.retry();
            attempt = listener.next().await.unwrap();
            assert!(attempt.is_validated());
        }
        attempt.secure(far, &patience).await
    };
    let settings = Settings::new(&session(protocol, ENTRY));
    tokio::join!(
        dial(to, To::exit("far"), near, &settings, &patience),
        accepts
    )
}

/// A connection of an entry to an exit.
pub(crate) async fn pair(protocol: &str) -> (Connection, Connection) {
    let credentials = credentials(("entry", "exit"), ("exit", "entry"));
    let (near, far) = met(protocol, credentials, false).await;
    (near.unwrap(), far.unwrap())
}

#[tokio::test]
async fn each_end_knows_who_the_other_is() {
    let (near, far) = pair(PROTOCOL).await;
    let name = |connection: &Connection| connection.proof().map(|proof| proof.identity.clone());
    assert_eq!(name(&near).as_deref(), Some("exit"));
    assert_eq!(name(&far).as_deref(), Some("entry"));
    assert_eq!(
        near.peer(),
        far.quic().local_ip().map_or_else(
            || near.peer(),
            |ip| SocketAddr::new(ip, near.quic().remote_address().port()).to_string()
        )
    );
}

#[tokio::test]
async fn a_client_that_has_to_show_where_it_is_comes_again() {
    let credentials = credentials(("entry", "exit"), ("exit", "entry"));
    let (near, far) = met(PROTOCOL, credentials, true).await;
    assert!(near.is_ok() && far.is_ok());
}

#[tokio::test]
async fn whoever_is_somebody_else_is_refused() {
    for (entry, exit) in [
        (("entry", "exit"), ("another", "entry")),
        (("another", "exit"), ("exit", "entry")),
    ] {
        let (near, far) = met(PROTOCOL, credentials(entry, exit), false).await;
        assert!(far.is_err(), "{entry:?} {exit:?}");
        // A client completes its handshake before the server has verified it.
        if let Ok(near) = near {
            near.quic().closed().await;
        }
    }
}

/// A connection id of a listener on `address`.
pub(crate) fn id_of(credentials: &Credentials, address: SocketAddr) -> Vec<u8> {
    let key = credentials.quic_reset_key(address).unwrap();
    let (worker, workers) = (0, 1);
    let mut ids = Ids {
        worker,
        workers,
        key,
    };
    ids.generate_cid().to_vec()
}

/// A socket whose next calls to receive fail.
#[derive(Debug)]
struct Faulty {
    below: Arc<dyn AsyncUdpSocket>,
    failures: AtomicU32,
}

impl Faulty {
    fn new() -> Arc<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        Arc::new(Self {
            below: TokioRuntime.wrap_udp_socket(socket).unwrap(),
            failures: AtomicU32::new(0),
        })
    }
}

impl AsyncUdpSocket for Faulty {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.below).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> Result<()> {
        self.below.try_send(transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<Result<usize>> {
        let fails = |left: u32| left.checked_sub(1);
        match self.failures.try_update(Relaxed, Relaxed, fails) {
            Ok(_) => Poll::Ready(Err(ErrorKind::OutOfMemory.into())),
            Err(_) => self.below.poll_recv(context, buffers, metas),
        }
    }

    fn local_addr(&self) -> Result<SocketAddr> {
        self.below.local_addr()
    }
}

fn listener_on(socket: &Arc<Faulty>, credentials: &Credentials) -> Listener {
    let socket: Arc<dyn AsyncUdpSocket> = Arc::clone(socket) as _;
    let session = session(PROTOCOL, EXIT);
    Listener::on(socket, (0, 1), (&session, 1), credentials).unwrap()
}

#[tokio::test]
async fn a_listener_whose_endpoint_has_failed_accepts_again() {
    let [near, far] = credentials(("entry", "exit"), ("exit", "entry"));
    let socket = Faulty::new();
    let to = socket.local_addr().unwrap();
    let listener = listener_on(&socket, &far);
    let settings = Settings::new(&session(PROTOCOL, ENTRY));
    let within = Duration::from_secs(20);
    let patience = Patience::fixed(within);
    let connect = async || {
        let accepts = async { listener.next().await.unwrap().secure(&far, &patience).await };
        let connected = async {
            tokio::join!(
                dial(to, To::exit("far"), &near, &settings, &patience),
                accepts
            )
        };
        let (near, far) = tokio::time::timeout(2 * within, connected).await.unwrap();
        (near.unwrap(), far.unwrap())
    };
    for _ in 0..3 {
        let (_near, far) = connect().await;
        socket.failures.store(1, Relaxed);
        // The next datagram wakes the endpoint, and its connections end together with it.
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(b"anything", to).unwrap();
        far.quic().closed().await;
    }
    connect().await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_whose_socket_fails_for_good_says_so() {
    let [_, far] = credentials(("entry", "exit"), ("exit", "entry"));
    let socket = Faulty::new();
    socket.failures.store(u32::MAX, Relaxed);
    let listener = listener_on(&socket, &far);
    let error = listener.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
}

#[tokio::test]
async fn a_stranger_with_the_public_key_of_a_peer_alone_is_refused() {
    use crate::io::transport::with_a_forger;
    let [far, forger] = with_a_forger();
    let keys = |near, far| [Credentials::Keys(near), Credentials::Keys(far)];
    let (near, refused) = met(PROTOCOL, keys(forger, far), false).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("BadSignature"), "{refused}");
    // The stranger's handshake is over before the exit verifies the signature.
    if let Ok(near) = near {
        let decrypt_error = quinn::TransportErrorCode::crypto(51);
        match near.quic().closed().await {
            quinn::ConnectionError::ConnectionClosed(close) => {
                assert_eq!(close.error_code, decrypt_error);
            }
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn an_entry_presents_its_older_key_if_the_exit_refuses_the_newer_one() {
    use crate::io::transport::rotating;
    let (near, far, [old, new]) = rotating();
    let [near, far] = [Credentials::Keys(near), Credentials::Keys(far)].map(Arc::new);
    let mut refused = false;
    for attempt in 0.. {
        let (dialled, accepted) = met(PROTOCOL, [&near, &far].map(Arc::clone), false).await;
        match accepted {
            Ok(accepted) => {
                assert_eq!(accepted.proof().unwrap().identity, old);
                break;
            }
            Err(error) => assert!(error.to_string().contains(&new) && attempt == 0, "{error}"),
        }
        refused = true;
        // The session reports the end of its connection.
        if let Ok(dialled) = dialled {
            let end = KeyRefusal::of_quic(dialled.quic().closed().await);
            assert_eq!(KeyRefusal::find(&end), Some(&KeyRefusal::ByPeer(None)));
            dialled.key_refused();
        }
    }
    assert!(refused);
}
