//! SPIFFE IDs: the identities in the gateways' certificates.

/// Longest name of a trust domain (SPIFFE-ID, section 2.3).
const TRUST_DOMAIN_LENGTH_MAX: usize = 255;

/// `spiffe://TRUST-DOMAIN/ns/NAMESPACE/KIND/NAME/END`. `kind`: the short name of the object's kind.
/// `end`: `entry` or `exit`.
#[must_use]
pub fn identity(
    trust_domain: &str,
    namespace: &str,
    (kind, name): (&str, &str),
    end: &str,
) -> String {
    format!("spiffe://{trust_domain}/ns/{namespace}/{kind}/{name}/{end}")
}

/// Checks the name of a trust domain, given by a flag.
///
/// # Errors
/// A sentence for the user.
pub fn trust_domain(text: &str) -> Result<String, String> {
    let is_fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if text.is_empty() || text.len() > TRUST_DOMAIN_LENGTH_MAX || !text.chars().all(is_fine) {
        return Err(format!(
            "{text:?} is not a trust domain: expected lower-case letters, digits, hyphens, underscores and dots, with a length of at most \
             {TRUST_DOMAIN_LENGTH_MAX}"
        ));
    }
    Ok(text.to_owned())
}
