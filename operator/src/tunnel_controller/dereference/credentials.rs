//! Reads the keys and certificates of an object, and the peers of an exit. This module requires a
//! client. Missing key pairs are created here, because every later step needs their names.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use muxtunnel_crds::{KeySource, MuxPeer, SecurityMode};

use super::{Dereferenced, Live};
use crate::apply::is_owned;
use crate::caches::{Group, NotKnown};
use crate::certificates::cert_manager::Certificate;
use crate::tunnel_controller::access::Access;
use crate::tunnel_controller::cert_manager;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::error::Error;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::issuer::{issued_secret, issuer};
use crate::tunnel_controller::keyring::OwnKey;
use crate::tunnel_controller::object::{Kind, Object};
use crate::tunnel_controller::pods::{end_of, waiting_since};
use crate::tunnel_controller::problem::Problem;

/// The keys and certificates, and the peers of an exit.
#[derive(Debug, Default)]
pub struct Credentials {
    /// The Secret with the keys of both ends, if both belong to the object.
    pub pair: Option<String>,
    /// The key pairs of the only end of the object, the newest last.
    pub own: Vec<OwnKey>,
    /// The MuxPeers that name this exit.
    pub peers: Vec<Arc<MuxPeer>>,
    /// The Certificates of cert-manager by end, or why they cannot be used.
    pub of_cert_manager: BTreeMap<End, Result<Option<Certificate>, Problem>>,
}

/// The MuxPeers that name this object as their exit.
pub(super) fn peers(access: &Access, holder: &Holder) -> Result<Vec<Arc<MuxPeer>>, NotKnown> {
    if holder.kind != Kind::Exit {
        return Ok(Vec::new());
    }
    let exit = Group::Exit(holder.namespace.clone(), holder.name.clone());
    access.caches.peers.group(&exit)
}

/// Reads the other parts of `named.credentials`. `now`: seconds since 1970.
pub(super) async fn read(
    access: &Access,
    object: &Object,
    holder: &Holder,
    named: &mut Dereferenced,
    now: i64,
) -> Result<(), Error> {
    let (live, found) = (&named.live, &mut named.credentials);
    let has_keys = match object.mode() {
        Some(mode) => mode == SecurityMode::PublicKeys,
        // A rendezvous has keys, whatever the mode of the carriers that it joins.
        None => true,
    };
    if has_keys {
        let keyring = &access.memory.keyring;
        let generations = KeySource::generations(object.key());
        let waits = |end: End| waits(live, end, now);
        if object.has_both_ends() {
            let newest = generations.last().copied().unwrap_or(1);
            let waits = waits(End::Entry) || waits(End::Exit);
            let seen = (mounted_pair(access, holder)?, waits);
            found.pair = Some(keyring.pair(holder, newest, seen, now).await?);
        } else if let Some(end) = object.ends().next() {
            let (known, at) = (object.keys(), (waits(end), now));
            found.own = match KeySource::secrets(object.key()) {
                [] => keyring.own(holder, end, (&generations, known), at).await?,
                secrets => keyring.provided(holder, end, (secrets, known), at).await,
            };
        }
    }
    for end in asked_of_cert_manager(object, live, holder) {
        let name = holder.child(end);
        let certificate = access.reader.get(&holder.namespace, &name);
        let certificate = match certificate.await {
            Ok(certificate) => Ok(certificate),
            Err(error) => Err(cert_manager::missing(error).map_err(Error::Certificate)?),
        };
        found.of_cert_manager.insert(end, certificate);
    }
    Ok(())
}

/// Whether a pod of `end` has waited for some time, perhaps for its Secret.
fn waits(live: &Live, end: End, now: i64) -> bool {
    let mut pods = live.pods.iter().flatten();
    pods.any(|pod| {
        pod.metadata.deletion_timestamp.is_none()
            && end_of(pod) == Some(end)
            && waiting_since(pod, now).is_some()
    })
}

/// The Secret with the keys of both ends that the Deployments mount. A Deployment that nobody owns
/// counts, because the operator adopts it.
fn mounted_pair(access: &Access, holder: &Holder) -> Result<Option<String>, NotKnown> {
    let prefix = format!("{}-pair-", holder.name);
    let components = [End::Exit, End::Entry].map(End::component);
    let deployments = &access.caches.deployments;
    let deployments = deployments.children(&holder.namespace, holder.labelled(), &components)?;
    let own = deployments.iter().filter(|deployment| {
        deployment.owner_references().is_empty() || is_owned(deployment.as_ref(), &holder.owner)
    });
    let found = own
        .flat_map(|deployment| secrets(deployment))
        .find(|secret| secret.starts_with(&prefix))
        .map(str::to_owned);
    Ok(found)
}

/// The Secrets in the volumes of the pods.
fn secrets(deployment: &Deployment) -> impl Iterator<Item = &str> {
    let spec = deployment.spec.as_ref();
    let spec = spec.and_then(|spec| spec.template.spec.as_ref());
    let volumes = spec
        .into_iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.as_deref())
}

/// The ends whose Certificates are or were requested.
fn asked_of_cert_manager(object: &Object, live: &Live, holder: &Holder) -> Vec<End> {
    let was_issued = |end: End| {
        let secret = issued_secret(holder, end);
        let deployment = live.deployments.get(&end);
        deployment.is_some_and(|deployment| secrets(deployment).any(|mounted| mounted == secret))
    };
    let ends = holder.kind.ends().iter().copied();
    ends.filter(|end| issuer(object, *end).is_some() || was_issued(*end))
        .collect()
}
