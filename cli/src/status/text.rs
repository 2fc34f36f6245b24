//! The text output of `status`. Pure.

use k8s_openapi::jiff::Timestamp;
use muxtunnel_crds::{GatewayStatus, KeyStatus, NetworkStatus, condition};

use super::view::{ConditionView, StatusDocument, StatusList, View};
use crate::output::{COLUMNS, Document, Style};
use crate::peer::{self, PeerView};
use crate::table::{draw, wrapped};
use crate::target::authority;
use crate::time::ago;

/// Placeholder for values that are unknown or do not apply.
const NONE: &str = "-";
/// Width of the names of facts.
const FACT: usize = 13;

impl Document for StatusList {
    const KIND: &'static str = "StatusList";

    fn text(&self, style: Style) -> String {
        let mut head = vec![
            "NAME",
            "KIND",
            "READY",
            "AVAILABLE",
            "ENTRY",
            "EXIT",
            "CARRIERS",
            "CODE",
            "AGE",
        ];
        let mut rows: Vec<_> = self
            .items
            .iter()
            .map(|object| row(object, self.now))
            .collect();
        if style.wide {
            head.extend(["REASON", "BOTTLENECK", "ADDRESS"]);
            for (row, object) in rows.iter_mut().zip(&self.items) {
                row.extend(wide(object));
            }
        }
        if self.with_namespaces {
            head.insert(0, "NAMESPACE");
            for (row, object) in rows.iter_mut().zip(&self.items) {
                row.insert(0, object.namespace.clone());
            }
        }
        draw(&head, rows, style)
    }

    fn names(&self) -> Vec<String> {
        self.items.iter().map(name).collect()
    }
}

/// The name of an object, as kubectl takes it.
fn name(object: &View) -> String {
    let kind = object.kind.to_ascii_lowercase();
    format!("{kind}.muxtunnel.dev/{}", object.name)
}

fn row(object: &View, now: Timestamp) -> Vec<String> {
    let status = |type_| status(object, object.condition(type_));
    let ready = object.ready().filter(|ready| ready.status != "True");
    let [entry, exit] = gateways(object).map(|one| one.map_or(NONE.into(), |(_, ready)| ready));
    vec![
        object.name.clone(),
        object.kind.to_owned(),
        status(condition::READY),
        status(condition::AVAILABLE),
        entry,
        exit,
        carriers(object),
        ready
            .and_then(|ready| ready.code.clone())
            .unwrap_or(NONE.into()),
        object
            .created
            .map_or(NONE.into(), |created| ago(created, now)),
    ]
}

/// The further columns of an object: the reason of its condition Ready, its bottleneck, and the first
/// of its addresses.
fn wide(object: &View) -> [String; 3] {
    let reason = object.ready().map(|ready| ready.reason.clone());
    let bottleneck = object.status.bottleneck.as_ref();
    let bottleneck = bottleneck.map(|limit| format!("{} ({:?})", limit.reason, limit.direction));
    let address = addresses(object).into_iter().next();
    let address = address.and_then(|mut row| row.pop());
    [reason, bottleneck, address].map(|cell| cell.unwrap_or(NONE.into()))
}

/// The status of a condition, with `?` if not all conditions describe the current spec.
fn status(object: &View, condition: Option<&ConditionView>) -> String {
    match condition {
        Some(condition) if object.current => condition.status.clone(),
        Some(condition) => format!("{}?", condition.status),
        None => NONE.into(),
    }
}

/// The ready and the requested gateways of the entry and of the exit.
fn gateways(object: &View) -> [Option<(&'static str, String)>; 2] {
    let status = &object.status;
    let of = |end, ready: i32, requested: i32| (end, format!("{ready}/{requested}"));
    let pods = |end, one: &GatewayStatus| of(end, one.ready_replicas, one.replicas);
    let own = status
        .replicas
        .map(|requested| of("exit", status.ready_replicas.unwrap_or_default(), requested));
    [
        status.entry.as_ref().map(|one| pods("entry", one)),
        own.or(status.exit.as_ref().map(|one| pods("exit", one))),
    ]
}

fn carriers(object: &View) -> String {
    let carriers = object.status.carriers.as_ref();
    carriers.map_or(NONE.into(), |carriers| carriers.connected.to_string())
}

/// What has an address, with the address: carriers of entries, users of ssh, and clients.
fn addresses(object: &View) -> Vec<Vec<String>> {
    let status = &object.status;
    let row = |what: &str, address: String| vec![what.to_owned(), address];
    let carriers = status.endpoints.iter().map(|one| {
        row(
            &format!("carriers ({:?})", one.protocol),
            authority(&one.host, one.port),
        )
    });
    let ssh = status.ssh_endpoint.iter();
    let ssh = ssh.map(|one| row("ssh", authority(&one.host, one.port)));
    let services = status.services.iter();
    let clients = services.filter_map(|service| Some((service.host.as_ref()?, &service.ports)));
    let clients = clients.flat_map(|(host, ports)| {
        let ports = ports.iter();
        ports.map(|one| {
            row(
                &format!("clients of {}", one.name),
                authority(host, one.port),
            )
        })
    });
    carriers.chain(ssh).chain(clients).collect()
}

impl Document for StatusDocument {
    const KIND: &'static str = "Status";

    fn text(&self, style: Style) -> String {
        let near = one(&self.object, self.now, style);
        match &self.exit {
            Some(exit) => format!(
                "{near}\n\n{}\n\n{}",
                "-".repeat(style.columns.min(COLUMNS)),
                one(exit, self.now, style)
            ),
            None => near,
        }
    }

    fn names(&self) -> Vec<String> {
        [Some(&self.object), self.exit.as_ref()]
            .into_iter()
            .flatten()
            .map(name)
            .collect()
    }
}

/// One object: facts, then a table for each section that is not empty.
fn one(object: &View, now: Timestamp, style: Style) -> String {
    let mut parts = vec![facts(object, now, style)];
    let mut section = |head: &[&str], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            parts.push(draw(head, rows, style));
        }
    };
    section(
        &["CONDITION", "STATUS", "CODE", "REASON", "MESSAGE"],
        conditions(object),
    );
    let gateways = gateways(object).into_iter().flatten();
    let gateways = gateways.map(|(end, ready)| vec![end.to_owned(), ready]);
    section(&["GATEWAYS", "READY"], gateways.collect());
    section(&["ADDRESS OF", "ADDRESS"], addresses(object));
    section(&["SYSCTL IN FORCE", "VALUE"], sysctls(object));
    section(
        &["PUBLIC KEY", "GENERATION", "ORIGIN", "SECRET"],
        keys(object),
    );
    let head = [
        "PEER",
        "READY",
        "REASON",
        "CONNECTED",
        "EXPIRES",
        "KEY",
        "EXIT-KEY",
    ];
    section(&head, peers(object, now, style));
    section(
        &["LAST EVENTS", "TYPE", "REASON", "COUNT", "MESSAGE"],
        events(object, now),
    );
    parts.join("\n\n")
}

fn facts(object: &View, now: Timestamp, style: Style) -> String {
    let mut lines = Vec::new();
    let mut fact = |name: &str, value: String| {
        let name = format!("{name}:");
        lines.push(format!(
            "{name:FACT$}{}",
            wrapped(&value, FACT, style.columns)
        ));
    };
    fact("Name", object.name.clone());
    fact("Namespace", object.namespace.clone());
    if let Some(context) = &object.context {
        fact("Context", context.clone());
    }
    fact("Kind", object.kind.to_owned());
    if let Some(class) = &object.status.class_name {
        fact("Class", class.clone());
    }
    if let Some(created) = object.created {
        fact("Age", ago(created, now));
    }
    fact("Ready", ready(object, style));
    if object.status.carriers.is_some() {
        fact("Carriers", format!("{} connected", carriers(object)));
    }
    let active = object
        .status
        .connect
        .as_ref()
        .map(|connect| &connect.active);
    if let Some(active) = active.filter(|active| !active.is_empty()) {
        fact("Exits", active.join(", "));
    }
    if let Some(network) = &object.status.network {
        network_facts(network, &mut fact);
    }
    if let Some(limit) = &object.status.bottleneck {
        let what = format!("{} ({:?}) {}", limit.reason, limit.direction, limit.message);
        fact("Limited by", what.trim_end().to_owned());
    }
    lines.join("\n")
}

fn network_facts(network: &NetworkStatus, fact: &mut dyn FnMut(&str, String)) {
    let sessions = match network.sessions {
        1 => "1 session".to_owned(),
        sessions => format!("{sessions} sessions"),
    };
    fact("Network", sessions);
    for (name, addresses) in [
        ("Addresses", &network.addresses),
        ("DNS servers", &network.dns_servers),
    ] {
        if !addresses.is_empty() {
            fact(name, addresses.join(", "));
        }
    }
}

/// The condition Ready of an object, in colour.
fn ready(object: &View, style: Style) -> String {
    let Some(ready) = object.ready() else {
        return format!(
            "{} (the operator has not reported a status)",
            style.warning("Unknown")
        );
    };
    if !object.current {
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

fn conditions(object: &View) -> Vec<Vec<String>> {
    let row = |condition: &ConditionView| {
        vec![
            condition.type_.clone(),
            condition.status.clone(),
            condition.code.clone().unwrap_or(NONE.into()),
            condition.reason.clone(),
            condition.message.clone(),
        ]
    };
    object.conditions.iter().map(row).collect()
}

fn sysctls(object: &View) -> Vec<Vec<String>> {
    let sysctls = object.status.sysctls.iter();
    sysctls
        .map(|one| vec![one.name.clone(), one.value.clone()])
        .collect()
}

fn keys(object: &View) -> Vec<Vec<String>> {
    let row = |key: &KeyStatus| {
        vec![
            key.public_key.clone().unwrap_or(NONE.into()),
            key.generation
                .map_or(NONE.into(), |generation| generation.to_string()),
            format!("{:?}", key.origin),
            key.secret_name.clone(),
        ]
    };
    object.status.keys.iter().map(row).collect()
}

/// The peers of an exit, without the column of the exit.
fn peers(object: &View, now: Timestamp, style: Style) -> Vec<Vec<String>> {
    let exit = peer::HEAD.iter().position(|column| *column == "EXIT");
    let row = |peer: &PeerView| {
        let mut row = peer.row(now, style.wide);
        if let Some(exit) = exit {
            row.remove(exit);
        }
        row
    };
    object.peers.iter().map(row).collect()
}

fn events(object: &View, now: Timestamp) -> Vec<Vec<String>> {
    let row = |event: &super::view::EventView| {
        vec![
            event.last_seen.map_or(NONE.into(), |time| ago(time, now)),
            event.type_.clone(),
            event.reason.clone(),
            event.count.to_string(),
            event.message.clone(),
        ]
    };
    object.events.iter().map(row).collect()
}
