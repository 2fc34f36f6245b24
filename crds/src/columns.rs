//! The columns of `kubectl get`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceColumnDefinition as Column;

fn column(type_: &str, name: &str, json_path: &str, description: &str) -> Column {
    Column {
        name: name.to_owned(),
        type_: type_.to_owned(),
        json_path: json_path.to_owned(),
        description: (!description.is_empty()).then(|| description.to_owned()),
        ..Column::default()
    }
}

fn text(name: &str, json_path: &str, description: &str) -> Column {
    column("string", name, json_path, description)
}

fn number(name: &str, json_path: &str, description: &str) -> Column {
    column("integer", name, json_path, description)
}

/// The status of the condition `name`.
fn condition(name: &str, description: &str) -> Column {
    let path = format!(".status.conditions[?(@.type==\"{name}\")].status");
    text(name, &path, description)
}

fn ready(description: &str) -> [Column; 2] {
    let path = ".status.conditions[?(@.type==\"Ready\")].reason";
    let reason = text("Reason", path, "Reason of the condition Ready");
    [condition("Ready", description), reason]
}

fn age() -> Column {
    column("date", "Age", ".metadata.creationTimestamp", "")
}

/// A column of `kubectl get -o wide`.
fn wide(column: Column) -> Column {
    let priority = Some(1);
    Column { priority, ..column }
}

/// The columns of the kind `kind`.
pub(crate) fn columns(kind: &str) -> Option<Vec<Column>> {
    let columns = match kind {
        "MuxTunnel" => of_tunnel(),
        "MuxExit" => {
            let peers = number(
                "Peers",
                ".status.peers.connected",
                "Peers that have a carrier",
            );
            of_dialled("entries", peers)
        }
        "MuxRendezvous" => {
            let carriers = number("Carriers", CARRIERS, "Carriers that the rendezvous joins");
            of_dialled("entries and exits", carriers)
        }
        "MuxPeer" => of_peer(),
        "MuxClass" => of_class(),
        "MuxBenchmark" => of_benchmark(),
        "MuxGrant" => {
            let from = "The first namespace whose objects may refer to objects of this namespace";
            vec![text("From", ".spec.from[0].namespace", from), age()]
        }
        _ => return None,
    };
    Some(columns)
}

const ALL_TRUE: &str = "All other conditions are true";
const CARRIERS: &str = ".status.carriers.connected";
const KEY: &str = ".status.publicKeys[0]";

fn class() -> Column {
    wide(text(
        "Class",
        ".status.className",
        "The MuxClass that applies",
    ))
}

fn of_tunnel() -> Vec<Column> {
    let [ready, reason] = ready(ALL_TRUE);
    let available = "A ready gateway passes connections to at least one target";
    let limit = "Bottleneck of the direction with more traffic";
    let (entry, exit) = (".status.entry.readyReplicas", ".status.exit.readyReplicas");
    vec![
        ready,
        condition("Available", available),
        reason,
        number("Carriers", CARRIERS, "Carriers that are connected"),
        text("Limit", ".status.bottleneck.reason", limit),
        age(),
        wide(number("Entry", entry, "Ready entry gateways")),
        wide(number("Exit", exit, "Ready exit gateways of this object")),
        class(),
        wide(text("Key", KEY, "Public key that a MuxPeer enters")),
    ]
}

/// The columns of a kind whose port `who` dial. `connected`: the column that counts them.
fn of_dialled(who: &str, connected: Column) -> Vec<Column> {
    let [ready, reason] = ready(ALL_TRUE);
    let host = format!("Host that {who} dial");
    let port = format!("Port that {who} dial");
    vec![
        ready,
        reason,
        text("Host", ".status.endpoints[0].host", &host),
        number("Port", ".status.endpoints[0].port", &port),
        connected,
        age(),
        class(),
        wide(text("Key", KEY, &format!("Public key that {who} pin"))),
    ]
}

fn of_peer() -> Vec<Column> {
    let [ready, reason] =
        ready("The exit's gateways accept the peer, or refuse it as the spec says");
    let (expires, seen) = (".spec.expirationTime", ".status.lastSeenTime");
    let last = "When the peer last had a carrier";
    vec![
        text("Exit", ".spec.exitRef.name", "The MuxExit"),
        ready,
        reason,
        condition("Connected", "The peer has a carrier"),
        text(
            "Expires",
            expires,
            "The time from which the peer is refused",
        ),
        age(),
        wide(text("Key", ".spec.publicKeys[0]", "Public key of the peer")),
        wide(number(
            "Exit key",
            ".status.exitKeyGeneration",
            "Generation of the exit's key on the peer's last carrier",
        )),
        wide(column("date", "Last seen", seen, last)),
    ]
}

fn of_class() -> Vec<Column> {
    let objects = |count: &str| format!(".status.objects.{count}");
    let (default, controller) = (".spec.default", ".spec.controllerName");
    let has_no_name = "Whether objects without className have this class";
    let current = "Objects that run the images and the template of the class";
    let rolled_out = ".status.conditions[?(@.type==\"RolledOut\")].status";
    let all_current = "All objects of the class run its images and its template";
    vec![
        column("boolean", "Default", default, has_no_name),
        number("Objects", &objects("total"), "Objects of the class"),
        number("Current", &objects("current"), current),
        text("Rolled out", rolled_out, all_current),
        age(),
        wide(text(
            "Controller",
            controller,
            "The operator that serves the class",
        )),
    ]
}

fn of_benchmark() -> Vec<Column> {
    let environment = |name: &str| format!(".status.environment.{name}");
    let is_measured = |noun: &str| format!("The {noun} of the environment that is measured now");
    let (delay, profile) = (environment("delayMilliseconds"), environment("profile"));
    let ratio = |name: &str, field: &str, which: &str| {
        let percent = "throughput of the tunnel in percent of the throughput of the direct path";
        let path = format!(".status.{field}RatioPercent");
        wide(number(name, &path, &format!("{which} {percent}")))
    };
    vec![
        condition("Complete", "All cells were measured"),
        condition("Failed", "Some cells were not measured"),
        number("Measured", ".status.cells.ok", "Cells that were measured"),
        number("Cells", ".status.cells.total", "All cells"),
        number("Delay ms", &delay, &is_measured("one-way delay")),
        text("Profile", &profile, &is_measured("sysctl profile")),
        ratio("Best %", "best", "Highest"),
        ratio("Worst %", "worst", "Lowest"),
        age(),
    ]
}
