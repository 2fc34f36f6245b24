//! What is to be issued, by whom, and when. Pure.

use kube::ResourceExt;
use kube::core::ObjectMeta;
use muxtunnel_codes::Code;
use muxtunnel_crds::{CertificateStatus, ServiceType};
use muxtunnel_gateway_config::CARRIER_PORT;

use crate::certificates::CertificateError;
use crate::certificates::authority::{Authority, Purpose, Seed, Subject, fingerprint};
use crate::certificates::cert_manager::Certificate;
use crate::certificates::join::{Bundle, is_address};
use crate::labels;
use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::update_status::facts::load_balancer;
use crate::tunnel_controller::validate::{Identities, ValidatedCertificates, ValidatedTunnel};

/// Least time between two issues for pods that wait: the kubelet needs some of it.
const LOST_PAUSE_SECONDS: i64 = 60;
/// Renewals of a tunnel come up to this part of a life before two thirds of it are over, each tunnel's at a time of its
/// own.
const SPREAD: i64 = 20;

/// A certificate as it should be.
pub struct Wanted<'a> {
    /// Whose it is.
    pub end: End,
    /// The Secret for it.
    pub secret: String,
    /// The SPIFFE ID in it.
    pub identity: String,
    /// The authorities of the other end, in PEM.
    pub trust: String,
    signer: Signer<'a>,
    /// Fingerprints of the authorities that the other end trusts.
    accepted: Vec<String>,
}

enum Signer<'a> {
    Derived(Box<Authority>),
    Bundled(&'a Authority),
}

impl Wanted<'_> {
    /// The authority that signs.
    #[must_use]
    pub fn signing(&self) -> &Authority {
        match &self.signer {
            Signer::Derived(authority) => authority,
            Signer::Bundled(authority) => authority,
        }
    }

    /// SHA-256 of what the gateway trusts.
    #[must_use]
    pub fn trust_digest(&self) -> String {
        fingerprint(self.trust.as_bytes())
    }
}

/// Why a certificate is issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// There is none.
    First,
    /// Two thirds of its life are over, or it lives longer than it may.
    Due,
    /// It is for another identity, or by or for authorities that do not count any more.
    Changed,
    /// Pods wait for its Secret, so somebody has deleted that.
    Lost,
}

impl Reason {
    /// For the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::First => "there was none",
            Self::Due => "due",
            Self::Changed => "identity or authorities changed",
            Self::Lost => "pods wait for its Secret",
        }
    }
}

/// Why `wanted` has to be issued at `now`, for `life` seconds; `None`: what `record` says is good. `waiting_since`: when
/// the youngest pod was made that waits.
#[must_use]
pub fn reason(
    record: Option<&CertificateStatus>,
    wanted: &Wanted<'_>,
    uid: &str,
    (now, life): (i64, i64),
    waiting_since: Option<i64>,
) -> Option<Reason> {
    let record = record.filter(|record| record.secret_name == wanted.secret);
    let times =
        record.and_then(|record| Some((record.issued_at.as_ref()?, record.not_after.as_ref()?)));
    let (Some(record), Some((issued_at, not_after))) = (record, times) else {
        return Some(Reason::First);
    };
    let (issued_at, not_after) = (issued_at.0.as_second(), not_after.0.as_second());
    let is_accepted = |authority: &String| wanted.accepted.contains(authority);
    if record.identity.as_ref() != Some(&wanted.identity)
        || record.trust.as_ref() != Some(&wanted.trust_digest())
        || !record.authority.as_ref().is_some_and(is_accepted)
    {
        return Some(Reason::Changed);
    }
    // A pod that waits all the same waits for something else, so it is tried ever more rarely.
    if let Some(made) = waiting_since
        && now - issued_at >= LOST_PAUSE_SECONDS
        && 2 * (now - issued_at) >= now - made
    {
        return Some(Reason::Lost);
    }
    if not_after > now + life + LOST_PAUSE_SECONDS {
        return Some(Reason::Due);
    }
    // Of one that ends with its authority a further one brings nothing.
    let is_last = (now + life).min(wanted.signing().end) <= not_after;
    (now >= due(uid, issued_at, not_after) && !is_last).then_some(Reason::Due)
}

/// Whether what `record` says was issued by another seed than `wanted`. Only an exit's certificate tells: a revocation
/// changes the authority of entries.
#[must_use]
pub fn is_of_another_seed(record: Option<&CertificateStatus>, wanted: &Wanted<'_>) -> bool {
    let authority = record.and_then(|record| record.authority.as_ref());
    wanted.end == End::Exit && authority.is_some_and(|known| !wanted.accepted.contains(known))
}

/// When a certificate is renewed: once two thirds of its life are over, or a little before, by chance of its tunnel's UID.
#[must_use]
pub fn due(uid: &str, issued_at: i64, not_after: i64) -> i64 {
    let life = (not_after - issued_at).max(0);
    let digits = &fingerprint(uid.as_bytes())[..8];
    let number = i64::from_str_radix(digits, 16).unwrap_or_default();
    issued_at + life / 3 * 2 - number % (life / SPREAD).max(1)
}

/// The side whose certificates an end has. A rendezvous has none.
#[must_use]
pub const fn purpose(end: End) -> Purpose {
    match end {
        End::Entry => Purpose::Entry,
        End::Exit | End::Rendezvous => Purpose::Exit,
    }
}

/// What the operator issues of its own authorities, for each end of `valid`.
///
/// # Errors
/// [`CertificateError`].
pub fn managed(
    valid: &ValidatedTunnel,
    identities: &Identities,
    subject: &Subject,
    seed: &Seed,
    now: i64,
) -> Result<Vec<Wanted<'static>>, CertificateError> {
    let ends = [
        (End::Exit, &identities.exit),
        (End::Entry, &identities.entry),
    ];
    ends.into_iter()
        .filter(|(end, ..)| end.gateway(valid).is_some())
        .map(|(end, identity)| {
            let secret = valid.certificates.secret(&valid.name, end.component());
            derived(end, (secret, identity.clone()), subject, seed, now)
        })
        .collect()
}

/// A certificate of `end` with `identity`, in `secret`, by an authority of `subject`.
///
/// # Errors
/// [`CertificateError`].
pub fn derived(
    end: End,
    (secret, identity): (String, String),
    subject: &Subject,
    seed: &Seed,
    now: i64,
) -> Result<Wanted<'static>, CertificateError> {
    let own = purpose(end);
    let other = match own {
        Purpose::Entry => Purpose::Exit,
        Purpose::Exit => Purpose::Entry,
    };
    let accepted = subject.trusted(seed, own, now)?;
    Ok(Wanted {
        end,
        secret,
        identity,
        trust: pem(&subject.trusted(seed, other, now)?),
        signer: Signer::Derived(Box::new(subject.signing(seed, own, now)?)),
        accepted: accepted.into_iter().map(|one| one.fingerprint).collect(),
    })
}

/// What the operator issues for the entry, by a bundle.
#[must_use]
pub fn joined<'a>(
    valid: &ValidatedTunnel,
    identities: &Identities,
    bundle: &'a Bundle,
) -> Wanted<'a> {
    let secret = valid
        .certificates
        .secret(&valid.name, End::Entry.component());
    bundled((secret, identities.entry.clone()), bundle)
}

/// A certificate of an entry with `identity`, in `secret`, by `bundle`.
#[must_use]
pub fn bundled((secret, identity): (String, String), bundle: &Bundle) -> Wanted<'_> {
    Wanted {
        end: End::Entry,
        secret,
        identity,
        trust: bundle.exit_authorities.clone(),
        accepted: vec![bundle.entry_authority.fingerprint.clone()],
        signer: Signer::Bundled(&bundle.entry_authority),
    }
}

/// What is asked of cert-manager, for each end of `valid`.
#[must_use]
pub fn issued(valid: &ValidatedTunnel, life: i64) -> Vec<(End, Certificate)> {
    let ValidatedCertificates::Issued(identities, issuer) = &valid.certificates else {
        return Vec::new();
    };
    [
        (End::Exit, &identities.exit),
        (End::Entry, &identities.entry),
    ]
    .into_iter()
    .filter(|(end, _)| end.gateway(valid).is_some())
    .map(|(end, identity)| {
        let metadata = ObjectMeta {
            name: Some(end.child_name(valid)),
            namespace: Some(valid.namespace.clone()),
            labels: Some(labels::child(&valid.name, end.component())),
            owner_references: Some(vec![valid.owner.clone()]),
            ..ObjectMeta::default()
        };
        let secret = valid.certificates.secret(&valid.name, end.component());
        let (identity, issuer) = (identity.clone(), issuer.clone());
        let wanted = Certificate::of(metadata, secret, identity, purpose(end), life, issuer);
        (end, wanted)
    })
    .collect()
}

/// Why cert-manager could not be asked.
#[derive(Debug)]
pub enum CertManagerError {
    /// A Certificate of the needed name belongs to something else.
    Foreign,
    /// The API server refused, or did not answer.
    Api(kube::Error),
}

impl From<kube::Error> for CertManagerError {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

/// What somebody has to do so that cert-manager can be asked for the Certificate `name`.
///
/// # Errors
/// The client's error, where it is tried again.
pub fn cert_manager_problem(name: &str, error: CertManagerError) -> Result<Problem, kube::Error> {
    let (code, detail) = match error {
        CertManagerError::Foreign => (
            Code::CertificateSecretTaken,
            format!("Certificate {name} of cert-manager.io exists and is not the tunnel's"),
        ),
        CertManagerError::Api(kube::Error::Api(status)) if status.code == 404 => (
            Code::IssuerMissing,
            "cert-manager is not installed: there are no Certificates of cert-manager.io/v1; install it, or leave \
             carrier.security.issuerRef out"
                .to_owned(),
        ),
        CertManagerError::Api(kube::Error::Api(status)) if status.code == 403 => (
            Code::IssuerMissing,
            "the operator may not make Certificates of cert-manager.io: install the chart with \
             certificates.certManager=true"
                .to_owned(),
        ),
        CertManagerError::Api(error) => return Err(error),
    };
    Ok(Problem { code, detail })
}

/// The bundle with which entries elsewhere join.
///
/// # Errors
/// [`CertificateError`].
pub fn bundle(
    address: Option<String>,
    identities: &Identities,
    subject: &Subject,
    seed: &Seed,
    now: i64,
) -> Result<Bundle, CertificateError> {
    Ok(Bundle {
        address,
        exit_authorities: pem(&subject.trusted(seed, Purpose::Exit, now)?),
        entry_authority: subject.signing(seed, Purpose::Entry, now)?,
        exit_identity: identities.exit.clone(),
        entry_identity: identities.entry.clone(),
    })
}

/// Where entries elsewhere dial the exits of `valid`; `None`: they meet at a rendezvous.
///
/// # Errors
/// A sentence: it is not known, and what to do.
pub fn address(valid: &ValidatedTunnel, applied: &Applied) -> Result<Option<String>, String> {
    if valid.leaf.is_some() {
        return Ok(None);
    }
    let (Some(exit), name) = (&valid.exit, End::Exit.child_name(valid)) else {
        return Ok(None);
    };
    let service = applied.services.iter().find(|one| one.name_any() == name);
    let service_type = exit.service.type_.unwrap_or_default();
    let is_node_port = service_type == ServiceType::NodePort;
    let node_port = || {
        let spec = service.and_then(|service| service.spec.as_ref())?;
        let mut ports = spec.ports.iter().flatten();
        let carrier = ports.find(|port| port.name.as_deref() == Some("carrier"))?;
        carrier.node_port
    };
    if let Some(advertised) = &valid.advertised {
        let port = match (is_address(advertised), is_node_port) {
            (true, _) => return Ok(Some(advertised.clone())),
            (false, true) => node_port().ok_or_else(|| {
                format!("Service {name} has no node port yet; the join bundle says it")
            })?,
            (false, false) => CARRIER_PORT.into(),
        };
        return Ok(Some(format!("{advertised}:{port}")));
    }
    match service_type {
        ServiceType::ClusterIP => Ok(Some(format!("{name}.{}.svc:{CARRIER_PORT}", valid.namespace))),
        ServiceType::LoadBalancer => {
            let host = service.and_then(load_balancer).ok_or_else(|| {
                format!(
                    "Service {name} has no address of its load balancer yet; the join bundle says it, unless \
                     carrier.address does"
                )
            })?;
            let is_ipv6 = host.parse::<std::net::Ipv6Addr>().is_ok();
            let host = if is_ipv6 { format!("[{host}]") } else { host };
            Ok(Some(format!("{host}:{CARRIER_PORT}")))
        }
        ServiceType::NodePort => Err(
            "say under which host entries elsewhere reach a node, for the join bundle: carrier.address"
                .to_owned(),
        ),
    }
}

fn pem(authorities: &[Authority]) -> String {
    let texts = authorities.iter().map(|one| one.pem.as_str());
    texts.collect()
}
