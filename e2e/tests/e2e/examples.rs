//! The examples in `docs/examples` work as described.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{LogParams, PostParams};
use muxtunnel_crds::{MuxExit, MuxPeer, MuxRendezvous, MuxTunnel, condition};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, TestNamespace, keys, tools, tunnel, turn, wait, with_temp_ns};
use serde::Deserialize;
use serde_json::{Value, json};

/// Time-out for the status, which the operator updates every few seconds.
const SAID_WITHIN: Duration = Duration::from_secs(60);

pub(crate) fn example(file: &str) -> Result<String> {
    let path = tools::checkout().join("docs/examples").join(file);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// The examples that need no more than one web server share a namespace, because most of the time
/// of an example is the start of its pods.
#[tokio::test]
async fn the_tunnels_with_one_web_server_lead_to_it() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("example", PodSecurity::Restricted, async |ns| {
        pods::scripts(ns).await?;
        tokio::try_join!(
            pods::serve(ns, "web", Serve::Hash),
            pods::serve(ns, "intranet", Serve::Hash),
        )?;
        // Two groups, because a node of two processors starts few pods at once.
        tokio::try_join!(
            of("muxtunnel.yaml", smallest(ns)),
            of("muxtunnel-ha.yaml", several_gateways(ns)),
            of("muxtunnel-tls.yaml", own_certificates(ns)),
            of("muxtunnel-reverse.yaml", reverse(ns)),
        )?;
        tokio::try_join!(
            of("muxtunnel-quic.yaml", quic_and_http3(ns)),
            of("muxtunnel-auto.yaml", chosen_transport(ns)),
            of("muxtunnel-websocket.yaml", web_socket(ns)),
            of("muxtunnel-dynamic.yaml", named_targets(ns)),
        )?;
        Ok(())
    })
    .await
}

/// Adds the name of the example to an error.
async fn of(file: &str, test: impl Future<Output = Result<()>>) -> Result<()> {
    test.await.with_context(|| format!("the example {file}"))
}

/// Sends bytes to the Service `entry`. The web server answers with their hash, which the client
/// checks.
async fn send(ns: &TestNamespace, client: &str, entry: &str, bytes: &str) -> Result<()> {
    let send = ["send-hashed.sh", entry, "8080", bytes];
    pods::run(ns, client, &send, Duration::from_secs(180)).await?;
    Ok(())
}

async fn smallest(ns: &TestNamespace) -> Result<()> {
    tunnel::up(ns, &example("muxtunnel.yaml")?).await?;
    send(ns, "first-client", "first-entry", "1000000").await
}

async fn several_gateways(ns: &TestNamespace) -> Result<()> {
    // Without a metrics server an autoscaler keeps `minReplicas`.
    let tunnel = tunnel::up(ns, &example("muxtunnel-ha.yaml")?).await?;
    let status = tunnel.status.context("a status")?;
    for (side, of) in [("entry", status.entry), ("exit", status.exit)] {
        let end = of.context("an end")?;
        ensure!(
            (end.replicas, end.ready_replicas) == (2, 2),
            "{side}: {end:?}"
        );
    }
    send(ns, "steady-client", "steady-entry", "1000000").await
}

async fn own_certificates(ns: &TestNamespace) -> Result<()> {
    keys::certificates(&[(ns, "private-entry"), (ns, "private-exit")]).await?;
    tunnel::up(ns, &example("muxtunnel-tls.yaml")?).await?;
    send(ns, "private-client", "private-entry", "10000000").await
}

async fn reverse(ns: &TestNamespace) -> Result<()> {
    tunnel::up(ns, &example("muxtunnel-reverse.yaml")?).await?;
    send(ns, "office-client", "office-reverse", "1000000").await
}

async fn quic_and_http3(ns: &TestNamespace) -> Result<()> {
    let quic = example("muxtunnel-quic.yaml")?;
    let http3 = quic.replace("QUIC", "HTTP3").replace("lossy", "proxied");
    ensure!(http3.contains("protocol: HTTP3"), "{http3}");
    for (name, yaml) in [("lossy", quic), ("proxied", http3)] {
        tunnel::up(ns, &yaml).await?;
        let (client, entry) = (format!("{name}-client"), format!("{name}-entry"));
        send(ns, &client, &entry, "10000000").await?;
    }
    Ok(())
}

async fn chosen_transport(ns: &TestNamespace) -> Result<()> {
    tunnel::up(ns, &example("muxtunnel-auto.yaml")?).await?;
    send(ns, "anywhere-client", "anywhere-entry", "10000000").await?;
    // The transport that answers first depends on the node's load. Tests in simulated time
    // check the choice (`gateway/src/roles/entry/ways/tests.rs`).
    let tunnels = ns.api::<MuxTunnel>();
    let what = "the status has the transports of the entries' carriers";
    wait::until(what, SAID_WITHIN, async || {
        let used = transports(ns, "anywhere").await?;
        let status = tunnels.get("anywhere").await?.status;
        let said = status.and_then(|status| status.carriers);
        let is_said = said.is_some_and(|carriers| {
            carriers.transports.into_iter().collect::<BTreeSet<_>>() == used
        });
        Ok((is_said && !used.is_empty()).then_some(()))
    })
    .await
}

/// The transports of the carriers of a tunnel's entries.
async fn transports(ns: &TestNamespace, name: &str) -> Result<BTreeSet<String>> {
    let mut transports = BTreeSet::new();
    for pod in tunnel::gateways(ns, name, "entry").await? {
        let status = tunnel::status(ns, &pod).await?;
        let carriers = status["carriers"].as_array().into_iter().flatten();
        transports.extend(carriers.filter_map(|one| Some(one["transport"].as_str()?.to_owned())));
    }
    Ok(transports)
}

async fn web_socket(ns: &TestNamespace) -> Result<()> {
    let (entry, exit) = ("through-http-entry", "through-http-tunnel-exit");
    let text = example("muxtunnel-websocket.yaml")?;
    tunnel::up(ns, &text).await?;
    send(ns, "by-keys", entry, "10000000").await?;
    ensure!(app_protocol(ns, exit).await?.as_deref() == Some("kubernetes.io/ws"));

    keys::certificates(&[(ns, entry), (ns, exit)]).await?;
    let mut object: Value = serde_yaml::from_str(&text)?;
    object["spec"]["security"] = json!({
        "mode": "Certificates",
        "certificates": {
            "entry": {"secretRef": {"name": entry}},
            "exit": {"secretRef": {"name": exit}},
            "entryNames": [entry],
            "exitNames": [exit],
        },
    });
    tunnel::up(ns, &object.to_string()).await?;
    send(ns, "by-certificates", entry, "10000000").await?;
    ensure!(app_protocol(ns, exit).await?.as_deref() == Some("kubernetes.io/wss"));
    Ok(())
}

/// The `appProtocol` of the first port of a Service.
async fn app_protocol(ns: &TestNamespace, service: &str) -> Result<Option<String>> {
    let service = ns.api::<Service>().get(service).await?;
    let ports = service.spec.and_then(|spec| spec.ports);
    Ok(ports.and_then(|ports| ports.first()?.app_protocol.clone()))
}

/// Clients reach the targets that the tunnel's policy allows. For other targets, and without a
/// password, they get the reason of the refusal.
async fn named_targets(ns: &TestNamespace) -> Result<()> {
    tunnel::apply(ns, &example("muxtunnel-dynamic.yaml")?).await?;
    let says = |tunnel: &MuxTunnel| {
        let ready = tunnel::condition(tunnel, condition::READY);
        ready.is_some_and(|ready| ready.message.contains("proxy-users"))
    };
    let tunnels = ns.api::<MuxTunnel>();
    let within = Duration::from_secs(180);
    wait::for_object(&tunnels, "dynamic", "the Secret is named", within, says).await?;
    // Output of `htpasswd -nB` for the password correct-horse.
    let hash = "$2y$05$N9qo8uLOickgx2ZMRZoMye./bQohP2JNa6kJDfUyJqRUYQSX5M8SS";
    let users = [("users", format!("alice:{hash}\n"))];
    keys::secret(ns, "proxy-users", &users).await?;
    tunnel::ready(ns, "dynamic").await?;
    // Output of `sha256sum` for the bytes that the client sends.
    let served = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03  -";
    let alice = "alice correct-horse";
    for (name, port, requests, heard) in [
        (
            "socks",
            "1080",
            format!(
                "socks5 {alice} web 80 socks5 {alice} web 81 socks5 alice wrong web 80 socks5 - - web 80"
            ),
            format!(
                "socks5 80: reply 0\nsocks5 80: {served}\nsocks5 81: reply 2\nsocks5 80: user 1\nsocks5 80: method 255\n"
            ),
        ),
        (
            "http",
            "3128",
            format!("connect {alice} web 80 connect {alice} web 81 connect - - web 80"),
            format!(
                "connect 80: status 200\nconnect 80: {served}\nconnect 81: status 403\nconnect 80: status 407\n"
            ),
        ),
        (
            "auto",
            "8080",
            format!(
                "socks5 {alice} web 80 connect {alice} web 80 connect {alice} kubernetes.default.svc 443 socks5 - - web 80 connect - - web 80"
            ),
            format!(
                "socks5 80: reply 0\nsocks5 80: {served}\nconnect 80: status 200\nconnect 80: {served}\nconnect 443: status 403\nsocks5 80: method 255\nconnect 80: status 407\n"
            ),
        ),
    ] {
        let mut script = vec!["through.sh", "dynamic-entry", port];
        script.extend(requests.split(' '));
        let printed = pods::run(ns, name, &script, Duration::from_secs(180)).await?;
        ensure!(
            printed == heard,
            "{name}: expected\n{heard}printed\n{printed}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_tunnel_over_an_emulated_wan_leads_to_the_service() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("example", PodSecurity::Privileged, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        tunnel::up(ns, &example("muxtunnel-wan.yaml")?).await?;
        let send = ["send-hashed.sh", "far-entry", "8080", "1000000"];
        pods::run(ns, "client", &send, Duration::from_secs(180)).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn targets_are_told_who_their_clients_are() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("example", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Source).await?;
        tunnel::up(ns, &example("muxtunnel-proxy-protocol.yaml")?).await?;
        let within = Duration::from_secs(180);
        let told = pods::run(ns, "client", &["source.sh", "told-entry", "8080"], within).await?;
        let client = ns.api::<Pod>().get("client").await?;
        let address = client.status.and_then(|status| status.pod_ip);
        let address = address.context("the client's address")?;
        ensure!(told.starts_with(&format!("client {address}:")), "{told}");

        let proxied = ["source.sh", "told-entry", "8081", "proxied"];
        let told = pods::run(ns, "behind-lb", &proxied, within).await?;
        ensure!(told == "client 203.0.113.7:4711\n", "{told}");
        Ok(())
    })
    .await
}

/// The objects of `muxtunnel-rendezvous.yaml`, with the namespaces replaced by these namespaces.
fn moved(text: &str, to: &BTreeMap<&str, &TestNamespace>) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let mut object = Value::deserialize(document)?;
        let place = object["metadata"]["namespace"]
            .as_str()
            .context("a namespace")?;
        let place = to[place].name.clone();
        object["metadata"]["namespace"] = place.into();
        let host = format!("meet-rendezvous.{}.svc", to["meet"].name);
        for at in ["/spec/rendezvous/0/host", "/spec/connect/0/rendezvous/host"] {
            if let Some(found) = object.pointer_mut(at) {
                *found = host.clone().into();
            }
        }
        objects.push(object);
    }
    Ok(objects)
}

/// Creates a MuxPeer.
async fn admit(ns: &TestNamespace, peer: Value) -> Result<()> {
    let peer: MuxPeer = serde_json::from_value(peer)?;
    ns.api().create(&PostParams::default(), &peer).await?;
    Ok(())
}

#[tokio::test]
async fn an_entry_and_an_exit_in_other_namespaces_meet_at_a_rendezvous() -> Result<()> {
    let _turn = turn::beside().await?;
    let level = PodSecurity::Restricted;
    with_temp_ns("meet", level, async |meet| {
        with_temp_ns("far", level, async |far| {
            with_temp_ns("near", level, async |near| meet_in(meet, far, near).await).await
        })
        .await
    })
    .await
}

async fn meet_in(meet: &TestNamespace, far: &TestNamespace, near: &TestNamespace) -> Result<()> {
    pods::serve(far, "web", Serve::Hash).await?;
    let places = BTreeMap::from([("meet", meet), ("far", far), ("near", near)]);
    let text = example("muxtunnel-rendezvous.yaml")?;
    let objects: Vec<Value> = moved(&text, &places)?;
    let [rendezvous, exit, peer, entry] = &objects[..] else {
        bail!("expected four objects, found {}", objects.len());
    };
    let (mut rendezvous, mut exit) = (rendezvous.clone(), exit.clone());
    let (mut peer, mut entry) = (peer.clone(), entry.clone());
    // The keys of the example belong to nobody. Each object gets the keys of the others.
    tunnel::apply_of::<MuxRendezvous>(meet, &rendezvous.to_string()).await?;
    let key = json!([keys::public_key::<MuxRendezvous>(meet, "meet").await?]);
    exit["spec"]["rendezvous"][0]["publicKeys"] = key.clone();
    entry["spec"]["connect"][0]["rendezvous"]["publicKeys"] = key;
    tunnel::apply_of::<MuxExit>(far, &exit.to_string()).await?;
    let key = json!([keys::public_key::<MuxExit>(far, "far").await?]);
    rendezvous["spec"]["members"][0]["publicKeys"] = key.clone();
    entry["spec"]["connect"][0]["publicKeys"] = key;
    tunnel::apply(near, &entry.to_string()).await?;
    let key = json!([keys::public_key::<MuxTunnel>(near, "near").await?]);
    rendezvous["spec"]["members"][1]["publicKeys"] = key.clone();
    peer["spec"]["publicKeys"] = key;
    admit(far, peer).await?;
    tunnel::up_of::<MuxRendezvous>(meet, &rendezvous.to_string()).await?;
    tunnel::ready_of::<MuxExit>(far, "far").await?;
    tunnel::ready(near, "near").await?;
    let send = ["send-hashed.sh", "near-entry", "8080", "10000000"];
    pods::run(near, "client", &send, Duration::from_secs(180)).await?;
    Ok(())
}

#[tokio::test]
async fn a_gateway_as_a_sidecar_leads_from_a_unix_socket_and_takes_what_is_redirected() -> Result<()>
{
    let _turn = turn::beside().await?;
    with_temp_ns("example", PodSecurity::Privileged, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        let service = ns.api::<Service>().get("web").await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip);
        let address = address.context("an address")?;
        let text = example("sidecar.yaml")?.replace("192.0.2.10", &address);
        let documents: Vec<Value> = serde_yaml::Deserializer::from_str(&text)
            .map(Value::deserialize)
            .collect::<Result<_, _>>()?;
        let [exit, peer, config, pod] = &documents[..] else {
            bail!("expected four documents, found {}", documents.len());
        };
        let (mut peer, mut config, mut pod) = (peer.clone(), config.clone(), pod.clone());
        let (public, private) = pods::keygen(ns, "keygen").await?;
        keys::secret(ns, "app-entry", &[("entry.key", private)]).await?;
        tunnel::apply_of::<MuxExit>(ns, &exit.to_string()).await?;
        peer["spec"]["publicKeys"] = json!([public]);
        admit(ns, peer).await?;
        tunnel::ready_of::<MuxExit>(ns, "far").await?;
        let text = config["data"]["config.yaml"].as_str().context("a file")?;
        let mut file: Value = serde_yaml::from_str(text)?;
        file["connect"][0]["publicKeys"] = json!([keys::public_key::<MuxExit>(ns, "far").await?]);
        config["data"]["config.yaml"] = file.to_string().into();
        let config: ConfigMap = serde_json::from_value(config)?;
        ns.api().create(&PostParams::default(), &config).await?;
        pods::fill(&mut pod["spec"]["containers"][0]);
        pods::create(ns, pod).await?;
        let within = Duration::from_secs(180);
        wait::for_object(&ns.api::<Pod>(), "app", "the pod is ready", within, pods::is_ready).await?;
        let by_socket = "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => '/run/muxgate/web.sock') or die $!; \
                         syswrite $s, qq(hello\\n); print scalar <$s>";
        let redirected = format!("exec 3<>/dev/tcp/{address}/80; echo hello >&3; head -n 1 <&3");
        for command in [["perl", "-e", by_socket], ["bash", "-c", &redirected]] {
            let exec = ["exec", "--namespace", &ns.name, "app", "-c", "app", "--"];
            let heard = tools::run("kubectl", &[&exec[..], &command[..]].concat()).await?;
            ensure!(heard == "hello\n", "{command:?}: {heard:?}");
        }
        // The client can also reach the target without the gateway, so the test checks the log for
        // the stream.
        let log = LogParams {
            container: Some("muxgate".to_owned()),
            ..LogParams::default()
        };
        for forward in ["forward=\"web\"", "forward=\"redirected\""] {
            let what = format!("a stream of {forward} is in the sidecar's log");
            wait::until(&what, within, async || {
                let log = ns.api::<Pod>().logs("app", &log).await?;
                Ok(log.contains(forward).then_some(()))
            })
            .await?;
        }
        Ok(())
    })
    .await
}
