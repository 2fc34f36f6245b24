//! Reads the join bundle that a tunnel names, and the newer bundle from the tunnel. This module
//! requires a client.
//!
//! The copied bundle is the only Secret of a user that the operator reads. The operator reads this
//! Secret by name, and only with an explicit permission. The newer bundle is in a ConfigMap in the
//! tunnel's namespace, sealed with this operator's seed. The newer bundle replaces the copy.

use k8s_openapi::api::core::v1::Secret;
use muxtunnel_codes::Code;
use muxtunnel_crds::JoinedStatus;
use tracing::warn;

use crate::apply::is_owned;
use crate::certificates::join::Bundle;
use crate::certificates::offer::Kept;
use crate::certificates::seed::SeedError;
use crate::settings::Settings;
use crate::tunnel_controller::access::Access;
use crate::tunnel_controller::certifier::{ASKED_SECONDS_MAX, time};
use crate::tunnel_controller::error::{CertifyError, Error, JoinError};
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::problem::Problem;

/// The key of the ConfigMap with the newer bundle.
pub(in crate::tunnel_controller) const KEPT_KEY: &str = "bundle";
/// Pause between two requests for a newer bundle, as a fraction (1/40) of a bundle's lifetime.
const ASKED_OF_LIFE: i64 = 40;
/// Minimum pause between two requests for a newer bundle, in seconds. The maximum is
/// [`ASKED_SECONDS_MAX`].
const ASKED_SECONDS_MIN: i64 = 10;

/// The bundle that an entry joins with.
#[derive(Debug)]
pub struct Joined {
    /// The newest bundle.
    pub bundle: Bundle,
    /// The Secret with the user's copy.
    pub secret_name: String,
    /// Digest of that copy.
    pub copy: String,
    /// Whether `bundle` came through the tunnel.
    pub is_renewed: bool,
    /// Whether the ConfigMap for the newer bundle has another owner.
    pub is_taken: bool,
}

impl Joined {
    /// The copied bundle from the Secret `secret_name`, without a newer bundle.
    #[must_use]
    pub fn by_copy(secret_name: &str, copy: Bundle) -> Self {
        Self {
            secret_name: secret_name.to_owned(),
            copy: copy.digest(),
            bundle: copy,
            is_renewed: false,
            is_taken: false,
        }
    }

    pub(in crate::tunnel_controller) fn status(&self) -> Option<JoinedStatus> {
        Some(JoinedStatus {
            secret_name: self.secret_name.clone(),
            expires: time(self.bundle.expires())?,
            renewed: self.is_renewed,
        })
    }

    /// Seconds until a newer bundle is requested again.
    pub(super) fn pause(&self) -> i64 {
        let authority = &self.bundle.entry_authority;
        ((authority.end - authority.begin) / ASKED_OF_LIFE)
            .clamp(ASKED_SECONDS_MIN, ASKED_SECONDS_MAX)
    }
}

/// The ConfigMap of the tunnel `name` with the newer bundle.
pub(in crate::tunnel_controller) fn kept_in(name: &str) -> String {
    format!("{name}-join")
}

/// The newest of two bundles: the copy in the Secret `secret_name`, and the newer bundle that
/// replaces the copy. Otherwise, the reason why the copy is missing or invalid, or why the newest
/// bundle is not usable.
pub(super) async fn join(
    access: &Access,
    holder: &Holder,
    secret_name: &str,
    now: i64,
) -> Result<Result<Joined, Problem>, Error> {
    let copy = match copy(access, &holder.namespace, secret_name).await? {
        Ok(copy) => copy,
        Err(problem) => return Ok(Err(problem)),
    };
    let config_maps = &access.caches.config_maps;
    let known = config_maps.get(&holder.namespace, &kept_in(&holder.name))?;
    let is_own = known
        .as_ref()
        .is_some_and(|known| is_owned(known.as_ref(), &holder.owner));
    let sealed = known.as_ref().filter(|_| is_own);
    let sealed = sealed.and_then(|known| known.data.as_ref()?.get(KEPT_KEY));
    let kept = match sealed {
        Some(sealed) => kept(access, holder, &copy, sealed).await?,
        None => None,
    };
    let kept = kept.filter(|kept| kept.expires() >= copy.expires());
    let mut joined = Joined {
        is_taken: known.is_some() && !is_own,
        ..Joined::by_copy(secret_name, copy)
    };
    if let Some(kept) = kept {
        joined.bundle = kept;
        joined.is_renewed = true;
    }
    Ok(match joined.bundle.good_at(now) {
        Ok(()) => Ok(joined),
        Err(expired) => Err(Problem {
            code: expired.code,
            detail: format!("Secret {secret_name} {}", expired.what),
        }),
    })
}

/// The bundle in `sealed`, if it replaces `copy` and the seed is available.
async fn kept(
    access: &Access,
    holder: &Holder,
    copy: &Bundle,
    sealed: &str,
) -> Result<Option<Bundle>, CertifyError> {
    let seed = match access.memory.certifier.seed().await {
        Ok(seed) => seed,
        Err(SeedError::Unavailable(detail)) => {
            warn!(detail, "cannot read the stored newer join bundle");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let key = seed.storage_key(&holder.owner.uid)?;
    Ok(Kept::open(&key, &copy.digest(), sealed))
}

/// The bundle in the Secret `name`, even if it has expired, or the reason why it is missing. A
/// missing answer of the API server is an error. A refusal or a missing Secret is not an error.
async fn copy(
    access: &Access,
    namespace: &str,
    name: &str,
) -> Result<Result<Bundle, Problem>, JoinError> {
    let problem = |code, detail| Ok(Err(Problem { code, detail }));
    let secret: Secret = match access.reader.get(namespace, name).await {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            let detail = format!(
                "Secret {name} does not exist: copy the Secret NAME-join that the exit's operator publishes"
            );
            return problem(Code::JoinBundleMissing, detail);
        }
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let detail = forbidden(&access.settings, namespace, name);
            return problem(Code::JoinBundleForbidden, detail);
        }
        Err(source) => {
            let name = name.to_owned();
            return Err(JoinError { name, source });
        }
    };
    Ok(Bundle::read(&secret).map_err(|problem| Problem {
        code: problem.code,
        detail: format!("Secret {name} {}", problem.what),
    }))
}

/// The commands that grant the permission to read this Secret.
fn forbidden(settings: &Settings, namespace: &str, name: &str) -> String {
    let (own, account) = (&settings.namespace, &settings.service_account);
    format!(
        "the operator may not read Secret {name}; to permit it, run: kubectl -n {namespace} create role muxtunnel-join \
         --verb=get --resource=secrets --resource-name={name} && kubectl -n {namespace} create rolebinding \
         muxtunnel-join --role=muxtunnel-join --serviceaccount={own}:{account}; or add the namespace to the \
             chart's value join.namespaces"
    )
}
