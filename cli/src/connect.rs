//! `connect`: connects this host to an exit, for a limited time.
//!
//! The command creates a MuxPeer with the key of this host ([`mod@key`]), runs `muxgate`
//! ([`mod@gate`]), and deletes its MuxPeer at the end. If the command cannot delete the MuxPeer, the
//! operator deletes it after its expiration time.

mod gate;
mod key;
mod way;

use std::time::Duration;

use anyhow::anyhow;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::DeleteParams;
use muxtunnel_crds::condition;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::args::{ClusterArgs, ConnectArgs};
use crate::cluster::{self, Cluster, in_words, refusal};
use crate::end::{Ended, Failure};
use crate::object::{self, Peer};
use crate::output;
use crate::peer::{self, Wanted, in_seconds};
use crate::poll::{self, Waited};
use gate::Gate;
pub(crate) use gate::become_gate;
use way::Way;

/// Interval in which the command compares the clock with the expiration time. The clock of a host
/// that was asleep jumps.
const CLOCK: Duration = Duration::from_secs(10);

pub(crate) async fn run(args: &ConnectArgs, to: &ClusterArgs) -> Result<Ended, Failure> {
    let mut stop = Stop::new().map_err(anyhow::Error::from)?;
    let now = Timestamp::now();
    let expires = SignedDuration::try_from(args.duration.as_std());
    let expires = expires.ok().and_then(|span| now.checked_add(span).ok());
    let expires = expires
        .filter(|time| in_seconds(*time) > now)
        .map(in_seconds);
    let expires = expires.ok_or_else(|| {
        Failure::Usage(format!("--for {} is too short or too long", args.duration))
    })?;
    let cluster = cluster::connect(to).await?;
    let exit = peer::exit(&cluster, &args.exit).await?;
    let way = Way::new(&exit, args).map_err(|problem| {
        Failure::Failed(anyhow!(
            "the MuxExit {}/{} {problem}",
            cluster.namespace,
            args.exit
        ))
    })?;
    let gate = Gate::new(&args.muxgate);
    let name = args.name.clone().unwrap_or_else(key::peer_name);
    let key = key::of(&gate, &cluster, &name).await?;
    let wanted = Wanted {
        namespace: cluster.namespace.clone(),
        name,
        exit: args.exit.clone(),
        keys: vec![key.public],
        expires: Some(expires),
        ttl_seconds: Some(0),
        // A proxy's clients name any target.
        allow: match args.dynamic.as_slice() {
            [] => args.forward.iter().map(|one| one.rule.clone()).collect(),
            _ => Vec::new(),
        },
        reverse_ports: way.reverse_ports.clone(),
    };
    let session = Session {
        args,
        cluster: &cluster,
        wanted: &wanted,
    };
    let (expires, is_own) = match session.claim(&mut stop).await? {
        Claim::Own => (expires, true),
        Claim::Granted(granted) => (granted, false),
    };
    let ended = match session.ready(&mut stop).await {
        Ok(()) => {
            let arguments = way.arguments(&key.file);
            session
                .connected(&gate, &arguments, expires, &mut stop)
                .await
        }
        Err(failure) => Err(failure),
    };
    // A MuxPeer of an administrator serves the next run, too, until it expires.
    if is_own {
        session.release().await;
    }
    ended
}

/// SIGINT and SIGTERM.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Runs a future, or fails after a signal.
    async fn or<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Failure> {
        tokio::select! {
            done = future => Ok(done),
            () = self.wait() => Err(Failure::Failed(anyhow!("interrupted"))),
        }
    }
}

/// Who created the MuxPeer.
enum Claim {
    /// This command.
    Own,
    /// An administrator, until this time.
    Granted(Timestamp),
}

struct Session<'a> {
    args: &'a ConnectArgs,
    cluster: &'a Cluster,
    wanted: &'a Wanted,
}

impl Session<'_> {
    /// Creates the MuxPeer. Without this right, waits until an administrator has created it.
    async fn claim(&self, stop: &mut Stop) -> Result<Claim, Failure> {
        let Wanted {
            namespace, name, ..
        } = self.wanted;
        let api = object::peers_api(&self.cluster.client, Some(namespace));
        let existing = match stop.or(api.get_opt(name)).await? {
            Ok(existing) => existing,
            Err(error) if refusal(&error) == Some(403) => None,
            Err(error) => return Err(Failure::Failed(self.wanted.not_applied(error))),
        };
        if let Some(problem) = existing
            .as_ref()
            .and_then(|one| self.wanted.problem_of(one))
        {
            return Err(Failure::Failed(anyhow!("{problem} with --name")));
        }
        let manifest = self.wanted.manifest();
        let applied = stop.or(object::apply(&api, &manifest)).await;
        match applied {
            Ok(Ok(_)) => Ok(Claim::Own),
            Ok(Err(error)) if refusal(&error) == Some(403) => {
                self.granted(&manifest, &in_words(&error), stop).await
            }
            // An administrator has created the MuxPeer, with another expiration time.
            Ok(Err(error)) if refusal(&error) == Some(409) => {
                let granted = granted(self.wanted, existing.as_ref(), Timestamp::now());
                let refused = |_| Failure::Failed(self.wanted.not_applied(error));
                granted.map(Claim::Granted).map_err(refused)
            }
            Ok(Err(error)) => Err(Failure::Failed(self.wanted.not_applied(error))),
            Err(interrupted) => {
                // The API server may have executed the request.
                self.release().await;
                Err(interrupted)
            }
        }
    }

    /// Prints the manifest, and waits until the MuxPeer exists with the key of this host.
    async fn granted(
        &self,
        manifest: &Value,
        why: &str,
        stop: &mut Stop,
    ) -> Result<Claim, Failure> {
        let Wanted {
            namespace, name, ..
        } = self.wanted;
        let api = object::peers_api(&self.cluster.client, Some(namespace));
        let read = async || api.get_opt(name).await;
        let judge = |peer: Option<Peer>| granted(self.wanted, peer.as_ref(), Timestamp::now());
        if let Ok(Ok(until)) = stop.or(read()).await?.map(judge) {
            return Ok(Claim::Granted(until));
        }
        eprintln!(
            "you may not create the MuxPeer {namespace}/{name}: {why}\n\
             Send the following manifest to an administrator, who applies it with: kubectl apply -f FILE"
        );
        let text = serde_yaml::to_string(manifest).map_err(anyhow::Error::from)?;
        output::write(&text)?;
        if self.args.no_wait {
            return Err(Failure::Failed(anyhow!(
                "not connected: when the MuxPeer exists, run the command again"
            )));
        }
        // The manifest is useless after its expiration time.
        let deadline = Instant::now() + self.args.duration.as_std();
        let subject = format!("the MuxPeer {namespace}/{name}");
        let waited = stop
            .or(poll::until(&subject, deadline, read, judge))
            .await?;
        match waited.map_err(|error| self.wanted.not_applied(error))? {
            Waited::Done(until) => Ok(Claim::Granted(until)),
            Waited::TimedOut(state) => Err(Failure::TimedOut(format!("{subject}: {state}"))),
        }
    }

    /// Waits until the exit's gateways accept the peer.
    async fn ready(&self, stop: &mut Stop) -> Result<(), Failure> {
        let Wanted {
            namespace, name, ..
        } = self.wanted;
        let api = object::peers_api(&self.cluster.client, Some(namespace));
        let subject = format!("the MuxPeer {namespace}/{name}");
        let deadline = Instant::now() + self.args.timeout.as_std();
        let read = async || api.get_opt(name).await;
        let waited = poll::until(&subject, deadline, read, |peer| accepted(peer.as_ref()));
        match stop.or(waited).await? {
            Ok(Waited::Done(Ok(()))) => Ok(()),
            Ok(Waited::Done(Err(problem))) => Err(Failure::Failed(anyhow!("{subject} {problem}"))),
            Ok(Waited::TimedOut(state)) => Err(Failure::TimedOut(format!(
                "the exit does not accept this host after {}: {state}",
                self.args.timeout
            ))),
            // `muxgate` dials until the exit accepts the key.
            Err(error) => {
                eprintln!("not waiting for {subject}: {}", in_words(&error));
                Ok(())
            }
        }
    }

    /// Runs `muxgate` until it ends, a signal arrives, or the peer expires.
    async fn connected(
        &self,
        gate: &Gate,
        arguments: &[std::ffi::OsString],
        expires: Timestamp,
        stop: &mut Stop,
    ) -> Result<Ended, Failure> {
        let mut running = gate.run(arguments)?;
        eprintln!("muxgate dials the exit {} until {expires}", self.args.exit);
        let is_over = tokio::select! {
            status = running.wait() => return ended(status.map_err(anyhow::Error::from)?),
            () = stop.wait() => false,
            () = passed(expires) => true,
        };
        if is_over {
            eprintln!(
                "the permission to use the exit {} expired at {expires}: run the command again to connect again",
                self.args.exit
            );
        }
        running.end(stop.wait()).await;
        Ok(Ended::Good)
    }

    /// Deletes the MuxPeer of this host.
    async fn release(&self) {
        let Wanted {
            namespace, name, ..
        } = self.wanted;
        let api = object::peers_api(&self.cluster.client, Some(namespace));
        let deleted = api.delete(name, &DeleteParams::default()).await;
        if let Err(error) = deleted
            && !matches!(refusal(&error), Some(403 | 404))
        {
            eprintln!(
                "cannot delete the MuxPeer {namespace}/{name}: {}. The operator deletes it after its expiration time",
                in_words(&error)
            );
        }
    }
}

/// Waits until the clock has reached a time.
async fn passed(time: Timestamp) {
    loop {
        let left = time.duration_since(Timestamp::now());
        match Duration::try_from(left) {
            Ok(left) if !left.is_zero() => sleep(left.min(CLOCK)).await,
            _ => return,
        }
    }
}

fn ended(status: std::process::ExitStatus) -> Result<Ended, Failure> {
    match status.success() {
        true => Ok(Ended::Good),
        false => Err(Failure::Failed(anyhow!(
            "muxgate ended with {status}; its output has the cause"
        ))),
    }
}

/// The expiration time of a MuxPeer that an administrator has created for the wanted key. Without
/// one: the wanted time.
///
/// # Errors
/// What is missing.
fn granted(wanted: &Wanted, peer: Option<&Peer>, now: Timestamp) -> Result<Timestamp, String> {
    let Some(peer) = peer else {
        return Err("it does not exist yet".to_owned());
    };
    let mut keys = peer.spec["publicKeys"].as_array().into_iter().flatten();
    let wants = |key: &Value| {
        wanted
            .keys
            .iter()
            .any(|wanted| key.as_str() == Some(&wanted.to_string()))
    };
    if !keys.any(wants) {
        return Err("it exists without the key of this host".to_owned());
    }
    let until = peer.spec["expirationTime"].as_str().map(str::parse);
    let until = until.and_then(Result::ok).or(wanted.expires);
    let until = until.filter(|until| *until > now);
    until.ok_or_else(|| "it has expired".to_owned())
}

/// Whether the exit accepts a peer: `Ok(Err)` if it never will.
///
/// # Errors
/// The state of the peer.
fn accepted(peer: Option<&Peer>) -> Result<Result<(), String>, String> {
    let Some(peer) = peer else {
        return Ok(Err("was deleted".to_owned()));
    };
    if peer.spec["suspend"].as_bool().unwrap_or_default() {
        return Ok(Err(
            "is suspended: `muxtunnel peer resume` ends the suspension".to_owned(),
        ));
    }
    let type_ = condition::ACCEPTED;
    let refused = object::condition(peer, type_)
        .is_some_and(|one| one.status == "False" && object::is_current(peer, one));
    match (refused, object::holds(peer, condition::READY)) {
        (true, _) => Ok(Err(format!("is refused: {}", object::state(peer, type_)))),
        (false, true) => Ok(Ok(())),
        (false, false) => Err(object::state(peer, condition::READY)),
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::{GatewayKey, KEY_BYTES, Role};
    use serde_json::json;

    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            namespace: "backend".into(),
            name: "laptop".into(),
            exit: "web".into(),
            keys: vec![GatewayKey::new(Role::Entry, [7; KEY_BYTES]).unwrap()],
            expires: Some("2030-01-01T08:00:00Z".parse().unwrap()),
            ttl_seconds: Some(0),
            allow: Vec::new(),
            reverse_ports: Vec::new(),
        }
    }

    fn peer(change: impl FnOnce(&mut Value)) -> Peer {
        let mut object = wanted().manifest();
        object["metadata"]["generation"] = json!(1);
        object["status"] = json!({"conditions": []});
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    fn condition(type_: &str, status: &str, reason: &str) -> Value {
        json!({
            "type": type_, "status": status, "reason": reason, "message": "m",
            "observedGeneration": 1, "lastTransitionTime": "2030-01-01T00:00:00Z",
        })
    }

    #[test]
    fn a_peer_of_an_administrator_needs_the_key_of_this_host() {
        let now = "2030-01-01T00:00:00Z".parse().unwrap();
        let until = |peer: Option<Peer>| granted(&wanted(), peer.as_ref(), now);
        assert!(until(None).unwrap_err().contains("does not exist"));
        let own = until(Some(peer(|_| {})));
        assert_eq!(own.unwrap().to_string(), "2030-01-01T08:00:00Z");
        let other = peer(|object| object["spec"]["publicKeys"] = json!(["mte1other"]));
        assert!(until(Some(other)).unwrap_err().contains("without the key"));
        let over = peer(|object| object["spec"]["expirationTime"] = json!("2029-01-01T00:00:00Z"));
        assert!(until(Some(over)).unwrap_err().contains("expired"));
    }

    #[test]
    fn a_peer_that_the_exit_never_accepts_ends_the_wait() {
        let of = |conditions: Vec<Value>| {
            let peer = peer(|object| object["status"]["conditions"] = json!(conditions));
            accepted(Some(&peer))
        };
        assert_eq!(of(vec![condition("Ready", "True", "Idle")]), Ok(Ok(())));
        let waits = of(vec![condition("Ready", "False", "ConfigPending")]).unwrap_err();
        assert!(waits.contains("ConfigPending"), "{waits}");
        let refused = of(vec![condition("Accepted", "False", "KeyConflict")]);
        assert!(refused.unwrap().unwrap_err().contains("KeyConflict"));
        let suspended = peer(|object| object["spec"]["suspend"] = json!(true));
        assert!(accepted(Some(&suspended)).unwrap().is_err());
        assert!(accepted(None).unwrap().is_err());
    }
}
