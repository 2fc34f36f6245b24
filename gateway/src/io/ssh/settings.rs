//! The configuration of the library: algorithms, windows and timeouts.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::{SessionConfig, SshAlgorithms};
use muxtunnel_proto::patience;
use russh::keys::ssh_key::{Algorithm, EcdsaCurve, HashAlg, PrivateKey};
use russh::{
    MethodKind, MethodSet, Preferred, SshId, cipher, client, compression, kex, mac, server,
};

/// The identification string of this side.
const ID: &str = concat!("SSH-2.0-muxgate_", env!("CARGO_PKG_VERSION"));
/// The prefix of MuxTunnel's identification strings.
pub(super) const OWN_ID_PREFIX: &[u8] = b"SSH-2.0-muxgate_";
/// The window of a channel is a quarter of `held_max`, within `WINDOW_MIN` and `WINDOW_MAX`. So
/// four channels may fill the memory.
const WINDOW_SHARE: u64 = 4;
const WINDOW_MIN: u64 = 256 << 10;
const WINDOW_MAX: u64 = 64 << 20;
/// Payload of one packet: the maximum that the library accepts. OpenSSH sends 32 KiB.
const PACKET_BYTES: u32 = 65_535;
/// Number of bytes that may still arrive after reading has stopped, because the library already
/// holds them.
const MARGIN_BYTES: u64 = 1 << 20;
/// Maximum number of messages that wait for the library.
const MESSAGES_MAX: usize = 16;
/// Time that a refusal of a login takes. Only the client's first request without a key, which no
/// server grants, is refused at once.
const REJECTION: Duration = Duration::from_millis(50);
/// Maximum number of login attempts: six keys, as in sshd, plus the client's first request.
const ATTEMPTS_MAX: usize = 7;
/// Minimum number of unanswered probes after which a client counts as dead, as in sshd. Some
/// libraries answer only while their application uses the connection.
const CLIENT_PROBES_MIN: usize = 3;
/// Minimum time for the answer to a probe, on ordinary paths.
const ANSWER_MAX: Duration = Duration::from_secs(15);

const KEXES: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::EXTENSION_SUPPORT_AS_CLIENT,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];
const KEYS: &[Algorithm] = &[
    Algorithm::Ed25519,
    Algorithm::Ecdsa {
        curve: EcdsaCurve::NistP256,
    },
    Algorithm::Ecdsa {
        curve: EcdsaCurve::NistP384,
    },
    Algorithm::Ecdsa {
        curve: EcdsaCurve::NistP521,
    },
];
/// The signatures of users, in addition to `KEYS`. A server announces them (RFC 8308, section 3.1).
/// No host has such a key.
const USER_KEYS: &[Algorithm] = &[
    Algorithm::Rsa {
        hash: Some(HashAlg::Sha512),
    },
    Algorithm::Rsa {
        hash: Some(HashAlg::Sha256),
    },
    Algorithm::SkEd25519,
    Algorithm::SkEcdsaSha2NistP256,
];
/// AES is first, because processors have instructions for it. Each cipher also authenticates, so no
/// packet has a MAC. The MACs are listed because the handshake negotiates one.
const CIPHERS: &[cipher::Name] = &[
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::CHACHA20_POLY1305,
];
/// For [`SshAlgorithms::Compatible`], in addition to `CIPHERS`. With this cipher, the MAC
/// authenticates the encrypted packet.
const CIPHER_COMPATIBLE: cipher::Name = cipher::AES_256_CTR;
const MACS: &[mac::Name] = &[mac::HMAC_SHA512_ETM, mac::HMAC_SHA256_ETM];

/// The settings that depend on the transport and on the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Maximum number of bytes of a connection that local ends have not taken.
    pub(super) held_max: u64,
    /// The time after which a silent peer is probed.
    liveness: Duration,
}

impl Settings {
    pub(crate) fn new(config: &SessionConfig) -> Self {
        let receive = config.memory.receive.0;
        let margin = if receive / 2 < MARGIN_BYTES {
            receive / 2
        } else {
            MARGIN_BYTES
        };
        Self {
            held_max: receive - margin,
            liveness: config.liveness,
        }
    }

    fn window(self) -> u32 {
        let window = (self.held_max / WINDOW_SHARE).clamp(WINDOW_MIN, WINDOW_MAX);
        u32::try_from(window).unwrap_or(WINDOW_MAX as u32)
    }

    /// Number of unanswered probes after which the peer counts as dead, on a path with this round
    /// trip. The peer has [`ANSWER_MAX`] for its answer, longer if the round trip is long.
    fn probes_max(self, round_trip: Duration) -> usize {
        let answer = patience(ANSWER_MAX, round_trip).as_millis();
        let probes = answer.div_ceil(self.liveness.as_millis().max(1));
        usize::try_from(probes).unwrap_or(usize::MAX)
    }

    pub(super) fn server(
        self,
        keys: Vec<PrivateKey>,
        algorithms: SshAlgorithms,
        round_trip: Duration,
    ) -> Arc<server::Config> {
        let compatible = match algorithms {
            SshAlgorithms::Default => None,
            SshAlgorithms::Compatible => Some(CIPHER_COMPATIBLE),
        };
        Arc::new(server::Config {
            server_id: SshId::Standard(Cow::Borrowed(ID)),
            methods: MethodSet::from(&[MethodKind::PublicKey][..]),
            auth_rejection_time: REJECTION,
            auth_rejection_time_initial: Some(Duration::ZERO),
            keys,
            window_size: self.window(),
            maximum_packet_size: PACKET_BYTES,
            channel_buffer_size: 1,
            event_buffer_size: MESSAGES_MAX,
            preferred: Preferred {
                key: KEYS.iter().chain(USER_KEYS).cloned().collect(),
                cipher: CIPHERS.iter().copied().chain(compatible).collect(),
                ..preferred(&[])
            },
            max_auth_attempts: ATTEMPTS_MAX,
            inactivity_timeout: None,
            keepalive_interval: Some(self.liveness),
            keepalive_max: self.probes_max(round_trip).max(CLIENT_PROBES_MIN),
            ..server::Config::default()
        })
    }

    pub(super) fn client(self, certificates: bool, round_trip: Duration) -> Arc<client::Config> {
        Arc::new(client::Config {
            client_id: SshId::Standard(Cow::Borrowed(ID)),
            window_size: self.window(),
            maximum_packet_size: PACKET_BYTES,
            channel_buffer_size: 1,
            preferred: preferred(if certificates { KEYS } else { &[] }),
            keepalive_interval: Some(self.liveness),
            keepalive_max: self.probes_max(round_trip),
            ..client::Config::default()
        })
    }
}

fn preferred(host_key_certificates: &'static [Algorithm]) -> Preferred {
    Preferred {
        kex: Cow::Borrowed(KEXES),
        key: Cow::Borrowed(KEYS),
        host_key_certificates: Cow::Borrowed(host_key_certificates),
        cipher: Cow::Borrowed(CIPHERS),
        mac: Cow::Borrowed(MACS),
        compression: Cow::Borrowed(&[compression::NONE]),
    }
}
