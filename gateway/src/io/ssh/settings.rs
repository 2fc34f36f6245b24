//! How the library is to run: algorithms, windows and times.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use russh::keys::ssh_key::{Algorithm, EcdsaCurve, PrivateKey};
use russh::{
    MethodKind, MethodSet, Preferred, SshId, cipher, client, compression, kex, mac, server,
};

/// What this side calls itself.
const ID: &str = concat!("SSH-2.0-muxgate_", env!("CARGO_PKG_VERSION"));
/// How such names begin.
pub(super) const OWN_ID_PREFIX: &[u8] = b"SSH-2.0-muxgate_";
/// The window of a channel: as much is on its way at most. Four channels may fill what a session may hold.
const WINDOW_SHARE: u64 = 4;
const WINDOW_MIN: u64 = 256 << 10;
const WINDOW_MAX: u64 = 64 << 20;
/// Payload of one packet: the most that the library takes for good. OpenSSH sends 32 KiB.
const PACKET_BYTES: u32 = 65_535;
/// What may come after the connection is to be read no more: it is on its way to the library then.
const MARGIN_BYTES: u64 = 1 << 20;
/// Messages that wait for the library.
const MESSAGES_MAX: usize = 16;
/// How long a login that is refused takes, and the first question of a client, which no server grants.
const REJECTION: Duration = Duration::from_millis(50);
/// Six keys, as sshd, and that question.
const ATTEMPTS_MAX: usize = 7;
/// Where nothing below notices that the other end has vanished.
const KEEPALIVE: Duration = Duration::from_secs(15);

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
/// AES first: processors have instructions for it. Each authenticates by itself, so the MACs are for the handshake's form
/// alone.
const CIPHERS: &[cipher::Name] = &[
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::CHACHA20_POLY1305,
];
const MACS: &[mac::Name] = &[mac::HMAC_SHA512_ETM, mac::HMAC_SHA256_ETM];

/// What of a connection depends on what is below, and on the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// What local ends have not taken of a connection, bytes.
    pub(super) held_max: u64,
}

impl Settings {
    /// `receive`: what a peer may send that was not taken.
    pub(crate) const fn new(receive: u64) -> Self {
        let margin = if receive / 2 < MARGIN_BYTES {
            receive / 2
        } else {
            MARGIN_BYTES
        };
        Self {
            held_max: receive - margin,
        }
    }

    fn window(self) -> u32 {
        let window = (self.held_max / WINDOW_SHARE).clamp(WINDOW_MIN, WINDOW_MAX);
        u32::try_from(window).unwrap_or(WINDOW_MAX as u32)
    }

    pub(super) fn server(self, keys: Vec<PrivateKey>, has_path: bool) -> Arc<server::Config> {
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
            preferred: preferred(&[]),
            max_auth_attempts: ATTEMPTS_MAX,
            inactivity_timeout: None,
            keepalive_interval: (!has_path).then_some(KEEPALIVE),
            ..server::Config::default()
        })
    }

    pub(super) fn client(self, certificates: bool, has_path: bool) -> Arc<client::Config> {
        Arc::new(client::Config {
            client_id: SshId::Standard(Cow::Borrowed(ID)),
            window_size: self.window(),
            maximum_packet_size: PACKET_BYTES,
            channel_buffer_size: 1,
            preferred: preferred(if certificates { KEYS } else { &[] }),
            keepalive_interval: (!has_path).then_some(KEEPALIVE),
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
