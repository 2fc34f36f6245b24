//! The gateways of each end of a tunnel. Pure.

use std::collections::BTreeMap;

use muxtunnel_contract::defaults;
use muxtunnel_crds::{Gateway, MuxTunnelSpec, Rendezvous};

use super::{
    JudgedPeer, Replicas, ValidatedCertificates, ValidatedGateway, ValidatedRendezvous,
    ValidatedSecurity, ValidatedSsh, asked, carrier, rollouts,
};
use crate::tunnel_controller::dereference::Dereferenced;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::rollouts::Rollout;

/// Default for the number of carriers that a rendezvous joins. The pipes of that many carriers use
/// at most 512 MiB.
const VISITS_DEFAULT: u32 = 256;

/// The gateways of this tunnel.
pub(super) struct Ends {
    pub(super) entry: Option<ValidatedGateway>,
    pub(super) exit: Option<ValidatedGateway>,
    pub(super) rendezvous: Option<ValidatedRendezvous>,
}

impl Ends {
    pub(super) fn of(
        spec: &MuxTunnelSpec,
        name: &str,
        certificates: &ValidatedCertificates,
        (named, peers): (&Dereferenced, &[JudgedPeer]),
    ) -> Result<Self, String> {
        let live = &named.live;
        let end = |gateway: Option<&Gateway>, end: End| {
            let known = (&named.credentials, peers);
            let security = carrier::security(spec, certificates, (name, end), known)?;
            let replicas = match spec.network {
                // The packets of a network need exactly one gateway on each side.
                Some(_) => Replicas::Fixed(1),
                None => Replicas::free(live.deployments.get(&end).map(AsRef::as_ref)),
            };
            self::gateway(gateway, security, end.component(), replicas)
        };
        let entry = || end(spec.entry.as_ref(), End::Entry);
        let exit = || end(spec.exit.as_ref(), End::Exit);
        Ok(Self {
            entry: spec.side.has_entry().then(entry).transpose()?,
            exit: spec.side.has_exit().then(exit).transpose()?,
            rendezvous: spec.rendezvous.as_ref().map(rendezvous).transpose()?,
        })
    }

    /// The roll-out of each end. `sysctls`: the sysctls of the gateways' pods.
    pub(super) fn rollouts(
        &self,
        sysctls: &BTreeMap<String, String>,
        named: &Dereferenced,
    ) -> BTreeMap<End, Rollout> {
        let rendezvous = self.rendezvous.as_ref().map(|own| &own.gateway);
        let ends = [
            (End::Entry, self.entry.as_ref()),
            (End::Exit, self.exit.as_ref()),
            (End::Rendezvous, rendezvous),
        ];
        ends.into_iter()
            .filter_map(|(end, gateway)| {
                let asked = asked(sysctls, &gateway?.template);
                Some((end, rollouts::rollout(end, asked, named)))
            })
            .collect()
    }
}

/// `end`: the name of the end in the spec. `replicas` applies if the spec sets no number.
fn gateway(
    asked: Option<&Gateway>,
    security: ValidatedSecurity,
    end: &str,
    replicas: Replicas,
) -> Result<ValidatedGateway, String> {
    let asked = asked.cloned().unwrap_or_default();
    Ok(ValidatedGateway {
        replicas: Replicas::of(&asked, replicas),
        drain_seconds: asked.drain_seconds.unwrap_or(defaults::DRAIN_SECONDS),
        trusted_proxies: carrier::trusted_proxies(&asked.trusted_proxies, end)?,
        service: asked.service.unwrap_or_default(),
        reverse_service: asked.reverse_service.unwrap_or_default(),
        ssh: asked.ssh.as_deref().map(ValidatedSsh::of),
        security,
        template: asked.template.unwrap_or_default(),
    })
}

fn rendezvous(asked: &Rendezvous) -> Result<ValidatedRendezvous, String> {
    let gateway = Gateway {
        service: asked.service.clone(),
        trusted_proxies: asked.trusted_proxies.clone(),
        template: asked.template.clone(),
        ..Gateway::default()
    };
    Ok(ValidatedRendezvous {
        gateway: self::gateway(
            Some(&gateway),
            ValidatedSecurity::None,
            "rendezvous",
            // Only one gateway knows all names.
            Replicas::Fixed(1),
        )?,
        secret: asked.secret_name.clone(),
        visits: asked.visits.unwrap_or(VISITS_DEFAULT),
    })
}
