//! Types and keys of Secrets with certificates or keys.

/// The key for the certificates of the peers' authorities, PEM.
pub const AUTHORITIES: &str = "ca.crt";
/// The key for a certificate, PEM.
pub const CERTIFICATE: &str = "tls.crt";
/// The key for the certificate's private key, PEM.
pub const KEY: &str = "tls.key";

/// The type of a Secret with key pairs of gateways.
pub const KEY_TYPE: &str = "muxtunnel.dev/key";
/// The key for the private key of an end (Ed25519, PKCS #8), PEM.
pub const PRIVATE_KEY: &str = "key";
/// The key for the public key of an end, as text.
pub const PUBLIC_KEY: &str = "publicKey";
/// In the Secret with the keys of both ends: the key for the entry's private key, PEM.
pub const ENTRY_KEY: &str = "entry-key";
/// In the Secret with the keys of both ends: the key for the line with the entry's public key and its
/// name, as in a gateway's file of peers.
pub const ENTRY_PUBLIC_KEY: &str = "entry-publicKey";
/// In the Secret with the keys of both ends: the key for the exit's private key, PEM.
pub const EXIT_KEY: &str = "exit-key";
/// In the Secret with the keys of both ends: the key for the line with the exit's public key and its
/// name.
pub const EXIT_PUBLIC_KEY: &str = "exit-publicKey";
/// In the Secret with the keys of both ends: the name of the entry, which rules of the exit use.
pub const ENTRY_NAME: &str = "entry";
/// In the Secret with the keys of both ends: the names of the exit in the entry's configuration. The
/// first is that of its pods, the second that of its Service.
pub const EXIT_NAMES: [&str; 2] = ["exit", "service"];
