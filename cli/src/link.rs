//! `link`: makes a Service of one cluster reachable in another cluster.
//!
//! The command creates what is missing, in this order: the exit, the entry, and the MuxPeer. It
//! never deletes an object, and never changes the exit. The pure functions are in [`mod@exit`],
//! [`mod@entry`] and [`mod@service`].

mod entry;
mod exit;
mod linked;
mod service;

use anyhow::anyhow;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::ObjectMeta;
use muxtunnel_crds::condition;
use muxtunnel_gateway_config::{GatewayKey, Role};
use serde_json::Value;
use tokio::time::Instant;

use crate::args::{ClusterArgs, Exposure, LinkArgs};
use crate::cluster::{self, Cluster, failed, refusal};
use crate::end::{Ended, Failure};
use crate::object::{self, Change, Gateways, Kind, Known, Status};
use crate::output::Terminal;
use crate::peer::{self, Wanted};
use crate::poll::{self, Waited};
use crate::target::authority;
use exit::Reach;
pub(crate) use exit::{PORT, is_internal};
use linked::{Linked, Object};
use service::Target;

/// Maximum length of the name of a MuxTunnel or MuxExit.
const TUNNEL_NAME_MAX: usize = 40;
/// Maximum length of the name of a MuxPeer, which is a name in the exit's configuration.
const PEER_NAME_MAX: usize = 63;

/// The clusters, the names and the time-out of a link.
struct Link<'a> {
    args: &'a LinkArgs,
    /// The cluster of the clients.
    near: Cluster,
    /// The cluster of the Service.
    far: Cluster,
    entry: String,
    exit: String,
    peer: String,
    deadline: Instant,
}

pub(crate) async fn run(
    args: &LinkArgs,
    to: &ClusterArgs,
    program: &str,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    if to.context.is_some() {
        let message = "link has two contexts: use --from and --to instead of --context";
        return Err(Failure::Usage(message.to_owned()));
    }
    let has_port = args.address.as_ref().is_some_and(|one| one.port.is_some());
    if args.service_type == Exposure::NodePort && !has_port {
        let message = "--address needs the node port: --address HOST:PORT";
        return Err(Failure::Usage(message.to_owned()));
    }
    let entry = args.name.as_ref().unwrap_or(&args.service.name).clone();
    if entry.len() > TUNNEL_NAME_MAX {
        let message = format!("{entry} has more than {TUNNEL_NAME_MAX} characters: give --name");
        return Err(Failure::Usage(message));
    }
    let at = |context: &String, namespace: &Option<String>| ClusterArgs {
        namespace: namespace.clone(),
        context: Some(context.clone()),
        kubeconfig: to.kubeconfig.clone(),
    };
    let far_namespace = args.to_namespace.clone().or_else(|| to.namespace.clone());
    let link = Link {
        near: cluster::connect(&at(&args.from, &to.namespace)).await?,
        far: cluster::connect(&at(&args.to, &far_namespace)).await?,
        exit: args.exit.clone().unwrap_or_else(|| entry.clone()),
        peer: args
            .peer
            .clone()
            .unwrap_or_else(|| peer_name(&entry, &args.from)),
        entry,
        deadline: Instant::now() + args.timeout.as_std(),
        args,
    };
    let linked = link.run(program).await?;
    terminal.print(&linked, args.output)?;
    Ok(Ended::Good)
}

impl Link<'_> {
    async fn run(&self, program: &str) -> Result<Linked, Failure> {
        let target = self.target().await?;
        let (exit, host, exit_change) = self.exit(&target).await?;
        // Checks an existing entry before the wait for the exit.
        let existing = self.existing(Kind::Tunnel).await?;
        let wanted = entry::Wanted {
            name: &self.entry,
            namespace: &self.near.namespace,
            host: &host,
            target: &target,
            port: self.args.port,
        };
        if let Some(problem) = existing.as_ref().and_then(|entry| wanted.problem_of(entry)) {
            return Err(Failure::Failed(anyhow!(problem)));
        }
        let reach = self.reach().await?;
        let entry_change = self
            .entry(&wanted, existing.as_ref(), &exit, &reach)
            .await?;
        let keys = self.entry_keys().await?;
        let (key, peer_change) = self.peer(keys, &host, &target).await?;
        let entry = self.available(program).await?;
        let clients = wanted.clients(&entry);
        let carriers = authority(&reach.host, reach.port);
        let object = |name: &str, cluster: &Cluster, change, detail: String| Object {
            context: cluster.context.clone().unwrap_or_default(),
            namespace: cluster.namespace.clone(),
            name: name.to_owned(),
            change,
            detail,
        };
        Ok(Linked {
            exit: object(&self.exit, &self.far, exit_change, carriers),
            entry: object(&self.entry, &self.near, entry_change, clients),
            peer: object(&self.peer, &self.far, peer_change, key),
        })
    }

    /// The Service's host and port.
    async fn target(&self) -> Result<Target, Failure> {
        let (name, namespace) = (&self.args.service.name, &self.far.namespace);
        let api: Api<Service> = Api::namespaced(self.far.client.clone(), namespace);
        let asked = self.args.service.port.as_deref();
        let service = match api.get(name).await {
            Ok(service) => service,
            // Without the right to read Services, the command needs the port as a number.
            Err(error) if refusal(&error) == Some(403) => Service {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    namespace: Some(namespace.clone()),
                    ..ObjectMeta::default()
                },
                ..Service::default()
            },
            Err(error) => {
                let doing = format!(
                    "cannot read the Service {name} in namespace {namespace} (context {})",
                    self.args.to
                );
                return Err(Failure::Failed(failed(&doing, error)));
            }
        };
        let target = service::target(&service, asked);
        target.map_err(|problem| Failure::Failed(anyhow!("Service {namespace}/{name}: {problem}")))
    }

    /// The exit, which is created if it does not exist, and the host that entries name for the
    /// target.
    async fn exit(&self, target: &Target) -> Result<(Gateways, String, Change), Failure> {
        let namespace = self.far.namespace.as_str();
        if let Some(exit) = self.existing(Kind::Exit).await? {
            let host = exit::host(&exit, target).map_err(|problem| {
                Failure::Failed(anyhow!(
                    "the MuxExit {namespace}/{} (context {}) {problem}",
                    self.exit,
                    self.args.to
                ))
            })?;
            return Ok((exit, host, Change::Unchanged));
        }
        let manifest = exit::manifest(
            namespace,
            &self.exit,
            target,
            self.args.service_type,
            self.args.address.as_ref(),
        );
        let exit = self.apply(Kind::Exit, &manifest).await?;
        Ok((exit, target.host(), Change::Created))
    }

    /// The cluster and the name of the exit or of the entry.
    fn place(&self, kind: Kind) -> (&Cluster, &str) {
        match kind {
            Kind::Exit => (&self.far, &self.exit),
            Kind::Tunnel | Kind::Rendezvous => (&self.near, &self.entry),
        }
    }

    async fn existing(&self, kind: Kind) -> Result<Option<Gateways>, Failure> {
        let (cluster, name) = self.place(kind);
        let namespace = cluster.namespace.as_str();
        let api = object::api(&cluster.client, kind, Some(namespace));
        let object = api.get_opt(name).await;
        Ok(object.map_err(|error| object::not_read(kind, namespace, name, error))?)
    }

    async fn apply(&self, kind: Kind, manifest: &Value) -> Result<Gateways, Failure> {
        let (cluster, name) = self.place(kind);
        let namespace = cluster.namespace.as_str();
        let api = object::api(&cluster.client, kind, Some(namespace));
        let kind = kind.name();
        let doing = format!("cannot apply the {kind} {name} in namespace {namespace}");
        let applied = object::apply(&api, manifest).await;
        Ok(applied.map_err(|error| failed(&doing, error))?)
    }

    /// Waits until the exit has public keys and an address.
    async fn reach(&self) -> Result<Reach, Failure> {
        let given = self.args.address.as_ref();
        let is_same_cluster = self.near.server == self.far.server;
        let judge = |exit: &Gateways| exit::reach(exit, given, is_same_cluster);
        self.wait(Kind::Exit, judge).await
    }

    /// Creates the entry, or gives it the keys and the address of the exit.
    async fn entry(
        &self,
        wanted: &entry::Wanted<'_>,
        existing: Option<&Gateways>,
        exit: &Gateways,
        reach: &Reach,
    ) -> Result<Change, Failure> {
        if existing.is_some_and(|entry| entry::dials(entry, reach)) {
            return Ok(Change::Unchanged);
        }
        let manifest = wanted.manifest(existing, exit, reach);
        let applied = self.apply(Kind::Tunnel, &manifest).await?;
        Ok(Change::between(existing, &applied))
    }

    /// Waits until the entry has public keys.
    async fn entry_keys(&self) -> Result<Vec<GatewayKey>, Failure> {
        let judge = |entry: &Gateways| match object::public_keys(entry) {
            [] => Err(exit::no_key(entry)),
            keys => Ok(keys.to_vec()),
        };
        let texts = self.wait(Kind::Tunnel, judge).await?;
        let key = |text: &String| GatewayKey::of_role(text, Role::Entry);
        let keys = texts.iter().map(key).collect::<Result<Vec<_>, _>>();
        keys.map_err(|error| {
            Failure::Failed(anyhow!(
                "status.publicKeys of the entry {}/{} has a text that is {error}",
                self.near.namespace,
                self.entry
            ))
        })
    }

    /// Creates the MuxPeer of the entry, or gives it the newest keys of the entry. Returns the first
    /// key.
    async fn peer(
        &self,
        keys: Vec<GatewayKey>,
        host: &str,
        target: &Target,
    ) -> Result<(String, Change), Failure> {
        let namespace = &self.far.namespace;
        let wanted = Wanted {
            namespace: namespace.clone(),
            name: self.peer.clone(),
            exit: self.exit.clone(),
            expires: None,
            ttl_seconds: None,
            allow: vec![target.rule(host)],
            reverse_ports: Vec::new(),
            keys,
        };
        let texts: Vec<_> = wanted.keys.iter().map(ToString::to_string).collect();
        let first = texts.first().cloned().unwrap_or_default();
        let existing = peer::read(&self.far, namespace, &self.peer).await?;
        if let Some(existing) = &existing {
            let has = existing.spec["publicKeys"].as_array().into_iter().flatten();
            let has: Vec<_> = has.filter_map(Value::as_str).collect();
            let shared = texts
                .iter()
                .filter(|key| has.contains(&key.as_str()))
                .count();
            if shared == 0 && wanted.problem_of(existing).is_none() {
                return Err(Failure::Failed(anyhow!(
                    "the MuxPeer {namespace}/{} (context {}) exists with the keys of another entry: choose another \
                     name with --peer, or remove the MuxPeer",
                    self.peer,
                    self.args.to
                )));
            }
            if shared == texts.len() && wanted.problem_of(existing).is_none() {
                if !exit::peer_permits(existing, host, target.port) {
                    return Err(Failure::Failed(anyhow!(
                        "the MuxPeer {namespace}/{peer} (context {}) does not permit the target {host}:{port}. Add \
                         {{host: {host}, port: {port}}} to its spec.allow (kubectl edit muxpeer {peer} -n {namespace}), \
                         or choose another name with --name",
                        self.args.to,
                        peer = self.peer,
                        port = target.port,
                    )));
                }
                return Ok((first, Change::Unchanged));
            }
        }
        let (_, change) = wanted.apply(&self.far).await?;
        Ok((first, change))
    }

    /// Waits until the entry is Available.
    async fn available(&self, program: &str) -> Result<Gateways, Failure> {
        let type_ = condition::AVAILABLE;
        let judge = |entry: &Gateways| match object::holds(entry, type_) {
            true => Ok(entry.clone()),
            false => Err(object::state(entry, type_)),
        };
        let waited = self.wait(Kind::Tunnel, judge).await;
        let Err(Failure::TimedOut(message)) = waited else {
            return waited;
        };
        let exit = self.existing(Kind::Exit).await.ok().flatten();
        let peer = peer::read(&self.far, &self.far.namespace, &self.peer).await;
        let lines = [
            message,
            format!(
                "exit {}",
                last(&self.far, &self.exit, exit.as_ref(), condition::READY)
            ),
            format!(
                "peer {}",
                last(
                    &self.far,
                    &self.peer,
                    peer.ok().flatten().as_ref(),
                    condition::READY
                )
            ),
            format!(
                "Nothing was deleted. `{program} check --only tunnels --context CONTEXT -n NAMESPACE` shows the causes. \
                 To wait longer, run the command again"
            ),
        ];
        Err(Failure::TimedOut(lines.join("\n")))
    }

    /// Reads the exit or the entry until `judge` accepts it.
    async fn wait<R>(
        &self,
        kind: Kind,
        judge: impl Fn(&Gateways) -> Result<R, String>,
    ) -> Result<R, Failure> {
        let (cluster, name) = self.place(kind);
        let namespace = cluster.namespace.as_str();
        let api = object::api(&cluster.client, kind, Some(namespace));
        let what = match kind {
            Kind::Exit => "exit",
            Kind::Tunnel | Kind::Rendezvous => "entry",
        };
        let subject = format!("the {what} {}", place(cluster, name));
        let read = async || api.get(name).await;
        let waited = poll::until(&subject, self.deadline, read, |one| judge(&one)).await;
        match waited.map_err(|error| object::not_read(kind, namespace, name, error))? {
            Waited::Done(done) => Ok(done),
            Waited::TimedOut(state) => Err(Failure::TimedOut(format!(
                "{subject} is not ready after {}: {state}",
                self.args.timeout
            ))),
        }
    }
}

/// `NAMESPACE/NAME (context CONTEXT)`.
fn place(cluster: &Cluster, name: &str) -> String {
    let context = cluster.context.as_deref().unwrap_or_default();
    format!("{}/{name} (context {context})", cluster.namespace)
}

/// The condition of an object, for the message of a time-out.
fn last<S: Status>(
    cluster: &Cluster,
    name: &str,
    object: Option<&Known<S>>,
    type_: &str,
) -> String {
    let state = object.map_or_else(
        || "cannot be read".to_owned(),
        |object| object::state(object, type_),
    );
    format!("{}: {state}", place(cluster, name))
}

/// The name of a MuxPeer: the name of the entry, and the last part of its context.
fn peer_name(entry: &str, context: &str) -> String {
    let part = context.rsplit(['/', ':', '@']).next().unwrap_or_default();
    let letters = part
        .chars()
        .map(|letter| match letter.to_ascii_lowercase() {
            letter if letter.is_ascii_alphanumeric() => letter,
            _ => '-',
        });
    let part: String = letters.collect();
    let mut name = format!("{entry}-{}", part.trim_matches('-'));
    name.truncate(PEER_NAME_MAX);
    name.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests;
