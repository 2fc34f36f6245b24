//! A tunnel carries bytes.

use std::time::Duration;

use anyhow::Result;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, tunnel, with_temp_ns};

use crate::tunnel_to_web;

#[tokio::test]
async fn a_jmux_tunnel_carries_one_gibibyte_byte_exact() -> Result<()> {
    one_gibibyte("traffic-jmux", "protocol: Jmux, ").await
}

#[tokio::test]
async fn a_tunnel_of_the_default_protocol_carries_one_gibibyte_byte_exact() -> Result<()> {
    one_gibibyte("traffic-native", "").await
}

async fn one_gibibyte(namespace: &str, protocol: &str) -> Result<()> {
    with_temp_ns(namespace, PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        let yaml = tunnel_to_web("").replace("carrier: {", &format!("carrier: {{{protocol}"));
        tunnel::up(ns, &yaml).await?;
        // The script compares the SHA-256 of what was sent with the one that the far side took of what came.
        let send = ["send-hashed.sh", "t-entry", "8080", "1073741824"];
        let printed = pods::run(ns, "client", &send, Duration::from_secs(300)).await?;
        println!("{printed}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn two_replicas_on_both_sides_carry_streams() -> Result<()> {
    with_temp_ns("replicas", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        tunnel::up(
            ns,
            &tunnel_to_web("entry: {replicas: 2}\n  exit: {replicas: 2}"),
        )
        .await?;
        for client in ["one", "two", "three", "four"] {
            let send = ["send-hashed.sh", "t-entry", "8080", "1048576"];
            pods::run(ns, client, &send, Duration::from_secs(60)).await?;
        }
        Ok(())
    })
    .await
}
