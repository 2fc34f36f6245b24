//! The patterns of names, addresses and keys.

/// A label of DNS (RFC 1123), such as the name of a namespace.
pub(crate) const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A label that begins with a letter (DNS-1035), such as the name of a Service or of a port.
pub(crate) const NAME: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
/// The name of an object. Source: RFC 1123 subdomains as in Kubernetes, except that labels may begin
/// or end with a hyphen.
pub(crate) const OBJECT_NAME: &str = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$";
/// A key of a Secret.
pub(crate) const SECRET_KEY: &str = "^[-_a-zA-Z0-9][-._a-zA-Z0-9]*$";
/// The key of an entry: `mte`, the separator `1`, and 59 characters of bech32m.
pub(crate) const ENTRY_KEY: &str = "^mte1[02-9ac-hj-np-z]{59}$";
/// The key of an exit.
pub(crate) const EXIT_KEY: &str = "^mtx1[02-9ac-hj-np-z]{59}$";
/// The key of a rendezvous.
pub(crate) const RENDEZVOUS_KEY: &str = "^mtr1[02-9ac-hj-np-z]{59}$";
/// A name in a certificate: a DNS name, an IP address or a URI.
pub(crate) const CERTIFICATE_NAME: &str = "^[-_.:/+=@%a-zA-Z0-9]+$";
/// The same, or a prefix of names that ends in `/*`.
pub(crate) const PEER_NAME: &str = "^[-_.:/+=@%a-zA-Z0-9]+(/[*])?$";
/// A DNS name or an IP address, IPv6 without brackets.
pub(crate) const HOST: &str = "^[-_.:a-zA-Z0-9]+$";
/// A network in CIDR notation. A prefix length of 0 (every address) does not match.
pub(crate) const NETWORK: &str = "^[0-9a-fA-F:.]+/[1-9][0-9]{0,2}$";
/// An IPv6 prefix of RFC 6052.
pub(crate) const NAT64_PREFIX: &str = "^[0-9a-fA-F:.]+/(32|40|48|56|64|96)$";
/// The name of a controller, such as `muxtunnel.dev/operator`.
pub(crate) const CONTROLLER_NAME: &str = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[-._/a-zA-Z0-9]+$";
/// The characters of a reference to an image.
pub(crate) const IMAGE: &str = "^[a-zA-Z0-9][-._:@/a-zA-Z0-9]*$";
/// A key of a label or annotation, or a prefix of keys that ends in `/*`.
pub(crate) const METADATA_KEY: &str = "^([-._a-zA-Z0-9]+/)?[-._a-zA-Z0-9]+$|^[-._a-zA-Z0-9]+/[*]$";
/// A trust domain of SPIFFE IDs.
pub(crate) const TRUST_DOMAIN: &str = "^[-._a-z0-9]+$";
/// Bits per second, from 100k to 10G.
pub(crate) const UDP_RATE: &str =
    "^([1-9][0-9]{5,9}|10000000000|[1-9][0-9]{2,6}k|10000000k|[1-9][0-9]{0,3}M|10000M|[1-9]G|10G)$";
