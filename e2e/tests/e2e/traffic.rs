//! A tunnel transfers bytes unchanged.

use std::time::Duration;

use anyhow::Result;
use muxtunnel_crds::MuxTunnel;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, tunnel, turn, wait, with_temp_ns};

use crate::tunnel_to_web;

#[tokio::test]
async fn a_jmux_tunnel_carries_one_gibibyte_byte_exact() -> Result<()> {
    let _turn = turn::beside().await?;
    one_gibibyte("traffic-jmux", "protocol: JMUX").await
}

#[tokio::test]
async fn a_tunnel_of_the_default_protocol_carries_one_gibibyte_byte_exact() -> Result<()> {
    let _turn = turn::beside().await?;
    one_gibibyte("traffic-native", "").await
}

async fn one_gibibyte(namespace: &str, protocol: &str) -> Result<()> {
    with_temp_ns(namespace, PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        let yaml = tunnel_to_web("").replace("carrier: {", &format!("carrier: {{{protocol}"));
        tunnel::up(ns, &yaml).await?;
        // The script compares the SHA-256 of the sent bytes with the SHA-256 of the bytes that the
        // server received.
        let send = ["send-hashed.sh", "t-entry", "8080", "1073741824"];
        let printed = pods::run(ns, "client", &send, Duration::from_secs(300)).await?;
        println!("{printed}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn two_replicas_on_both_sides_carry_streams() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("replicas", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        let one_worker = "template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 10m}, limits: {cpu: '1'}}}]}}";
        let gateways =
            format!("entry: {{replicas: 2, {one_worker}}}\n  exit: {{replicas: 2, {one_worker}}}");
        let yaml =
            tunnel_to_web(&gateways).replace("carrier: {", "carrier: {pool: {min: 2, max: 2}");
        tunnel::up(ns, &yaml).await?;
        // Each entry has a session with each exit, and both carriers of a session reach the same exit.
        let what = "every session has its carriers";
        let within = Duration::from_secs(180);
        wait::for_object(&ns.api::<MuxTunnel>(), "t", what, within, |tunnel| {
            let status = tunnel.status.as_ref();
            status
                .and_then(|status| status.carriers.as_ref())
                .is_some_and(|carriers| carriers.connected == 8)
        })
        .await?;
        for client in ["one", "two", "three", "four"] {
            let send = ["send-hashed.sh", "t-entry", "8080", "1048576"];
            pods::run(ns, client, &send, Duration::from_secs(180)).await?;
        }
        Ok(())
    })
    .await
}
