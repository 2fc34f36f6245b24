//! `peer add`.

use anyhow::anyhow;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use muxtunnel_crds::Endpoint;
use muxtunnel_gateway_config::{GatewayKey, Peer as GatewayPeer, PeerList, Role, check_peers};
use serde::Serialize;

use super::{PeerView, Wanted, exit, in_seconds, reverse_ports, reverse_ports_text};
use crate::args::{ClusterArgs, Expiry, PeerAddArgs};
use crate::cluster;
use crate::end::{Ended, Failure};
use crate::link::PORT;
use crate::object::{self, Change};
use crate::output::{Document, Style, Terminal};
use crate::time::distance;

/// Width of the names of facts.
const FACT: usize = 11;

pub(super) async fn run(
    args: &PeerAddArgs,
    to: &ClusterArgs,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    let now = Timestamp::now();
    let keys = keys(&args.keys).map_err(Failure::Usage)?;
    let expires = args.expires.map(|expiry| expiration(expiry, now));
    let expires = expires.transpose().map_err(Failure::Usage)?;
    let cluster = cluster::connect(to).await?;
    let exit = exit(&cluster, &args.exit).await?;
    let ports = reverse_ports(&exit);
    for name in &args.reverse_ports {
        if !ports.iter().any(|(port, _)| port == name) {
            return Err(Failure::Failed(anyhow!(
                "the MuxExit {}/{} has no reverse port {name:?}: {}",
                cluster.namespace,
                args.exit,
                reverse_ports_text(&exit)
            )));
        }
    }
    let wanted = Wanted {
        namespace: cluster.namespace.clone(),
        name: args.name.clone(),
        exit: args.exit.clone(),
        keys,
        expires,
        ttl_seconds: args.ttl.map(|ttl| ttl.as_std().as_secs()),
        allow: args.allow.clone(),
        reverse_ports: args.reverse_ports.clone(),
    };
    let (peer, change) = wanted.apply(&cluster).await?;
    let added = PeerAdded {
        change,
        peer: PeerView::new(&peer),
        exit_endpoints: object::endpoints(&exit).to_vec(),
        exit_public_keys: object::public_keys(&exit).to_vec(),
        now,
    };
    terminal.print(&added, args.output)?;
    Ok(Ended::Good)
}

/// Checks the keys as the exit's gateways do.
fn keys(texts: &[String]) -> Result<Vec<GatewayKey>, String> {
    let key = |text: &String| {
        let key = GatewayKey::of_role(text.trim(), Role::Entry);
        key.map_err(|error| format!("--key: {error}"))
    };
    let keys = texts.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    let peer = GatewayPeer {
        name: Some("peer".to_owned()),
        public_keys: keys.clone(),
        ..GatewayPeer::default()
    };
    let checked = check_peers(&[peer], PeerList::Entries, &[]);
    checked.map_err(|found| format!("--key: {} {}", found.field, found.problem))?;
    Ok(keys)
}

/// The time at which the peer expires.
fn expiration(expiry: Expiry, now: Timestamp) -> Result<Timestamp, String> {
    let time = match expiry {
        Expiry::At(time) => time,
        Expiry::After(duration) => {
            let span = SignedDuration::try_from(duration.as_std());
            let time = span.ok().and_then(|span| now.checked_add(span).ok());
            time.ok_or_else(|| format!("--expires {duration} is too long"))?
        }
    };
    match time > now {
        true => Ok(in_seconds(time)),
        false => Err(format!("--expires {time} is in the past")),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerAdded {
    change: Change,
    #[serde(flatten)]
    peer: PeerView,
    exit_endpoints: Vec<Endpoint>,
    exit_public_keys: Vec<String>,
    #[serde(skip)]
    now: Timestamp,
}

impl Document for PeerAdded {
    const KIND: &'static str = "PeerAdded";

    fn text(&self, _: Style) -> String {
        let peer = &self.peer;
        let mut lines = Vec::new();
        let mut fact = |name: &str, value: &str| {
            let name = format!("{name}:");
            lines.push(format!("{name:FACT$}{value}"));
        };
        fact(
            "Peer",
            &format!(
                "{} in namespace {}, {}",
                peer.name,
                peer.namespace,
                self.change.word()
            ),
        );
        fact("Exit", &peer.exit);
        for key in &peer.public_keys {
            fact("Key", key);
        }
        let expires = peer.expiration_time.as_ref().map(|text| {
            let time = text.parse::<Timestamp>();
            let distance = time.map_or_else(|_| String::new(), |time| distance(time, self.now));
            format!("{text} ({distance})")
        });
        fact("Expires", expires.as_deref().unwrap_or("never"));
        let (host, port) = match self.exit_endpoints.first() {
            Some(one) => (one.host.as_str(), one.port),
            None => ("# the exit has no address yet", PORT),
        };
        lines.push(format!(
            "\nThe entry needs, in spec.connect of its MuxTunnel:\n\n    \
             - name: {}\n      host: {host}\n      port: {port}\n      publicKeys: [{}]",
            peer.exit,
            self.exit_public_keys.join(", ")
        ));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::{KEY_BYTES, key_text};

    use super::*;

    fn text(role: Role, byte: u8) -> String {
        key_text(role, &[byte; KEY_BYTES])
    }

    #[test]
    fn only_keys_of_entries_are_accepted() {
        let one = text(Role::Entry, 7);
        assert_eq!(keys(std::slice::from_ref(&one)).unwrap().len(), 1);
        let wrong = one.replacen("mte1q", "mte1p", 1);
        for (given, said) in [
            (
                vec![text(Role::Exit, 7)],
                "the key of an exit (mtx1...), but an entry (mte1...)",
            ),
            (vec![wrong], "the checksum is wrong"),
            (vec!["mte1".to_owned()], "not the public key of a gateway"),
            (vec![one.clone(), one], "is listed twice"),
        ] {
            let error = keys(&given).unwrap_err();
            assert!(error.contains(said), "{given:?}: {error}");
        }
    }

    #[test]
    fn an_expiry_is_a_duration_or_a_time_in_the_future() {
        let now: Timestamp = "2030-01-01T00:00:00.5Z".parse().unwrap();
        let time = |text: &str| expiration(text.parse().unwrap(), now);
        assert_eq!(time("8h").unwrap().to_string(), "2030-01-01T08:00:00Z");
        assert_eq!(
            time("2030-01-02T01:00:00+01:00").unwrap().to_string(),
            "2030-01-02T00:00:00Z"
        );
        assert!(time("0s").unwrap_err().contains("in the past"));
        assert!(
            time("2029-01-01T00:00:00Z")
                .unwrap_err()
                .contains("in the past")
        );
        assert!(
            "tomorrow"
                .parse::<Expiry>()
                .unwrap_err()
                .contains("neither")
        );
    }
}
