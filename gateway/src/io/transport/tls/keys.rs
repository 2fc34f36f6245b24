//! TLS 1.3 with raw public keys (RFC 7250): both sides present an Ed25519 key and no certificate,
//! and each side accepts the keys of a list.
//!
//! Only the list that a side consults makes a key that of an entry or an exit. So a side reads its
//! list with the role of its peers. Nothing is resumed, and there is no early data, because a ticket
//! would outlive the key's place in the list.

mod pins;

use std::collections::BTreeMap;
use std::io::Result;
use std::path::Path;
use std::sync::Arc;

use muxtunnel_gateway_config::{
    GatewayKey, KEY_BYTES, Peer, PeerList, PublicKeys, Role, check_peers, parse_peers,
    readable_peers, status,
};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption, UnbufferedClientConnection};
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, version};
use zeroize::Zeroizing;

use super::own_keys::{ByHint, Choices, Chosen, Own, Presented};
use super::{Inside, ResetSecret, Servers, for_quic, handshake, provider, sealed, unlisted};
use crate::base::files::{Unusable, read, read_text};
use crate::io::key_refusal::KeyRefusal;
use crate::io::proof::{Proof, Standing};
use crate::io::transport::{Part, To, Transport, invalid};
use pins::Pins;

/// The configuration of both sides.
#[derive(Debug)]
pub(crate) struct KeyTls {
    /// At an entry, how it dials each exit, by the exit's name.
    exits: BTreeMap<String, Dials>,
    /// At a leaf, how it dials each rendezvous, by the name.
    places: BTreeMap<String, Dials>,
    servers: Servers,
    /// The keys that `servers` present.
    by_hint: ByHint,
    /// The keys of all peers.
    pins: Arc<Pins>,
    /// This side's keys, the newest last.
    own: Vec<Own>,
    choices: Arc<Choices>,
    /// Number of peers that the configuration lists. The others are from the file.
    inline: usize,
}

/// How this side dials one exit or rendezvous.
#[derive(Debug)]
struct Dials {
    /// The configuration with each of this side's keys.
    clients: Vec<Arc<ClientConfig>>,
    /// The keys of the other side.
    pins: Arc<Pins>,
}

impl Dials {
    /// How this side dials each of `peers`, by the name.
    fn of(
        own: &[Own],
        peers: &[Peer],
        kind: PeerList,
    ) -> std::result::Result<BTreeMap<String, Self>, rustls::Error> {
        let dials = |peer: &Peer| {
            let name = peer.name.clone().unwrap_or_default();
            Ok((name, Self::new(own, peer, kind)?))
        };
        peers.iter().map(dials).collect()
    }

    fn new(own: &[Own], peer: &Peer, kind: PeerList) -> std::result::Result<Self, rustls::Error> {
        let pins = Arc::new(Pins::new(kind, vec![peer.clone()], &provider()));
        let clients = own.iter().map(|own| client(&own.certified, &pins));
        let clients = clients.map(|config| config.map(Arc::new));
        Ok(Self {
            clients: clients.collect::<std::result::Result<_, _>>()?,
            pins,
        })
    }
}

impl KeyTls {
    /// Reads and checks the files, and the list of peers of a gateway of `role`.
    ///
    /// # Errors
    /// [`Unusable`]: a file cannot be used, or a peer is not permitted.
    pub(crate) fn load(config: &PublicKeys, role: Role) -> std::result::Result<Self, Unusable> {
        let kind = PeerList::of(role);
        let mut pairs: Vec<(Own, ResetSecret)> = Vec::new();
        for file in &config.private_key_files {
            let pair = key_pair(file, role)?;
            let mut before = pairs.iter().zip(&config.private_key_files);
            if let Some((_, other)) = before.find(|((own, _), _)| own.key == pair.0.key) {
                let problem = format!("has the same key as {}: remove one", other.display());
                return Err(Unusable::new(file, problem));
            }
            pairs.push(pair);
        }
        let file = config.private_key_files.first();
        let file = file.map_or(Path::new("security.privateKeyFiles"), |file| file);
        let (own, secrets): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let secret = secrets.into_iter().next();
        let secret = secret.ok_or_else(|| Unusable::new(file, NO_KEY))?;
        let peers = peers(config, kind, &own)?;
        let inline = config.peers.len();
        let choices = Arc::default();
        Self::with(
            (own, choices),
            secret,
            (peers, inline),
            kind,
            &config.places,
        )
        .map_err(|error| Unusable::new(file, error))
    }

    fn with(
        (own, choices): (Vec<Own>, Arc<Choices>),
        reset_secret: ResetSecret,
        (peers, inline): (Vec<Peer>, usize),
        kind: PeerList,
        places: &[Peer],
    ) -> std::result::Result<Self, rustls::Error> {
        let exits = match kind {
            PeerList::Exits => &peers[..],
            _ => &[],
        };
        let exits = Dials::of(&own, exits, PeerList::Exits)?;
        let places = Dials::of(&own, places, PeerList::Places)?;
        let pins = Arc::new(Pins::new(kind, peers, &provider()));
        let by_hint = ByHint::new(&own);
        Ok(Self {
            exits,
            places,
            servers: Servers::new(server(by_hint.clone(), &pins)?, reset_secret),
            by_hint,
            pins,
            own,
            choices,
            inline,
        })
    }

    /// Takes over what `before` has learned about the keys that peers accept.
    pub(crate) fn remember(&mut self, before: &Self) {
        self.choices = Arc::clone(&before.choices);
    }

    /// These credentials without the keys that `config` no longer lists. `config` cannot be used as
    /// a whole, but a removal takes effect nevertheless. `None`: nothing changes.
    pub(crate) fn reduced(&self, config: &PublicKeys) -> Option<Self> {
        let before = self.pins.peers();
        let listed = match config.peers_file.as_deref().map(read_text) {
            Some(Ok(text)) => readable_peers(&text),
            // What an unreadable file lists is unknown.
            Some(Err(_)) => before[self.inline..].to_vec(),
            None => Vec::new(),
        };
        let inline = self.pins.in_common(config.peers.clone());
        let count = inline.len();
        let peers = self.pins.in_common([inline, listed].concat());
        if peers == before {
            return None;
        }
        let own = (self.own.clone(), Arc::clone(&self.choices));
        let secret = self.servers.reset_secret.clone();
        let places = config.places.iter().flat_map(|place| {
            let dials = self.places.get(place.name.as_deref()?)?;
            dials.pins.in_common(vec![place.clone()]).pop()
        });
        let places: Vec<_> = places.collect();
        Self::with(own, secret, (peers, count), self.pins.kind(), &places).ok()
    }

    /// This side's keys, the newest first.
    pub(crate) fn own(&self) -> impl Iterator<Item = &GatewayKey> {
        self.own.iter().rev().map(|own| &own.key)
    }

    /// The configuration for a dial to `at`, and the key that it presents.
    fn for_dial<'a>(&self, dials: &'a Dials, at: &str) -> (&'a Arc<ClientConfig>, Presented) {
        let (at, presented) = self.choices.choose(at, &self.own);
        // Each own key has a configuration, and there is at least one.
        (&dials.clients[at], presented)
    }

    /// The keys of the exit `name` in `connect`.
    pub(crate) fn keys_of_exit(&self, name: &str) -> Vec<[u8; KEY_BYTES]> {
        let exit = self
            .exits
            .get(name)
            .and_then(|exit| exit.pins.peers().first());
        let keys = exit.map_or(&[][..], |exit| &exit.public_keys);
        keys.iter().map(|key| *key.bytes()).collect()
    }

    /// The key of a peer with `proof`, with the role that the list gives it.
    pub(crate) fn key_of(&self, proof: &Proof) -> Option<GatewayKey> {
        let key = pins::key_in(proof.chain.first()?)?;
        self.pins.listed(key).map(|(_, key)| key)
    }

    /// The identity of the listed exit that has the key `bytes`.
    pub(crate) fn exit_with(&self, bytes: &[u8; KEY_BYTES]) -> Option<String> {
        let (peer, key) = self.pins.listed(bytes)?;
        (key.role() == Role::Exit).then(|| peer.identity(&key))
    }

    fn exit(&self, to: To<'_>) -> Result<&Dials> {
        self.exits.get(to.exit).ok_or_else(|| unlisted(to))
    }

    /// The accepted peers.
    pub(crate) fn peers(&self) -> Vec<status::Peer> {
        self.pins.peers().iter().map(shown).collect()
    }

    /// Performs the handshake over `below`, and negotiates the protocol inside.
    ///
    /// # Errors
    /// The peer's key is not permitted, the peer refuses this side's key, or the peer does not use
    /// TLS with raw public keys.
    pub(crate) async fn secure(
        &self,
        below: Box<dyn Transport>,
        part: Part<'_>,
        inside: Inside,
    ) -> Result<Box<dyn Transport>> {
        match part {
            Part::Dials(to) => {
                self.dial(below, self.exit(to)?, (to.host, to.host), inside)
                    .await
            }
            Part::Accepts => {
                let (config, chosen) = self.for_accept(inside);
                let connection = UnbufferedServerConnection::new(config);
                let made = handshake::run(&*below, connection.map_err(invalid)?).await;
                self.finish(below, made, (None, &chosen), &self.pins).await
            }
        }
    }

    /// Works as [`Self::secure`] on the dialling side, to the rendezvous with the name `name`.
    ///
    /// # Errors
    /// The errors of [`Self::secure`].
    pub(crate) async fn meet(
        &self,
        below: Box<dyn Transport>,
        (name, host): (&str, &str),
    ) -> Result<Box<dyn Transport>> {
        let place = self.places.get(name);
        let place = place.ok_or_else(|| invalid(format!("no rendezvous has the name {name:?}")))?;
        // A host may be that of an exit, too.
        let at = format!("rendezvous {host}");
        self.dial(below, place, (host, &at), Inside::Rendezvous)
            .await
    }

    async fn dial(
        &self,
        below: Box<dyn Transport>,
        dials: &Dials,
        (host, at): (&str, &str),
        inside: Inside,
    ) -> Result<Box<dyn Transport>> {
        let (config, presented) = self.for_dial(dials, at);
        let (config, name) = (Arc::clone(config), server_name(host));
        let connection = UnbufferedClientConnection::new_with_alpn(config, name, inside.alpn());
        let made = handshake::run(&*below, connection.map_err(invalid)?).await;
        let presented = (Some(presented), &Chosen::default());
        self.finish(below, made, presented, &dials.pins).await
    }

    /// Verifies the peer after a handshake in which this side presented `presented` or `chosen`.
    async fn finish(
        &self,
        below: Box<dyn Transport>,
        made: Result<handshake::Made>,
        (presented, chosen): (Option<Presented>, &Chosen),
        pins: &Pins,
    ) -> Result<Box<dyn Transport>> {
        let mut made = match made {
            Ok(made) => made,
            Err(error) => {
                // Of two keys, the entry's hints have chosen the presented one.
                let only = || Some(self.own.first()?.key).filter(|_| self.own.len() == 1);
                let own = presented.as_ref().map_or_else(only, Presented::key);
                let error = KeyRefusal::of_handshake(error, own);
                if let Some(KeyRefusal::Here(_)) = KeyRefusal::find(&error) {
                    handshake::let_alert_arrive(&*below).await;
                }
                return Err(error);
            }
        };
        let mut proof = proof_of(pins, std::mem::take(&mut made.chain))?;
        proof.presented = chosen.key();
        if let Some(presented) = presented {
            // The peer verifies this side's key after this side's handshake, so the refusal arrives
            // with the first record.
            made.records.expect_refusal_of(presented);
        }
        Ok(sealed(below, made, Some(proof)))
    }

    /// Returns the proof of a peer that presented `chain`.
    ///
    /// # Errors
    /// The key is not permitted.
    pub(crate) fn proof(
        &self,
        part: Part<'_>,
        chain: Vec<CertificateDer<'static>>,
    ) -> Result<Proof> {
        let pins = match part {
            Part::Dials(to) => &self.exit(to)?.pins,
            Part::Accepts => &self.pins,
        };
        proof_of(pins, chain)
    }

    /// Whether `proof` would be accepted at `now`.
    pub(crate) fn standing(&self, proof: &Proof, now: UnixTime) -> Standing {
        match self.pins.kind() {
            PeerList::Exits => match self.exits.get(&proof.identity) {
                Some(exit) => exit.pins.standing(proof, now),
                None => Standing::Revoked(format!(
                    "the exit {} is no longer in connect",
                    proof.identity
                )),
            },
            _ => self.pins.standing(proof, now),
        }
    }

    /// The QUIC configuration of the side that dials, the name to request, and the key that the
    /// configuration presents.
    ///
    /// # Errors
    /// The configuration does not list the exit.
    pub(crate) fn quic_client(
        &self,
        inside: Inside,
        to: To<'_>,
    ) -> Result<(ClientConfig, String, Presented)> {
        let name = server_name(to.host).to_str().into_owned();
        let (config, presented) = self.for_dial(self.exit(to)?, to.host);
        Ok((for_quic(config, inside), name, presented))
    }

    /// The configuration of the accepting side for one connection, and the key that it will present.
    pub(crate) fn for_accept(&self, inside: Inside) -> (Arc<ServerConfig>, Chosen) {
        let (keys, chosen) = self.by_hint.of_connection();
        let mut config = ServerConfig::clone(&self.servers.of(inside));
        config.cert_resolver = Arc::new(keys);
        (Arc::new(config), chosen)
    }

    /// The secret of QUIC's stateless resets.
    pub(crate) const fn reset_secret(&self) -> &ResetSecret {
        &self.servers.reset_secret
    }
}

/// The proof of a peer that presented `chain`.
fn proof_of(pins: &Pins, chain: Vec<CertificateDer<'static>>) -> Result<Proof> {
    let (spki, rest) = match chain.split_first() {
        Some((spki, rest)) => (spki.as_ref(), rest),
        None => (&[][..], &[][..]),
    };
    let identity = pins.identity(spki, rest, UnixTime::now());
    let identity = identity.map_err(|refused| KeyRefusal::from(refused).into_error())?;
    Ok(Proof {
        chain,
        ..Proof::of(identity)
    })
}

/// The problem of a file without a key.
const NO_KEY: &str =
    "has no Ed25519 private key (PKCS #8 in PEM): create the file with `muxgate keygen`";

/// The key pair in `file`, and a secret that is derived from it.
fn key_pair(file: &Path, role: Role) -> std::result::Result<(Own, ResetSecret), Unusable> {
    let bytes = PrivatePkcs8KeyDer::from_pem_slice(&read(file)?)
        .map_err(|_| Unusable::new(file, NO_KEY))?;
    let bytes = Zeroizing::new(bytes);
    let private = any_eddsa_type(&bytes).map_err(|_| Unusable::new(file, NO_KEY))?;
    let secret = ResetSecret::of(bytes.secret_pkcs8_der());
    let secret = secret.map_err(|error| Unusable::new(file, error))?;
    let spki = private
        .public_key()
        .ok_or_else(|| Unusable::new(file, NO_KEY))?;
    let key = pins::key_in(&spki).ok_or_else(|| Unusable::new(file, NO_KEY))?;
    let key = GatewayKey::new(role, *key).map_err(|error| Unusable::new(file, error))?;
    // `CertifiedKey::from_der` and `keys_match` would parse the key as a certificate.
    let certified = CertifiedKey::new(vec![CertificateDer::from(spki.to_vec())], private);
    let certified = Arc::new(certified);
    Ok((Own { key, certified }, secret))
}

/// The configuration of a dialling side that presents `own` and accepts the keys of `pins`.
fn client(
    own: &Arc<CertifiedKey>,
    pins: &Arc<Pins>,
) -> std::result::Result<ClientConfig, rustls::Error> {
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(pins) as Arc<_>)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
            Arc::clone(own),
        )));
    client.resumption = Resumption::disabled();
    client.enable_early_data = false;
    client.enable_secret_extraction = true;
    Ok(client)
}

/// The configuration of an accepting side that presents one of its keys and accepts the keys of
/// `pins`.
fn server(own: ByHint, pins: &Arc<Pins>) -> std::result::Result<ServerConfig, rustls::Error> {
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(Arc::clone(pins) as Arc<_>)
        .with_cert_resolver(Arc::new(own));
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.max_early_data_size = 0;
    server.enable_secret_extraction = true;
    Ok(server)
}

/// The peers of the configuration and of its file.
fn peers(
    config: &PublicKeys,
    kind: PeerList,
    own: &[Own],
) -> std::result::Result<Vec<Peer>, Unusable> {
    let mut peers = config.peers.clone();
    let inline = peers.len();
    let file = config.peers_file.as_ref();
    let mut numbers = Vec::new();
    if let Some(file) = file {
        let listed = parse_peers(&read_text(file)?);
        for (number, peer) in listed.map_err(|problem| Unusable::new(file, problem))? {
            numbers.push(number);
            peers.push(peer);
        }
    }
    let own: Vec<_> = own.iter().map(|own| *own.key.bytes()).collect();
    check_peers(&peers, kind, &own).map_err(|found| match file {
        Some(file) if found.index >= inline => {
            let number = numbers
                .get(found.index - inline)
                .copied()
                .unwrap_or_default();
            Unusable::new(file, format!("line {number}: {}", found.problem))
        }
        _ => {
            let (list, flag) = match kind {
                PeerList::Exits => ("connect", "--peer"),
                PeerList::Members => ("members", "--member"),
                PeerList::Entries | PeerList::Places => ("security.peers", "--peer"),
            };
            let place = format!("{list}[{}] ({flag})", found.index);
            Unusable::new(Path::new(&place), found.problem)
        }
    })?;
    Ok(peers)
}

pub(super) fn shown(peer: &Peer) -> status::Peer {
    status::Peer {
        name: peer.name.clone(),
        public_keys: peer.public_keys.iter().map(ToString::to_string).collect(),
        certificate_names: peer.certificate_names.clone(),
        suspend: peer.suspend,
        expiration_time: peer.expiration_time.map(|time| time.to_string()),
        carriers: 0,
        presented_key: None,
    }
}

/// The name to request. It is no proof, and an address has no name.
fn server_name(host: &str) -> ServerName<'static> {
    let unnamed = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
    ServerName::try_from(host.to_owned()).unwrap_or(unnamed)
}

#[cfg(test)]
pub(crate) mod tests;
