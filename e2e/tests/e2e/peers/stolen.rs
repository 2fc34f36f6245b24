//! A thief has the private key of an entry: it acts neither as the exit nor as another peer.

use super::*;

/// The thief's pod, its Secret, and its Service.
const THIEF: &str = "thief";
/// The target that the stolen key's peer may not dial.
const VAULT: &str = "vault";

#[tokio::test]
async fn the_stolen_key_of_an_entry_acts_neither_as_the_exit_nor_as_another_peer() -> Result<()> {
    let _turn = turn::across().await?;
    with_temp_ns_in_both("stolen", PodSecurity::Restricted, async |near, far| {
        let mut site = Site::up(near, far).await?;
        site.exit["spec"]["allow"] =
            json!([{"host": "web", "port": 80}, {"host": VAULT, "port": 80}]);
        tunnel::apply_of::<MuxExit>(far, &site.exit.to_string()).await?;
        let (_, near_key) = site.entry("near").await?;
        let (mut other, other_key) = site.entry("other").await?;
        admit(far, "near", &[near_key]).await?;
        admit(far, "other", std::slice::from_ref(&other_key)).await?;
        let narrowed = json!({"spec": {"allow": [{"host": "web", "port": 80}]}});
        let how = PatchParams::default();
        let peers = far.api::<MuxPeer>();
        peers.patch("near", &how, &Patch::Merge(&narrowed)).await?;
        holds(far, "near", condition::PROGRAMMED).await?;
        tunnel::ready(near, "other").await?;

        steal(near, "near-entry-key-1").await?;
        // The key remains when its object is deleted.
        let tunnels = near.api::<MuxTunnel>();
        tunnels.delete("near", &DeleteParams::default()).await?;
        as_the_exit(near, &mut other, &other_key)
            .await
            .context("the thief in place of the exit")?;
        as_a_peer(&site).await.context("the thief as an entry")
    })
    .await
}

/// Copies the private key into the thief's Secret.
async fn steal(near: &TestNamespace, secret: &str) -> Result<()> {
    let secret = near.api::<Secret>().get(secret).await?;
    let private = secret.data.and_then(|mut data| data.remove("key"));
    let private = String::from_utf8(private.context("a private key")?.0)?;
    keys::secret(near, THIEF, &[("key", private)]).await
}

/// Starts a gateway with the stolen key. Returns its address.
async fn thief(near: &TestNamespace, arguments: &[&str]) -> Result<String> {
    let mut pod = pods::pod(THIEF, &[]);
    let gateway = &mut pod["spec"]["containers"][0];
    gateway["image"] = pods::GATEWAY_IMAGE.into();
    gateway["command"] = json!(["/usr/local/bin/muxgate"]);
    gateway["args"] = json!([arguments, &["--key", "/stolen/key"]].concat());
    gateway["volumeMounts"] = json!([{"name": "stolen", "mountPath": "/stolen"}]);
    pod["spec"]["securityContext"]["fsGroup"] = 65532.into();
    // Mode 0440.
    pod["spec"]["volumes"] =
        json!([{"name": "stolen", "secret": {"secretName": THIEF, "defaultMode": 288}}]);
    pods::create(near, pod).await?;
    let is_running = |pod: &Pod| {
        let status = pod.status.as_ref();
        status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
    };
    let pods = near.api::<Pod>();
    let pod = wait::for_object(&pods, THIEF, "the thief runs", pods::START, is_running).await?;
    let status = pod.status.context("a status")?;
    status.pod_ip.context("an address")
}

async fn no_thief(near: &TestNamespace) -> Result<()> {
    let delete = ["delete", "pod", THIEF, "--timeout=60s"];
    near.kubectl(&delete).await?;
    Ok(())
}

/// The entry `other` reaches the thief in place of the exit, as if the thief controlled the network.
async fn as_the_exit(near: &TestNamespace, other: &mut Value, other_key: &str) -> Result<()> {
    let exit = [
        "exit",
        "--peer",
        other_key,
        "--listen",
        "0.0.0.0:64000",
        "--allow",
        "web:80",
    ];
    let address = thief(near, &exit).await?;
    let connect = other["spec"]["connect"][0].clone();
    other["spec"]["connect"][0]["host"] = address.into();
    other["spec"]["connect"][0]["port"] = 64000.into();
    tunnel::apply(near, &other.to_string()).await?;
    wait::until("the entry refuses the stolen key", WITHIN, async || {
        let log = near.kubectl(&["logs", THIEF]).await?;
        Ok(log.contains("MT0235").then_some(()))
    })
    .await?;
    no_thief(near).await?;
    other["spec"]["connect"][0] = connect;
    tunnel::apply(near, &other.to_string()).await?;
    tunnel::ready(near, "other").await?;
    Ok(())
}

/// As an entry, the thief has the rules of the peer whose key it has, and ends with this peer.
async fn as_a_peer(site: &Site<'_>) -> Result<()> {
    let (near, far) = (site.near, site.far);
    let (host, port) = &site.endpoint;
    let (connect, vault) = (format!("{host}:{port}"), format!("8081:{VAULT}:80"));
    let entry = [
        "entry",
        "--peer",
        &site.keys[0],
        "--connect",
        &connect,
        "--forward",
        "0.0.0.0:8080:web:80",
        "--forward",
        &format!("0.0.0.0:{vault}"),
    ];
    let address = thief(near, &entry).await?;
    holds(far, "near", condition::CONNECTED).await?;
    pods::load(near, "by-thief", &format!("{address}:8080"), 10, 0, 2).await?;
    let stolen = pods::load_report(near, "by-thief", LOAD_ENDS).await?;
    ensure!(stolen.failed_opens() == 0, "{stolen:?}");
    // The peer `other` may dial the vault, the peer of the stolen key may not.
    pods::serve(near, "probe", Serve::Echo).await?;
    let read = format!("exec 3<>/dev/tcp/{address}/8081; timeout 20 head -c 1 <&3 | wc -c");
    let bytes = near
        .kubectl(&["exec", "probe", "--", "bash", "-c", &read])
        .await?;
    ensure!(bytes.trim() == "0", "{bytes:?}");
    wait::until("the exit has refused the vault", WITHIN, async || {
        let log = far.kubectl(&["logs", "deployment/far-exit"]).await?;
        let mut lines = log.lines();
        let is_refused = lines.any(|line| line.contains("MT0204") && line.contains(VAULT));
        Ok(is_refused.then_some(()))
    })
    .await?;

    let peers = far.api::<MuxPeer>();
    peers.delete("near", &DeleteParams::default()).await?;
    wait::until("the exit refuses the stolen key", WITHIN, async || {
        let log = near.kubectl(&["logs", THIEF]).await?;
        Ok(log.contains("MT0235").then_some(()))
    })
    .await?;
    works(near, "other-still", "other").await
}
