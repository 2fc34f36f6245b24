//! IP packets between the gateways of an exit and two entries, and a pod without a tunnel.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use muxtunnel_crds::{MuxExit, MuxPeer, MuxTunnel, condition};
use muxtunnel_e2e::tunnel::Object;
use muxtunnel_e2e::{
    PodSecurity, TestNamespace, debug, keys, pods, tunnel, turn, wait, with_temp_ns,
};
use serde_json::{Value, json};

use crate::examples::example;

const WITHIN: Duration = Duration::from_secs(180);
const HUB: &str = "10.72.1.1";
/// The entries' names and addresses.
const ENTRIES: [(&str, &str); 2] = [("a", "10.72.0.1"), ("b", "10.72.0.2")];
const ALL_OK: &str = "tcp ok\nudp ok\nicmp ok\n";

/// The YAML of an exit for both entries, which forwards packets to `server`. The exit names itself
/// as the DNS server. `network.cidrs` must not contain the DNS server of an entry's pod: the entry
/// could then not resolve the name of its exit.
fn hub(server: &str) -> String {
    format!(
        "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxExit
metadata: {{name: hub}}
spec:
  network:
    cidrs: [{HUB}/32, {server}/32]
    addresses: [{HUB}]
    forwarding: SNAT
    peerCIDRs: [10.72.0.0/24]
    addressPools: [10.72.0.0/24]
    dns: {{servers: [{HUB}]}}
"
    )
}

/// The MuxPeer of an entry, which owns the network of one address.
async fn admit(ns: &TestNamespace, (name, address): (&str, &str)) -> Result<()> {
    let key = keys::public_key::<MuxTunnel>(ns, name).await?;
    let peer = json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxPeer", "metadata": {"name": name},
        "spec": {"exitRef": {"name": "hub"}, "publicKeys": [key], "networkCIDRs": [format!("{address}/32")]},
    });
    let peer: MuxPeer = serde_json::from_value(peer)?;
    ns.api().create(&PostParams::default(), &peer).await?;
    Ok(())
}

/// The YAML of a hostile entry, which claims the address of another entry as a network of the
/// exit's side.
fn entry((name, address): (&str, &str), other: &str, (server, key): (&str, &str)) -> String {
    format!(
        "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {{name: {name}}}
spec:
  connect: [{{name: hub, host: hub-exit, port: 443, publicKeys: [{key}]}}]
  network:
    entry: {{cidrs: [{address}/32], addresses: [{address}]}}
    exit: {{cidrs: [{HUB}/32, {server}/32, {other}/32]}}
"
    )
}

/// The only gateway of an end.
async fn gateway<K: Object>(ns: &TestNamespace, name: &str, end: &str) -> Result<Pod> {
    let mut pods = tunnel::gateways_of::<K>(ns, name, end).await?;
    pods.pop().context("a gateway")
}

/// Starts `packets.pl` as a server in a gateway's pod, until the pod ends.
async fn serve(ns: &TestNamespace, pod: &Pod, address: &str) -> Result<()> {
    let script = tunnel::packets_script()?;
    let begin = r#"perl -e "$0" serve "$1" >/dev/null 2>&1 &"#;
    let words = ["bash", "-c", begin, &script, address];
    debug::run(ns, pod, &words).await.map(drop)
}

/// The number of packets that the exit has dropped.
async fn drops(ns: &TestNamespace, exit: &Pod) -> Result<u64> {
    let status = tunnel::status(ns, exit).await?;
    let drops = status["packets"]["drops"].as_object();
    let drops = drops.into_iter().flat_map(|drops| drops.values());
    Ok(drops.filter_map(Value::as_u64).sum())
}

/// The addresses in 10.72.0.0/16 of the interfaces `mux0` in all pods of the node.
async fn interfaces(ns: &TestNamespace) -> Result<Vec<String>> {
    let list = "for path in /var/run/netns/*; do
                  nsenter --net=$path ip -o -4 address show dev mux0 2>/dev/null || true
                done";
    let listed = ns.cluster.node().await?.run(list).await?;
    let addresses = listed
        .split_whitespace()
        .filter(|word| word.starts_with("10.72."));
    Ok(addresses.map(str::to_owned).collect())
}

#[tokio::test]
async fn packets_reach_the_other_side_and_its_pods_but_no_other_entry() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("network", PodSecurity::Privileged, async |ns| {
        pods::start(ns, "server", &["packets.pl", "serve", "0.0.0.0"]).await?;
        pods::printed(ns, "server", "serving", WITHIN).await?;
        // The test waits for the address, because the kubelet publishes it after the container has
        // started.
        let server = wait::until("the server has an address", WITHIN, async || {
            let server = ns.api::<Pod>().get("server").await?;
            Ok(server.status.and_then(|status| status.pod_ip))
        })
        .await?;
        tunnel::apply_of::<MuxExit>(ns, &hub(&server)).await?;
        let key = keys::public_key::<MuxExit>(ns, "hub").await?;
        for (index, of) in ENTRIES.into_iter().enumerate() {
            let (_, other) = ENTRIES[1 - index];
            tunnel::apply(ns, &entry(of, other, (&server, &key))).await?;
            admit(ns, of).await?;
            let up = tunnel::ready(ns, of.0).await?;
            let what = "the status has the assigned address and DNS server";
            wait::for_object(&ns.api(), &up.name_any(), what, WITHIN, |up: &MuxTunnel| {
                let network = up
                    .status
                    .as_ref()
                    .and_then(|status| status.network.as_ref());
                network.is_some_and(|network| {
                    (&network.addresses, &network.dns_servers)
                        == (&vec![of.1.to_owned()], &vec![HUB.to_owned()])
                })
            })
            .await?;
        }
        let up = tunnel::ready_of::<MuxExit>(ns, "hub").await?;
        ensure!(tunnel::is_true(&up, condition::NETWORK_READY));

        let exit = gateway::<MuxExit>(ns, "hub", "exit").await?;
        serve(ns, &exit, HUB).await?;
        for (name, address) in ENTRIES {
            let entry = gateway::<MuxTunnel>(ns, name, "entry").await?;
            for target in [HUB, &server] {
                let printed = tunnel::packets(ns, &entry, &["reach", target]).await?;
                ensure!(printed == ALL_OK, "{name} to {target}: {printed}");
            }
            serve(ns, &entry, address).await?;
            let printed = tunnel::packets(ns, &exit, &["reach", address]).await?;
            ensure!(printed == ALL_OK, "the exit to {name}: {printed}");
        }

        let [a, b] = [
            gateway::<MuxTunnel>(ns, "a", "entry").await?,
            gateway::<MuxTunnel>(ns, "b", "entry").await?,
        ];
        let before = drops(ns, &exit).await?;
        for (entry, (_, other)) in [(&a, ENTRIES[1]), (&b, ENTRIES[0])] {
            let printed = tunnel::packets(ns, entry, &["reach", other]).await?;
            ensure!(!printed.contains("ok"), "{}: {printed}", entry.name_any());
        }
        // The exit drops at least a SYN, a datagram and an echo request of each entry.
        let dropped = drops(ns, &exit).await? - before;
        ensure!(
            dropped >= 6,
            "expected at least 6 dropped packets, the exit reports {dropped}"
        );

        for pod in [&a, &b, &exit] {
            let rights = ["cat", "/proc/1/status"];
            let status = debug::run_among(ns, pod, "gateway", &rights).await?;
            ensure!(status.starts_with("Name:\tmuxgate\n"), "{status}");
            let has = |line: &str| {
                status
                    .lines()
                    .any(|found| found.split_whitespace().eq(line.split(' ')))
            };
            for line in [
                "CapEff: 0000000000000000",
                "CapBnd: 0000000000000000",
                "NoNewPrivs: 1",
            ] {
                ensure!(
                    has(line),
                    "{}: expected {line} in: {status}",
                    pod.name_any()
                );
            }
        }

        // The interface belongs to the pod, so a restarted gateway uses it again.
        pods::kill(ns, &a, "muxgate").await?;
        wait::until("the next gateway carries packets", WITHIN, async || {
            Ok((tunnel::packets(ns, &a, &["reach", HUB])
                .await
                .is_ok_and(|printed| printed == ALL_OK))
            .then_some(()))
        })
        .await?;
        let again = ns.api::<Pod>().get(&a.name_any()).await?;
        ensure!(
            pods::restarts(&again) == 1,
            "expected one restart, of the gateway's container"
        );

        let shown = interfaces(ns).await?;
        for address in [HUB, ENTRIES[0].1, ENTRIES[1].1] {
            ensure!(
                shown
                    .iter()
                    .any(|found| found.starts_with(&format!("{address}/"))),
                "{shown:?}"
            );
        }
        let foreground = DeleteParams::foreground();
        for name in ["a", "b"] {
            ns.api::<MuxTunnel>().delete(name, &foreground).await?;
        }
        ns.api::<MuxExit>().delete("hub", &foreground).await?;
        wait::until("no interface is left", WITHIN, async || {
            Ok(interfaces(ns).await?.is_empty().then_some(()))
        })
        .await
    })
    .await
}

#[tokio::test]
async fn the_example_of_a_network_carries_packets_in_both_directions() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("example", PodSecurity::Privileged, async |ns| {
        let up = tunnel::up(ns, &example("muxtunnel-network.yaml")?).await?;
        ensure!(tunnel::is_true(&up, condition::NETWORK_READY));
        let entry = gateway::<MuxTunnel>(ns, "routed", "entry").await?;
        let exit = gateway::<MuxTunnel>(ns, "routed", "exit").await?;
        for (from, to, address) in [(&entry, &exit, "10.72.0.2"), (&exit, &entry, "10.72.0.1")] {
            serve(ns, to, address).await?;
            let printed = tunnel::packets(ns, from, &["reach", address]).await?;
            ensure!(printed == ALL_OK, "{address}: {printed}");
        }
        Ok(())
    })
    .await
}
