//! What somebody has to do so that cert-manager can be asked for certificates. Pure.

use muxtunnel_codes::Code;

use super::problem::Problem;

/// The Certificate `name` belongs to something else.
pub(super) fn foreign(name: &str) -> Problem {
    Problem {
        code: Code::CertificateSecretTaken,
        detail: format!("Certificate {name} of cert-manager.io exists and is not the tunnel's"),
    }
}

/// cert-manager is not there, or not the operator's to ask.
///
/// # Errors
/// The client's error, where it is tried again.
pub(super) fn missing(error: kube::Error) -> Result<Problem, kube::Error> {
    let detail = match &error {
        kube::Error::Api(status) if status.code == 404 => {
            "cert-manager is not installed: there are no Certificates of cert-manager.io/v1; install it, or leave \
             carrier.security.issuerRef out"
        }
        kube::Error::Api(status) if status.code == 403 => {
            "the operator may not make Certificates of cert-manager.io: install the chart with \
             certificates.certManager=true"
        }
        _ => return Err(error),
    };
    Ok(Problem {
        code: Code::IssuerMissing,
        detail: detail.to_owned(),
    })
}
