//! The source of the certificates of the gateways. Pure.

use std::collections::BTreeMap;

use muxtunnel_crds::IssuerRef;

use crate::certificates::identity::identity;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::issuer::issuer;
use crate::tunnel_controller::object::Object;

/// The certificates of the gateways. Empty unless the carriers use certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValidatedCertificates {
    /// The ends whose certificates cert-manager issues: the SPIFFE ID and the issuer.
    pub issued: BTreeMap<End, (String, IssuerRef)>,
    /// If both ends belong to the object: the names of each end, of which its certificate has one.
    pub names: BTreeMap<End, Vec<String>>,
}

impl ValidatedCertificates {
    pub(super) fn of(object: &Object, holder: &Holder, domain: &str) -> Self {
        let owner = (holder.kind.short_name(), &*holder.name);
        let id = |end: End| identity(domain, &holder.namespace, owner, end.component());
        let issued = object.ends().filter_map(|end| {
            let issuer = issuer(object, end)?;
            Some((end, (id(end), issuer.clone())))
        });
        let names = object.ends().map(|end| {
            let asked = names(object, end);
            let names = if asked.is_empty() {
                vec![id(end)]
            } else {
                asked.to_vec()
            };
            (end, names)
        });
        Self {
            issued: issued.collect(),
            names: names.filter(|_| object.has_both_ends()).collect(),
        }
    }

    /// The names of the end that is not `end`.
    pub(super) fn names_of_other(&self, end: End) -> Vec<String> {
        let mut others = self.names.iter().filter(|(other, _)| **other != end);
        others.next().map_or(Vec::new(), |(_, names)| names.clone())
    }
}

/// The names of the certificates of `end` in the spec.
fn names(object: &Object, end: End) -> &[String] {
    let security = object
        .tunnel()
        .and_then(|tunnel| tunnel.spec.security.as_ref());
    let certificates = security.and_then(|security| security.certificates.as_ref());
    match (certificates, end) {
        (Some(asked), End::Entry) => &asked.entry_names,
        (Some(asked), End::Exit) => &asked.exit_names,
        _ => &[],
    }
}
