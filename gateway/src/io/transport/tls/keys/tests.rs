mod exits;
mod rotation;

use std::path::{Path, PathBuf};

use muxtunnel_gateway_config::key_text;
use muxtunnel_testkit::socket::pair;
use rcgen::{KeyPair, PKCS_ED25519};
use rustls::client::ClientSessionMemoryCache;
use rustls::{ClientConnection, HandshakeKind, NamedGroup, ServerConnection};

use super::*;
use crate::io::duplex;
use crate::io::transport::Tcp;
pub(crate) use rotation::rotating;

/// A key pair in a file.
struct Pair {
    file: PathBuf,
    bytes: [u8; 32],
}

impl Pair {
    fn new(dir: &Path, name: &str) -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let file = dir.join(name);
        std::fs::write(&file, key.serialize_pem()).unwrap();
        let bytes = key.public_key_raw().try_into().unwrap();
        Self { file, bytes }
    }

    fn key(&self, role: Role) -> GatewayKey {
        GatewayKey::new(role, self.bytes).unwrap()
    }

    fn config(&self, peers: Vec<Peer>) -> PublicKeys {
        PublicKeys {
            private_key_files: vec![self.file.clone()],
            peers,
            peers_file: None,
            places: Vec::new(),
        }
    }

    fn entry(&self, exits: &[&Self]) -> KeyTls {
        let keys = exits.iter().map(|exit| exit.key(Role::Exit));
        let config = self.config(vec![exit_with(keys.collect())]);
        KeyTls::load(&config, Role::Entry).unwrap()
    }

    fn exit(&self, entries: &[&Self]) -> KeyTls {
        let peers = entries
            .iter()
            .map(|entry| Peer::with_key(entry.key(Role::Entry)));
        KeyTls::load(&self.config(peers.collect()), Role::Exit).unwrap()
    }
}

/// The exit of an entry.
fn exit_with(public_keys: Vec<GatewayKey>) -> Peer {
    Peer {
        name: Some("exit".to_owned()),
        public_keys,
        ..Peer::default()
    }
}

/// The key that a peer has proved.
fn proved(made: &dyn Transport) -> &[u8] {
    &made.proof().unwrap().chain[0][12..]
}

/// Two pairs and a stranger's.
fn pairs() -> (tempfile::TempDir, Pair, Pair, Pair) {
    let dir = tempfile::tempdir().unwrap();
    let [entry, exit, stranger] =
        ["entry", "exit", "stranger"].map(|name| Pair::new(dir.path(), name));
    (dir, entry, exit, stranger)
}

async fn met(
    entry: &KeyTls,
    exit: &KeyTls,
) -> (Result<Box<dyn Transport>>, Result<Box<dyn Transport>>) {
    let (near, far) = pair().await;
    let (near, far) = (Tcp::boxed(near), Tcp::boxed(far));
    let near = async {
        let made = entry
            .secure(
                near,
                Part::Dials(To::exit("exit.example.com")),
                Inside::Carrier,
            )
            .await?;
        // The client of a real session also writes at once.
        duplex::write_all(&*made, b"hello").await?;
        let mut read = [0; 5];
        duplex::read_exact(&*made, &mut read).await?;
        Ok(made)
    };
    let far = async {
        let made = exit.secure(far, Part::Accepts, Inside::Carrier).await?;
        let mut read = [0; 5];
        duplex::read_exact(&*made, &mut read).await?;
        duplex::write_all(&*made, &read).await?;
        Ok(made)
    };
    tokio::join!(near, far)
}

#[tokio::test]
async fn each_end_knows_the_other_by_its_key() {
    let (_dir, entry, exit, stranger) = pairs();
    let (near, far) = met(&entry.entry(&[&stranger, &exit]), &exit.exit(&[&entry])).await;
    let (near, far) = (near.unwrap(), far.unwrap());
    assert_eq!(near.identity(), Some("exit"));
    assert_eq!(proved(&*near), exit.bytes);
    assert_eq!(far.identity(), Some(&*entry.key(Role::Entry).to_string()));
}

#[tokio::test]
async fn an_unknown_entry_is_named_at_the_exit_and_learns_that_it_was_refused() {
    let (_dir, entry, exit, stranger) = pairs();
    // The bytes that the entry has sent after its handshake must not turn the alert into a reset.
    for _ in 0..50 {
        let (near, far) = met(&stranger.entry(&[&exit]), &exit.exit(&[&entry])).await;
        let (near, far) = (near.unwrap_err(), far.unwrap_err());
        let key = stranger.key(Role::Entry);
        assert_eq!(
            far.to_string(),
            format!(
                "the peer's key {key} is not in security.peers: if the peer may connect, compare the key with `muxgate keygen --show` at the peer, and add the key"
            )
        );
        assert_eq!(
            KeyRefusal::find(&near),
            Some(&KeyRefusal::ByPeer(Some(key))),
            "{near}"
        );
    }
}

#[tokio::test]
async fn an_unknown_exit_is_named_at_the_entry_and_learns_that_it_was_refused() {
    let (_dir, entry, exit, stranger) = pairs();
    let (near, far) = met(&entry.entry(&[&exit]), &stranger.exit(&[&entry])).await;
    let key = stranger.key(Role::Exit);
    assert!(near.unwrap_err().to_string().contains(&key.to_string()));
    let far = far.unwrap_err();
    assert_eq!(
        KeyRefusal::find(&far),
        Some(&KeyRefusal::ByPeer(Some(key))),
        "{far}"
    );
}

#[test]
fn only_one_entry_of_ed25519_is_a_key() {
    let (_dir, entry, exit, _stranger) = pairs();
    let pins = exit.exit(&[&entry]).pins;
    let now = UnixTime::now();
    let spki = entry.entry(&[&exit]).own_spki();
    assert!(pins.identity(&spki, &[], now).is_ok());
    let rest = [CertificateDer::from(spki.clone())];
    assert_eq!(pins.identity(&spki, &rest, now), Err(pins::Refused::NoKey));
    let mut other = spki.clone();
    other[8] ^= 1;
    assert_eq!(pins.identity(&other, &[], now), Err(pins::Refused::NoKey));
    assert_eq!(
        pins.identity(&spki[..43], &[], now),
        Err(pins::Refused::NoKey)
    );
    assert_eq!(pins.identity(&[], &[], now), Err(pins::Refused::NoKey));
}

impl KeyTls {
    fn own_spki(&self) -> Vec<u8> {
        let mut spki = vec![0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];
        spki.extend(self.own[0].key.bytes());
        spki
    }

    fn client(&self) -> ClientConfig {
        ClientConfig::clone(&self.exits["exit"].clients[0])
    }

    /// These credentials with the public keys of `self` and the private key of `other`. Public keys
    /// are public, so a stranger can present any of them.
    pub(crate) fn forged(&self, other: &Self) -> Self {
        let private = Arc::clone(&other.own[0].certified.key);
        let spki = vec![CertificateDer::from(self.own_spki())];
        let own = Own {
            key: self.own[0].key,
            certified: Arc::new(CertifiedKey::new(spki, private)),
        };
        let secret = self.servers.reset_secret.clone();
        let peers = (self.pins.peers().to_vec(), self.inline);
        Self::with(
            (vec![own], Arc::default()),
            secret,
            peers,
            self.pins.kind(),
            &[],
        )
        .unwrap()
    }
}

/// The credentials of an exit, and of a stranger who presents the key of its entry without the private
/// key.
pub(crate) fn with_a_forger() -> [KeyTls; 2] {
    let (_dir, entry, exit, stranger) = pairs();
    let near = entry.entry(&[&exit]);
    let forger = near.forged(&stranger.entry(&[&exit]));
    [exit.exit(&[&entry]), forger]
}

/// A handshake in memory. Returns the client's end.
fn shaken(
    client: &ClientConfig,
    server: &Arc<ServerConfig>,
) -> std::result::Result<ClientConnection, rustls::Error> {
    let name = ServerName::try_from("exit.example.com").unwrap();
    let mut client = ClientConnection::new(Arc::new(client.clone()), name)?;
    let mut server = ServerConnection::new(Arc::clone(server))?;
    for _ in 0..8 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            server.read_tls(&mut bytes).unwrap();
            server.process_new_packets()?;
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(client)
}

#[test]
fn a_client_that_would_resume_shakes_hands_in_full_and_is_refused_once_its_key_is_gone() {
    let (_dir, entry, exit, stranger) = pairs();
    let mut client = entry.entry(&[&exit]).client();
    client.resumption = Resumption::store(Arc::new(ClientSessionMemoryCache::new(8)));
    client.enable_early_data = true;
    let inside = Inside::Carrier;
    client.alpn_protocols = inside.alpn();
    let server = exit.exit(&[&entry]).servers.of(inside);
    for _ in 0..3 {
        let client = shaken(&client, &server).unwrap();
        assert_eq!(client.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(client.tls13_tickets_received(), 0);
        let group = client.negotiated_key_exchange_group().unwrap();
        assert_eq!(group.name(), NamedGroup::X25519MLKEM768);
    }
    let server = exit.exit(&[&stranger]).servers.of(inside);
    let refused = shaken(&client, &server).unwrap_err();
    assert!(
        matches!(refused, rustls::Error::InvalidCertificate(_)),
        "{refused}"
    );
}

#[test]
fn a_client_without_a_key_or_with_a_certificate_is_refused() {
    let (_dir, entry, exit, _stranger) = pairs();
    let inside = Inside::Carrier;
    let server = exit.exit(&[&entry]).servers.of(inside);
    let good = entry.entry(&[&exit]);
    let anonymous = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&good.pins) as Arc<_>)
        .with_no_client_auth();
    let (tls, _) = super::super::oracle::both();
    for mut client in [anonymous, ClientConfig::clone(&tls.client().0)] {
        client.alpn_protocols = inside.alpn();
        assert!(shaken(&client, &server).is_err());
    }
}

#[test]
fn a_list_with_a_wrong_peer_is_not_loaded() {
    let (dir, entry, exit, stranger) = pairs();
    let file = dir.path().join("peers");
    let load = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let config = PublicKeys {
            peers_file: Some(file.clone()),
            places: Vec::new(),
            ..exit.config(vec![Peer::with_key(entry.key(Role::Entry))])
        };
        KeyTls::load(&config, Role::Exit).map_err(|error| error.to_string())
    };
    let stranger = stranger.key(Role::Entry);
    let loaded = load(&format!("{stranger} laptop\n")).unwrap();
    assert_eq!(loaded.peers().len(), 2);
    assert_eq!(loaded.peers()[1].name.as_deref(), Some("laptop"));
    assert!(load("").is_ok());
    let small = key_text(Role::Entry, &[0; 32]);
    for (text, problem) in [
        (format!("{stranger}\n\n{stranger}\n"), "line 3: "),
        (entry.key(Role::Entry).to_string(), "is listed twice"),
        (
            exit.key(Role::Entry).to_string(),
            "is this gateway's own key",
        ),
        (exit.key(Role::Exit).to_string(), "the key of an exit"),
        (small, "small order"),
        ("mte1".to_owned(), "line 1: the key is not"),
    ] {
        let error = load(&text).unwrap_err();
        assert!(
            error.contains(problem) && error.contains("MT0231"),
            "{error}"
        );
    }
}

#[test]
fn only_an_ed25519_key_is_loaded() {
    let (dir, entry, exit, _stranger) = pairs();
    let other = dir.path().join("other");
    let peers = vec![exit_with(vec![exit.key(Role::Exit)])];
    let p256 = KeyPair::generate().unwrap().serialize_pem();
    let public = KeyPair::generate_for(&PKCS_ED25519)
        .unwrap()
        .public_key_pem();
    for text in [&*p256, &*public, ""] {
        std::fs::write(&other, text).unwrap();
        let config = PublicKeys {
            private_key_files: vec![other.clone()],
            ..entry.config(peers.clone())
        };
        let error = KeyTls::load(&config, Role::Entry).unwrap_err().to_string();
        assert!(error.contains("muxgate keygen"), "{error}");
    }
}

#[test]
fn a_proof_stands_while_the_list_has_its_key_for_its_peer() {
    let (_dir, entry, exit, stranger) = pairs();
    let spki = entry.entry(&[&exit]).own_spki();
    let [key, other] = [&entry, &stranger].map(|pair| pair.key(Role::Entry));
    let load = |peers: Vec<Peer>| KeyTls::load(&exit.config(peers), Role::Exit).unwrap();
    let named = |keys: &[GatewayKey]| Peer {
        name: Some("site".to_owned()),
        public_keys: keys.to_vec(),
        ..Peer::with_key(key)
    };
    let now = UnixTime::now();
    let unnamed = load(vec![Peer::with_key(key)]);
    let proof = unnamed
        .proof(Part::Accepts, vec![CertificateDer::from(spki.clone())])
        .unwrap();
    assert_eq!(unnamed.standing(&proof, now), Standing::Good);
    for others in [vec![], vec![Peer::with_key(other)], vec![named(&[key])]] {
        let standing = load(others).standing(&proof, now);
        assert!(matches!(standing, Standing::Revoked(_)), "{standing:?}");
    }
    let both = load(vec![named(&[other, key])]);
    let proof = both
        .proof(Part::Accepts, vec![CertificateDer::from(spki)])
        .unwrap();
    assert_eq!(
        (&*proof.identity, both.standing(&proof, now)),
        ("site", Standing::Good)
    );
    // The peer may come with its other key.
    let standing = load(vec![named(&[other])]).standing(&proof, now);
    assert!(matches!(standing, Standing::Unverified(_)), "{standing:?}");
    for ended in [
        Peer {
            suspend: true,
            ..named(&[key])
        },
        Peer {
            expiration_time: "2020-01-01T00:00:00Z".parse().ok(),
            ..named(&[key])
        },
    ] {
        let without_key = Peer {
            public_keys: vec![other],
            ..ended.clone()
        };
        let standing = load(vec![without_key]).standing(&proof, now);
        assert!(matches!(standing, Standing::Revoked(_)), "{standing:?}");
        let ended = load(vec![ended]);
        let standing = ended.standing(&proof, now);
        assert!(matches!(standing, Standing::Revoked(_)), "{standing:?}");
        assert!(ended.proof(Part::Accepts, proof.chain.clone()).is_err());
    }
}

/// The alert with which one side refuses the other.
fn alert_between(client: &ClientConfig, server: &Arc<ServerConfig>) -> rustls::AlertDescription {
    let name = ServerName::try_from("exit.example.com").unwrap();
    let mut client = ClientConnection::new(Arc::new(client.clone()), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    for _ in 0..8 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            server.read_tls(&mut bytes).unwrap();
            if let Err(rustls::Error::AlertReceived(alert)) = server.process_new_packets() {
                return alert;
            }
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).unwrap();
            if let Err(rustls::Error::AlertReceived(alert)) = client.process_new_packets() {
                return alert;
            }
        }
    }
    panic!("no side refuses the other")
}

#[test]
fn a_peer_without_the_private_key_learns_nothing_about_the_list() {
    let (_dir, entry, exit, stranger) = pairs();
    let inside = Inside::Carrier;
    let exit_keys = exit.exit(&[&entry]);
    let server = exit_keys.servers.of(inside);
    // The stranger presents the listed key, and a key that is not listed, without their private keys.
    let unlisted = stranger.entry(&[&exit]);
    let listed = entry.entry(&[&exit]);
    let alerts = [(&listed, &unlisted), (&unlisted, &listed)].map(|(key, private)| {
        let mut client = key.forged(private).client();
        client.alpn_protocols = inside.alpn();
        let refused = shaken(&client, &server).unwrap_err();
        let bad = rustls::Error::from(rustls::CertificateError::BadSignature);
        assert_eq!(refused, bad);
        alert_between(&client, &server)
    });
    assert_eq!(alerts, [rustls::AlertDescription::DecryptError; 2]);
    // A key is named only if its owner has proved it.
    let mut client = unlisted.client();
    client.alpn_protocols = inside.alpn();
    let refused = shaken(&client, &server).unwrap_err().to_string();
    let key = stranger.key(Role::Entry).to_string();
    assert!(refused.contains(&key), "{refused}");
    let alert = alert_between(&client, &server);
    assert_eq!(alert, rustls::AlertDescription::CertificateUnknown);
    // The entry judges the exit in the same order.
    let forger = exit_keys.forged(&stranger.exit(&[&entry]));
    let mut client = listed.client();
    client.alpn_protocols = inside.alpn();
    let alert = alert_between(&client, &forger.servers.of(inside));
    assert_eq!(alert, rustls::AlertDescription::DecryptError);
}

#[test]
fn a_removal_takes_effect_although_the_new_list_cannot_be_used() {
    let (dir, entry, exit, stranger) = pairs();
    let third = Pair::new(dir.path(), "third");
    let file = dir.path().join("peers");
    let [one, two, three] = [&entry, &stranger, &third].map(|pair| pair.key(Role::Entry));
    let config = |peers: &[GatewayKey]| PublicKeys {
        peers_file: Some(file.clone()),
        places: Vec::new(),
        ..exit.config(peers.iter().copied().map(Peer::with_key).collect())
    };
    std::fs::write(&file, format!("{three}\n")).unwrap();
    let keys = KeyTls::load(&config(&[one, two]), Role::Exit).unwrap();
    let listed = |keys: &KeyTls| -> Vec<String> {
        keys.peers()
            .into_iter()
            .flat_map(|peer| peer.public_keys)
            .collect()
    };
    // The third key is in both lists, and the first key in neither.
    let twice = config(&[two, three]);
    assert!(KeyTls::load(&twice, Role::Exit).is_err());
    let reduced = keys.reduced(&twice).unwrap();
    assert_eq!(listed(&reduced), [two.to_string(), three.to_string()]);
    assert!(reduced.reduced(&twice).is_none());
    // A line that cannot be read adds nothing, and removes nothing else.
    std::fs::write(&file, format!("mte1\n{one} x\n")).unwrap();
    let reduced = keys.reduced(&config(&[two])).unwrap();
    assert_eq!(listed(&reduced), [two.to_string(), one.to_string()]);
    std::fs::remove_file(&file).unwrap();
    let reduced = keys.reduced(&config(&[two])).unwrap();
    assert_eq!(listed(&reduced), [two.to_string(), three.to_string()]);
}
