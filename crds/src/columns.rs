//! The columns of `kubectl get`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceColumnDefinition as Column;

/// The columns of all kinds, one a line: the kind, the name, the type, the path and the description.
/// `wide`: a column of `kubectl get -o wide`.
const COLUMNS: &str = r#"
MuxTunnel | Ready | string | .status.conditions[?(@.type=="Ready")].status | All other conditions are true
MuxTunnel | Available | string | .status.conditions[?(@.type=="Available")].status | A ready gateway passes connections to at least one target
MuxTunnel | Reason | string | .status.conditions[?(@.type=="Ready")].reason | Reason of the condition Ready
MuxTunnel | Carriers | integer | .status.carriers.connected | Carriers that are connected
MuxTunnel | Limit | string | .status.bottleneck.reason | Bottleneck of the direction with more traffic
MuxTunnel | Age | date | .metadata.creationTimestamp |
MuxTunnel | Entry | wide integer | .status.entry.readyReplicas | Ready entry gateways
MuxTunnel | Exit | wide integer | .status.exit.readyReplicas | Ready exit gateways of this object
MuxTunnel | Class | wide string | .status.className | The MuxClass that applies
MuxTunnel | Key | wide string | .status.publicKeys[0] | Public key that a MuxPeer enters
MuxExit | Ready | string | .status.conditions[?(@.type=="Ready")].status | All other conditions are true
MuxExit | Reason | string | .status.conditions[?(@.type=="Ready")].reason | Reason of the condition Ready
MuxExit | Host | string | .status.endpoints[0].host | Host that entries dial
MuxExit | Port | integer | .status.endpoints[0].port | Port that entries dial
MuxExit | Peers | integer | .status.peers.connected | Peers that have a carrier
MuxExit | Age | date | .metadata.creationTimestamp |
MuxExit | Class | wide string | .status.className | The MuxClass that applies
MuxExit | Key | wide string | .status.publicKeys[0] | Public key that entries pin
MuxRendezvous | Ready | string | .status.conditions[?(@.type=="Ready")].status | All other conditions are true
MuxRendezvous | Reason | string | .status.conditions[?(@.type=="Ready")].reason | Reason of the condition Ready
MuxRendezvous | Host | string | .status.endpoints[0].host | Host that entries and exits dial
MuxRendezvous | Port | integer | .status.endpoints[0].port | Port that entries and exits dial
MuxRendezvous | Carriers | integer | .status.carriers.connected | Carriers that the rendezvous joins
MuxRendezvous | Age | date | .metadata.creationTimestamp |
MuxRendezvous | Class | wide string | .status.className | The MuxClass that applies
MuxRendezvous | Key | wide string | .status.publicKeys[0] | Public key that entries and exits pin
MuxPeer | Exit | string | .spec.exitRef.name | The MuxExit
MuxPeer | Ready | string | .status.conditions[?(@.type=="Ready")].status | The exit's gateways accept the peer, or refuse it as the spec says
MuxPeer | Reason | string | .status.conditions[?(@.type=="Ready")].reason | Reason of the condition Ready
MuxPeer | Connected | string | .status.conditions[?(@.type=="Connected")].status | The peer has a carrier
MuxPeer | Expires | string | .spec.expirationTime | The time from which the peer is refused
MuxPeer | Age | date | .metadata.creationTimestamp |
MuxPeer | Key | wide string | .spec.publicKeys[0] | Public key of the peer
MuxPeer | Exit key | wide integer | .status.exitKeyGeneration | Generation of the exit's key on the peer's last carrier
MuxPeer | Last seen | wide date | .status.lastSeenTime | When the peer last had a carrier
MuxGrant | From | string | .spec.from[0].namespace | The first namespace whose objects may refer to objects of this namespace
MuxGrant | Age | date | .metadata.creationTimestamp |
MuxClass | Default | boolean | .spec.default | Whether objects without className have this class
MuxClass | Objects | integer | .status.objects.total | Objects of the class
MuxClass | Current | integer | .status.objects.current | Objects that run the images and the template of the class
MuxClass | Rolled out | string | .status.conditions[?(@.type=="RolledOut")].status | All objects of the class run its images and its template
MuxClass | Age | date | .metadata.creationTimestamp |
MuxClass | Controller | wide string | .spec.controllerName | The operator that serves the class
MuxBenchmark | Complete | string | .status.conditions[?(@.type=="Complete")].status | All cells were measured
MuxBenchmark | Failed | string | .status.conditions[?(@.type=="Failed")].status | Some cells were not measured
MuxBenchmark | Measured | integer | .status.cells.ok | Cells that were measured
MuxBenchmark | Cells | integer | .status.cells.total | All cells
MuxBenchmark | Delay ms | integer | .status.environment.delayMilliseconds | The one-way delay of the environment that is measured now
MuxBenchmark | Profile | string | .status.environment.profile | The sysctl profile of the environment that is measured now
MuxBenchmark | Best % | wide integer | .status.bestRatioPercent | Highest throughput of the tunnel in percent of the throughput of the direct path
MuxBenchmark | Worst % | wide integer | .status.worstRatioPercent | Lowest throughput of the tunnel in percent of the throughput of the direct path
MuxBenchmark | Age | date | .metadata.creationTimestamp |
"#;

/// The columns of the kind `kind`.
pub(crate) fn columns(kind: &str) -> Option<Vec<Column>> {
    let columns = COLUMNS.lines().filter_map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [of, name, type_, json_path, description] = cells[..] else {
            return None;
        };
        let wide = type_.strip_prefix("wide ");
        (of == kind).then(|| Column {
            name: name.to_owned(),
            type_: wide.unwrap_or(type_).to_owned(),
            json_path: json_path.to_owned(),
            description: (!description.is_empty()).then(|| description.to_owned()),
            priority: wide.map(|_| 1),
            ..Column::default()
        })
    });
    let columns: Vec<_> = columns.collect();
    (!columns.is_empty()).then_some(columns)
}
