//! Keeps the next join bundle that a remote exit offers. This module requires a client, and
//! [`crate::certificates::offer`] is the pure part.
//!
//! The bundle is kept in a ConfigMap next to the tunnel, sealed with this operator's seed. A write
//! of this ConfigMap triggers the next reconciliation, which issues certificates from the bundle.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::ObjectMeta;
use tracing::info;

use crate::certificates::join::{Bundle, date};
use crate::certificates::offer::{self, Kept};
use crate::labels::{self, MANAGER};
use crate::tunnel_controller::access::Outputs;
use crate::tunnel_controller::dereference::{Joined, KEPT_KEY, kept_in};
use crate::tunnel_controller::error::CertifyError;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::validate::ValidatedState;

/// Keeps the bundle in `offer` if it is newer than the bundle of `joined`. Returns the reason if
/// the last request for an offer failed, or if its answer was not usable.
pub(super) async fn hear(
    outputs: &Outputs,
    state: &ValidatedState,
    joined: &Joined,
    offer: Option<&Result<String, String>>,
) -> Result<Option<String>, CertifyError> {
    let (holder, now) = (&state.holder, state.certificates.now);
    let (certifier, uid) = (&outputs.memory.certifier, &holder.owner.uid);
    let Some(offer) = offer else {
        return Ok(certifier.failure(uid, now));
    };
    let newer = match offer {
        Ok(offer) => offer::accept(offer, &joined.bundle),
        Err(failure) => Err(failure.clone()),
    };
    let newer = newer.and_then(|newer| {
        let expired = newer.as_ref().and_then(|newer| newer.good_at(now).err());
        expired.map_or(Ok(newer), |expired| {
            Err(format!("the bundle that the exit offers {}", expired.what))
        })
    });
    let failure = match newer {
        Ok(Some(newer)) => keep(outputs, holder, joined, &newer).await?.err(),
        Ok(None) => None,
        Err(failure) => Some(failure),
    };
    certifier.asked(uid, failure.clone(), now);
    Ok(failure)
}

async fn keep(
    Outputs {
        cluster, memory, ..
    }: &Outputs,
    holder: &Holder,
    joined: &Joined,
    newer: &Bundle,
) -> Result<Result<(), String>, CertifyError> {
    let name = kept_in(&holder.name);
    if joined.is_taken {
        return Ok(Err(format!(
            "ConfigMap {name} exists and does not belong to the tunnel: delete the ConfigMap, or create the tunnel with another name"
        )));
    }
    // The seed is read as late as possible, because an operator whose tunnels all join remote exits
    // needs no seed until a bundle arrives.
    let key = memory
        .certifier
        .seed()
        .await?
        .storage_key(&holder.owner.uid)?;
    let sealed = Kept::seal(&key, &joined.copy, newer);
    let config_map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(holder.namespace.clone()),
            labels: Some(labels::child(&holder.name, "join")),
            owner_references: Some(vec![holder.owner.clone()]),
            ..ObjectMeta::default()
        },
        data: sealed.map(|sealed| [(KEPT_KEY.to_owned(), sealed)].into()),
        ..ConfigMap::default()
    };
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), &holder.namespace);
    let how = PatchParams::apply(MANAGER).force();
    let written = api.patch(&name, &how, &Patch::Apply(&config_map)).await;
    let written = written.map_err(|error| CertifyError::Keep(Box::new(error)))?;
    cluster.caches.config_maps.wrote(&written);
    info!(
        config_map = name,
        until = date(newer.expires()),
        "received a newer join bundle through the tunnel"
    );
    Ok(Ok(()))
}
