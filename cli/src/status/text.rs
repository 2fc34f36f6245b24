//! The text output of `status`. Pure.

use k8s_openapi::jiff::Timestamp;
use muxtunnel_crds::{GatewayStatus, KeyStatus, PacketStatus, tunnel_condition};

use super::view::{ConditionView, TunnelList, TunnelStatus, TunnelView};
use crate::output::{COLUMNS, Document, Style};
use crate::peer::{self, PeerView};
use crate::table::{draw, wrapped};
use crate::time::ago;

/// Placeholder for values that are unknown or do not apply.
const NONE: &str = "-";
/// Width of the names of facts.
const FACT: usize = 13;

impl Document for TunnelList {
    fn text(&self, style: Style) -> String {
        let mut head = vec![
            "NAME",
            "SIDE",
            "READY",
            "AVAILABLE",
            "ENTRY",
            "EXIT",
            "CARRIERS",
            "RTT",
            "CODE",
            "AGE",
        ];
        let mut rows: Vec<_> = self
            .items
            .iter()
            .map(|tunnel| row(tunnel, self.now))
            .collect();
        if style.wide {
            head.extend(["REASON", "BOTTLENECK", "ADDRESS"]);
            for (row, tunnel) in rows.iter_mut().zip(&self.items) {
                row.extend(wide(tunnel));
            }
        }
        if self.with_namespaces {
            head.insert(0, "NAMESPACE");
            for (row, tunnel) in rows.iter_mut().zip(&self.items) {
                row.insert(0, tunnel.namespace.clone());
            }
        }
        draw(&head, rows, style)
    }

    fn names(&self) -> Vec<String> {
        self.items.iter().map(name).collect()
    }
}

/// The name of an object, as kubectl takes it.
fn name(tunnel: &TunnelView) -> String {
    format!("muxtunnel.muxtunnel.dev/{}", tunnel.name)
}

fn row(tunnel: &TunnelView, now: Timestamp) -> Vec<String> {
    let status = |type_| status(tunnel, tunnel.condition(type_));
    let ready = tunnel.ready().filter(|ready| ready.status != "True");
    vec![
        tunnel.name.clone(),
        tunnel.side.clone(),
        status(tunnel_condition::READY),
        status(tunnel_condition::AVAILABLE),
        replicas(tunnel.gateways.get("entry")),
        replicas(tunnel.gateways.get("exit")),
        carriers(tunnel),
        rtt(tunnel),
        ready
            .and_then(|ready| ready.code.clone())
            .unwrap_or(NONE.into()),
        tunnel
            .created
            .map_or(NONE.into(), |created| ago(created, now)),
    ]
}

/// The further columns of a tunnel: the reason of its condition Ready, its bottleneck, and the
/// address of its carriers, or of its entry if it accepts no carriers.
fn wide(tunnel: &TunnelView) -> [String; 3] {
    let gateways = ["exit", "rendezvous", "entry"];
    let mut gateways = gateways
        .iter()
        .filter_map(|side| tunnel.gateways.get(side)?.address.clone());
    let reason = tunnel.ready().map(|ready| ready.reason.clone());
    let bottleneck = tunnel.bottleneck.as_ref();
    let bottleneck = bottleneck.map(|limit| format!("{} ({:?})", limit.reason, limit.direction));
    [reason, bottleneck, gateways.next()].map(|cell| cell.unwrap_or(NONE.into()))
}

/// The status of a condition, with `?` if not all conditions describe the current spec.
fn status(tunnel: &TunnelView, condition: Option<&ConditionView>) -> String {
    match condition {
        Some(condition) if tunnel.current => condition.status.clone(),
        Some(condition) => format!("{}?", condition.status),
        None => NONE.into(),
    }
}

fn replicas(gateways: Option<&GatewayStatus>) -> String {
    gateways.map_or(NONE.into(), |status| {
        format!("{}/{}", status.ready_replicas, status.replicas)
    })
}

fn carriers(tunnel: &TunnelView) -> String {
    tunnel
        .carriers
        .as_ref()
        .map_or(NONE.into(), |carriers| carriers.up.to_string())
}

fn rtt(tunnel: &TunnelView) -> String {
    let rtt = tunnel
        .carriers
        .as_ref()
        .and_then(|carriers| carriers.rtt_milliseconds);
    rtt.map_or(NONE.into(), |rtt| format!("{rtt} ms"))
}

impl Document for TunnelStatus {
    fn text(&self, style: Style) -> String {
        let near = one(&self.tunnel, self.now, style);
        match &self.peer {
            Some(peer) => format!(
                "{near}\n\n{}\n\n{}",
                "-".repeat(style.columns.min(COLUMNS)),
                one(peer, self.now, style)
            ),
            None => near,
        }
    }

    fn names(&self) -> Vec<String> {
        [Some(&self.tunnel), self.peer.as_ref()]
            .into_iter()
            .flatten()
            .map(name)
            .collect()
    }
}

/// One object: facts, then a table for each section that is not empty.
fn one(tunnel: &TunnelView, now: Timestamp, style: Style) -> String {
    let mut parts = vec![facts(tunnel, now, style)];
    let mut section = |head: &[&str], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            parts.push(draw(head, rows, style));
        }
    };
    section(
        &["CONDITION", "STATUS", "CODE", "REASON", "MESSAGE"],
        conditions(tunnel),
    );
    section(&["GATEWAYS", "READY", "ADDRESS"], gateways(tunnel));
    section(&["SYSCTL IN FORCE", "VALUE"], sysctls(tunnel));
    section(
        &["PUBLIC KEY", "GENERATION", "ORIGIN", "SECRET"],
        keys(tunnel),
    );
    let head = ["PEER", "READY", "REASON", "CONNECTED", "EXPIRES", "KEY"];
    section(&head, peers(tunnel, now, style));
    section(
        &["LAST EVENTS", "TYPE", "REASON", "COUNT", "MESSAGE"],
        events(tunnel, now),
    );
    parts.join("\n\n")
}

fn facts(tunnel: &TunnelView, now: Timestamp, style: Style) -> String {
    let mut lines = Vec::new();
    let mut fact = |name: &str, value: String| {
        let name = format!("{name}:");
        lines.push(format!(
            "{name:FACT$}{}",
            wrapped(&value, FACT, style.columns)
        ));
    };
    fact("Name", tunnel.name.clone());
    fact("Namespace", tunnel.namespace.clone());
    if let Some(context) = &tunnel.context {
        fact("Context", context.clone());
    }
    fact("Side", tunnel.side.clone());
    if let Some(created) = tunnel.created {
        fact("Age", ago(created, now));
    }
    fact("Ready", ready(tunnel, style));
    if tunnel.carriers.is_some() {
        let rtt = rtt(tunnel);
        let rtt = if rtt == NONE {
            String::new()
        } else {
            format!(", round trip {rtt}")
        };
        fact("Carriers", format!("{} up{rtt}", carriers(tunnel)));
    }
    if let Some(packets) = &tunnel.packets {
        packet_facts(packets, &mut fact);
    }
    let exit = tunnel.gateways.get("exit");
    if let Some(address) = exit.and_then(|exit| exit.ssh_address.as_ref()) {
        fact("SSH login", address.clone());
    }
    if let Some(limit) = &tunnel.bottleneck {
        let what = format!("{} ({:?}) {}", limit.reason, limit.direction, limit.message);
        fact("Limited by", what.trim_end().to_owned());
    }
    lines.join("\n")
}

fn packet_facts(packets: &PacketStatus, fact: &mut dyn FnMut(&str, String)) {
    let sessions = match packets.sessions {
        1 => "1 session".to_owned(),
        sessions => format!("{sessions} sessions"),
    };
    fact("Packets", sessions);
    for (name, addresses) in [
        ("Addresses", &packets.addresses),
        ("DNS servers", &packets.dns_servers),
    ] {
        if !addresses.is_empty() {
            fact(name, addresses.join(", "));
        }
    }
    if !packets.drops.is_empty() {
        let drops = packets.drops.iter();
        let drops: Vec<_> = drops
            .map(|(reason, count)| format!("{count} packets ({reason})"))
            .collect();
        fact("Dropped", format!("about {}", drops.join(", ")));
    }
}

/// The condition Ready of a tunnel, in colour.
fn ready(tunnel: &TunnelView, style: Style) -> String {
    let Some(ready) = tunnel.ready() else {
        return format!(
            "{} (the operator has not reported a status)",
            style.warning("Unknown")
        );
    };
    if !tunnel.current {
        let word = style.warning(&ready.status);
        return format!(
            "{word} (of an older spec; the operator has not processed the current spec)"
        );
    }
    match ready.status.as_str() {
        "True" => style.good("True"),
        _ => format!("{} ({})", style.bad(&ready.status), ready.reason),
    }
}

fn conditions(tunnel: &TunnelView) -> Vec<Vec<String>> {
    let row = |condition: &ConditionView| {
        vec![
            condition.type_.clone(),
            condition.status.clone(),
            condition.code.clone().unwrap_or(NONE.into()),
            condition.reason.clone(),
            condition.message.clone(),
        ]
    };
    tunnel.conditions.iter().map(row).collect()
}

fn gateways(tunnel: &TunnelView) -> Vec<Vec<String>> {
    let row = |(side, status): (&&str, &GatewayStatus)| {
        let address = status.address.clone().unwrap_or(NONE.into());
        vec![(*side).to_owned(), replicas(Some(status)), address]
    };
    tunnel.gateways.iter().map(row).collect()
}

fn sysctls(tunnel: &TunnelView) -> Vec<Vec<String>> {
    tunnel
        .sysctls
        .iter()
        .map(|(name, value)| vec![name.clone(), value.clone()])
        .collect()
}

fn keys(tunnel: &TunnelView) -> Vec<Vec<String>> {
    let row = |key: &KeyStatus| {
        vec![
            key.public_key.clone().unwrap_or(NONE.into()),
            key.generation.to_string(),
            format!("{:?}", key.origin),
            key.secret_name.clone(),
        ]
    };
    tunnel.keys.iter().map(row).collect()
}

/// The peers of an exit, without the column of the exit.
fn peers(tunnel: &TunnelView, now: Timestamp, style: Style) -> Vec<Vec<String>> {
    let exit = peer::HEAD.iter().position(|column| *column == "EXIT");
    let row = |peer: &PeerView| {
        let mut row = peer.row(now, style.wide);
        if let Some(exit) = exit {
            row.remove(exit);
        }
        row
    };
    tunnel.peers.iter().map(row).collect()
}

fn events(tunnel: &TunnelView, now: Timestamp) -> Vec<Vec<String>> {
    let row = |event: &super::view::EventView| {
        vec![
            event.last_seen.map_or(NONE.into(), |time| ago(time, now)),
            event.type_.clone(),
            event.reason.clone(),
            event.count.to_string(),
            event.message.clone(),
        ]
    };
    tunnel.events.iter().map(row).collect()
}
