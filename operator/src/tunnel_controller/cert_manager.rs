//! The problems that prevent requests to cert-manager. Pure.

use muxtunnel_codes::Code;

use super::problem::Problem;

/// The Certificate `name` has another owner.
pub(super) fn foreign(name: &str) -> Problem {
    Problem {
        code: Code::CertificateSecretTaken,
        detail: format!(
            "Certificate {name} of cert-manager.io exists and does not belong to this object: delete the Certificate, or create \
             the object with another name"
        ),
    }
}

/// cert-manager is not installed, or the operator may not use it.
///
/// # Errors
/// The client's error, if a retry may help.
pub(super) fn missing(error: kube::Error) -> Result<Problem, kube::Error> {
    let detail = match &error {
        kube::Error::Api(status) if status.code == 404 => {
            "cert-manager is not installed: the API server has no Certificates of cert-manager.io/v1; install \
             cert-manager, or use secretRef in security.certificates"
        }
        kube::Error::Api(status) if status.code == 403 => {
            "the operator may not create Certificates of cert-manager.io: install the chart with \
             certificates.certManager=true"
        }
        _ => return Err(error),
    };
    Ok(Problem::new(Code::IssuerMissing, detail))
}
