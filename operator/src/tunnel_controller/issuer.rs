//! The issuer of the certificates of the gateways, according to the spec. Pure.

use muxtunnel_crds::{IssuerRef, SecurityMode};

use super::end::End;
use super::holder::Holder;
use super::object::Object;

/// The issuer of the certificates of the gateways of `end`. `None` without certificates, and if users
/// create the Secret.
pub(super) fn issuer(object: &Object, end: End) -> Option<&IssuerRef> {
    let mode = object.mode();
    let source = object.certificates(end);
    let source = source.filter(|_| mode == Some(SecurityMode::Certificates) && object.has(end));
    source?.issuer_ref.as_ref()
}

/// The Secret that cert-manager writes for the gateways of `end`.
pub(super) fn issued_secret(holder: &Holder, end: End) -> String {
    format!("{}-issued-tls", holder.child(end))
}
