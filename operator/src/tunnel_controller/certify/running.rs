//! Renewal of the certificates of gateways that run, whatever the spec says. Client required.
//!
//! A tunnel that is paused, or whose spec a newer operator refuses, keeps its gateways, and their certificates live for a
//! day. In: what was issued before, by the status. Out: the same, renewed where it is due. The spec decides nothing here,
//! so an edit of a paused tunnel takes no effect.

use kube::ResourceExt;
use muxtunnel_crds::{CertificateStatus, MuxTunnel};

use super::{Certified, Certifier, Holder, Records, plan};
use crate::apply::{is_owned, owner_reference};
use crate::caches::Cluster;
use crate::certificates::authority::Subject;
use crate::certificates::seed::SeedError;
use crate::settings::Settings;
use crate::tunnel_controller::dereference::join;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::error::{CertifyError, Error};
use crate::tunnel_controller::problem::Problem;
use muxtunnel_codes::Code;

impl Certifier {
    /// Renews what was issued for gateways that run.
    ///
    /// # Errors
    /// [`Error::Certify`], [`Error::Join`].
    pub async fn renew(
        &self,
        cluster: &Cluster,
        tunnel: &MuxTunnel,
        settings: &Settings,
    ) -> Result<Certified, Error> {
        let mut certified = Certified {
            status: self.known(tunnel),
            now: self.now(),
            ..Certified::default()
        };
        let (name, namespace) = (tunnel.name_any(), tunnel.namespace().unwrap_or_default());
        let owner = owner_reference(tunnel).ok_or(Error::Incomplete("uid"))?;
        let holder = Holder {
            name: &name,
            namespace: &namespace,
            owner: &owner,
        };
        let mut issued = Vec::new();
        for end in [End::Exit, End::Entry] {
            let record = certified.status.of(end);
            let identity = record.and_then(|record| issued_identity(record, holder, end));
            let child = format!("{name}-{}", end.component());
            let deployment = cluster.caches.deployments.get(&namespace, &child);
            let is_gone = deployment
                .is_ok_and(|found| !found.is_some_and(|found| is_owned(found.as_ref(), &owner)));
            let identity = identity.filter(|_| !is_gone);
            issued.extend(identity.map(|identity| (end, identity)));
        }
        if issued.is_empty() {
            return Ok(certified);
        }
        let bundle;
        let wanted = if let Some(joined) = certified.status.joined.clone() {
            let secret_name = &joined.secret_name;
            let copy = join::copy(&self.client, &namespace, secret_name, settings).await?;
            match self.followed(cluster, tunnel, secret_name, copy).await? {
                Ok(followed) => bundle = followed.bundle,
                Err(problem) => return Ok(failed(certified, problem)),
            }
            let entry = issued.into_iter().filter(|(end, _)| *end == End::Entry);
            entry
                .map(|(_, identity)| plan::bundled(identity, &bundle))
                .collect()
        } else {
            let seed = match self.seeds.seed().await {
                Ok(seed) => seed,
                Err(SeedError::Unavailable(detail)) => {
                    let code = Code::AuthorityUnavailable;
                    return Ok(failed(certified, Problem { code, detail }));
                }
                Err(error) => return Err(CertifyError::from(error).into()),
            };
            let subject = Subject::of(
                tunnel,
                u32::try_from(certified.status.least_generation()).unwrap_or_default(),
                settings,
            );
            let mut wanted = Vec::new();
            for (end, identity) in issued {
                let next = plan::derived(end, identity, &subject, &seed, certified.now);
                wanted.push(next.map_err(CertifyError::from)?);
            }
            wanted
        };
        self.issue_due(holder, wanted, &mut certified, |_| None)
            .await?;
        Ok(certified)
    }
}

fn failed(mut certified: Certified, problem: Problem) -> Certified {
    certified.problem = Some(problem);
    certified
}

/// The Secret and the identity of a certificate that the operator issued; one of a user's has no time of issue.
fn issued_identity(
    record: &CertificateStatus,
    holder: Holder<'_>,
    end: End,
) -> Option<(String, String)> {
    let own = format!("{}-{}-tls", holder.name, end.component());
    let is_own = record.secret_name == own && record.issued_at.is_some();
    let identity = record.identity.clone().filter(|_| is_own)?;
    Some((own, identity))
}
