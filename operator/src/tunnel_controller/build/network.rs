//! The interface for IP packets. The container `network` of a gateway's pod creates the interface,
//! and the gateway opens it. This container has UID 0, NET_ADMIN (for the interface and its routes)
//! and MKNOD (for the TUN driver's node). Of the pod's other containers, only the container for WAN
//! emulation has UID 0 and NET_ADMIN.

use k8s_openapi::api::core::v1::{Container, Volume};
use muxtunnel_crds::NetworkForwarding;
use muxtunnel_gateway_config::{DEVICE_DEFAULT, Network};

use super::End;
use super::deployment::COMMAND;
use crate::class::Class;
use crate::pods::{self, flag};
use crate::tunnel_controller::pods::NETWORK_CONTAINER;
use crate::tunnel_controller::validate::ValidatedNetwork;

/// The volume with the TUN driver's node.
pub(super) const VOLUME: &str = "tun";
/// Mount path of the volume in both containers.
pub(super) const FOLDER: &str = "/run/muxtunnel";

fn node() -> String {
    format!("{FOLDER}/tun")
}

/// The network in a gateway's configuration. Only an exit has peers, pools and rules.
pub(super) fn config(network: &ValidatedNetwork, end: End) -> Network {
    let mut config = network.config.clone();
    config.node = node();
    if end != End::Exit {
        config.peers.clear();
        config.pool.clear();
        config.dns = None;
        config.peers_reach_each_other = false;
        config.allow.clear();
        config.deny.clear();
    }
    config
}

/// The init container of the gateways of `end`.
pub(super) fn container(network: &ValidatedNetwork, end: End, class: &Class) -> Container {
    Container {
        name: NETWORK_CONTAINER.to_owned(),
        image: Some(class.part.images.gateway.clone()),
        image_pull_policy: Some(class.pull_policy()),
        command: Some(vec![COMMAND.to_owned()]),
        args: Some(args(network, end)),
        security_context: Some(pods::privileged(&["NET_ADMIN", "MKNOD"])),
        // The condition NetworkReady reports the error that the container prints.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(vec![pods::mount(VOLUME, FOLDER)]),
        ..Container::default()
    }
}

fn args(network: &ValidatedNetwork, end: End) -> Vec<String> {
    // Connections begin at the entry's end.
    let (own, other, direction) = match end {
        End::Exit => (&network.exit, &network.entry, "out"),
        End::Entry | End::Rendezvous => (&network.entry, &network.exit, "in"),
    };
    let mut args = vec!["tun".to_owned(), "create".to_owned()];
    args.extend(flag("device", DEVICE_DEFAULT));
    args.extend(flag("device-node", node()));
    args.extend(flag("owner", pods::UID));
    args.extend(flag("mtu", network.config.mtu));
    let queues = network.config.queues;
    if queues > 1 {
        args.extend(flag("queues", queues));
    }
    let addresses = own.addresses.iter();
    args.extend(addresses.flat_map(|address| flag("address", address)));
    let routes = other.cidrs.iter();
    args.extend(routes.flat_map(|route| flag("route", route)));
    let switches: &[&str] = match own.forwarding.unwrap_or_default() {
        NetworkForwarding::None => &[],
        NetworkForwarding::Route => &["--forward"],
        NetworkForwarding::Snat => &["--forward", "--masquerade", direction],
    };
    args.extend(switches.iter().map(|switch| (*switch).to_owned()));
    args
}

/// An empty directory. The kubelet mounts this directory without `nodev`, so the kernel can open a
/// device node in it.
pub(super) fn volume() -> Volume {
    pods::empty_volume(VOLUME)
}
