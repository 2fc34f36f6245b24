//! SPIFFE IDs: the identities in the gateways' certificates.

/// `spiffe://TRUST-DOMAIN/ns/NAMESPACE/KIND/NAME/END`. `kind`: the short name of the object's kind.
/// `end`: `entry` or `exit`.
pub fn identity(
    trust_domain: &str,
    namespace: &str,
    (kind, name): (&str, &str),
    end: &str,
) -> String {
    format!("spiffe://{trust_domain}/ns/{namespace}/{kind}/{name}/{end}")
}
