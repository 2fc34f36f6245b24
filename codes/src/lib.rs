//! The `MT####` codes: one name for each condition reason, refusal and error class.
//!
//! This crate owns the closed list of codes. A code is the same in a condition, an Event, a log
//! line, a metric label, an exit message and the page `docs/codes.md`. [`render_docs`] renders that
//! page, and a test compares the page with the file. The crate does not define which component
//! reports a code. Before a component reports a new refusal, add the refusal to [`Code`].

use std::fmt;

/// What a code means as the reason of a condition or of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nature {
    /// The code occurs without a fault.
    Normal,
    /// A fault that can end without a change of an object, such as a lost carrier.
    Passing,
    /// A fault whose cause only an administrator can remove.
    Lasting,
}

/// Declares the closed list. An entry has the form `Variant = number, Nature, "cause", "remedy";`.
macro_rules! codes {
    ($($variant:ident = $number:literal, $nature:ident, $cause:literal, $remedy:literal;)*) => {
        /// One class of refusal, error or condition reason. The variant's name is the `reason` that
        /// conditions and Events carry.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $cause] $variant,)*
        }

        impl Code {
            /// Every code, in ascending order of number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The four digits that follow `MT`, as a number.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self { $(Self::$variant => $number,)* }
            }

            /// The condition reason (CamelCase, as `metav1.Condition` requires).
            #[must_use]
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }

            /// Whether the code is a fault, and who can remove its cause.
            #[must_use]
            pub const fn nature(self) -> Nature {
                match self { $(Self::$variant => Nature::$nature,)* }
            }

            /// The cause, in whole sentences.
            #[must_use]
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$variant => $cause,)* }
            }

            /// The action to take, in whole sentences.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)* }
            }
        }
    };
}

codes! {
    // 01xx: configuration.
    ConfigInvalid = 101, Passing, "The configuration file or a flag is not valid.", "Correct the field or line that the message names. Until then, a running gateway keeps its last good configuration.";
    ConfigNeedsRestart = 102, Passing, "The configuration changed in a field that a running gateway cannot reload.", "Restart the gateway to apply the fields that the message names. A running gateway can reload only the fields that docs/gateway.md marks as reloadable. If the message ends with an error, the gateway has applied no part of the new configuration.";
    ListenFailed = 103, Passing, "The gateway cannot listen on a port.", "The message contains the address and the system's error. If the address is in use, free the port or choose another port. If the system does not have the address, choose another address. If the system does not permit the port, choose another port.";
    InvalidSpec = 104, Lasting, "The object's spec is not valid.", "Correct the field that the message names and apply the object again.";
    TargetServiceNotFound = 105, Lasting, "A forward's target Service does not exist, does not have the TCP port, or cannot be a target. For example, a Service of type ExternalName cannot be a target.", "Create the Service or its port, or correct `forwards[].targets`. The message names the fault.";

    // 02xx: the mux and its gateways.
    CarrierConnecting = 201, Normal, "No carrier to the other side is up yet.", "Check the exit pods and the network between both sides. The entry retries with back-off.";
    CarrierLost = 202, Passing, "A carrier ended unexpectedly.", "If carriers are lost rarely, no action is needed, because the entry reconnects. With protocol Native and `carrier.resume: true` (the default), the streams of a lost carrier continue on another carrier. With another protocol, or with `carrier.resume: false`, the gateways reset the streams. If carriers are lost often, check the network between the gateways, and check whether the exit restarts.";
    ProtocolViolation = 203, Passing, "The peer violated the mux protocol.", "Check that both ends use the same protocol. The message names the frame and the broken rule.";
    OpenRefused = 204, Passing, "The exit refused to dial a target that its rules do not allow.", "Add the target to the forwards or to `allow` (`--allow`), or find the rule that denies the target. Loopback, link-local and other protected addresses need a rule with the literal address.";
    OpenFailed = 205, Passing, "The gateway that dials the target could not reach it.", "Check that the target's name resolves, and that the target listens on the address in the message.";
    OpenTimedOut = 206, Passing, "The target or the other gateway did not answer in time, so the stream did not open.", "Check the network between the two gateways, and check whether the network behind the other gateway drops packets to the target's address.";
    TooManyStreams = 207, Passing, "A session has reached its limit of streams.", "Find clients that open connections and do not close them. If all clients close their connections, raise `limits.streams` in the gateway's configuration. For a MuxTunnel, raise `entry.replicas` instead, because each entry has its own sessions.";
    MemoryExhausted = 208, Passing, "A session's memory budget has no room for another stream.", "Find clients and targets that do not read the data of their connections. If all of them read their data, raise `memory.receive` in the gateway's configuration. For gateways with memory limits, raise the limits of the container `gateway` in the template of both ends. For gateways without memory limits, raise `entry.replicas`, because each entry has its own sessions.";
    TooManyCarriers = 209, Passing, "A gateway has reached its limit of carriers. The gateway refuses the new carrier, or closes a carrier of the peer that has the most carriers.", "Check which peers connect. If all peers are expected, raise `limits.carriers` of the gateway's configuration, of the MuxExit or of the MuxRendezvous. For the own exit of a MuxTunnel, the operator computes the limit from `entry.replicas` and `carrier.pool.max`.";
    Draining = 210, Passing, "A session takes no new streams, because its gateway is shutting down, or because the certificate of a JMUX session has expired.", "In a roll-out, no action is needed, because another gateway accepts new connections. If no other gateway runs, start a gateway or raise the number of replicas. If the certificate of a JMUX session has expired, the entry starts another session. In this case, check that the certificate is renewed.";
    ForwardStreamLimit = 211, Passing, "A forward has reached its limit of streams, so the gateway reset a new connection.", "Find clients that open connections and do not close them. If all clients close their connections, raise `limits.streams` of the forward, or add replicas.";
    ForwardOpenLimit = 212, Passing, "A forward received more new connections in a second than its limit allows, so the gateway reset the excess connections.", "Raise `limits.opensPerSecond` of the forward, or configure its clients to reuse their connections.";
    IdleTimedOut = 213, Passing, "The gateway reset a stream because the stream carried no byte within the idle time-out.", "Raise `timeouts.idleSeconds`, or enable keep-alive messages in the application.";
    HalfOpenTimedOut = 214, Passing, "The gateway reset a stream because one direction had ended and the other direction carried no byte within the half-open time-out.", "Check why the application does not close its connection, or raise `timeouts.halfOpenSeconds`.";
    LocalReset = 215, Passing, "A client or a target reset its connection, or the connection failed.", "Check the client or the target that the log line names. The field `error` contains the error of the application's connection.";
    PeerReset = 216, Passing, "The other gateway reset a stream.", "Find the stream's line in the other gateway's log. This line contains the reason.";
    DrainDeadline = 217, Passing, "The gateway reset a stream that was still open at the deadline of the gateway's shutdown.", "If streams may end with a roll-out, no action is needed. Otherwise raise `drainSeconds` of both ends (in the gateway's configuration: `drain.deadlineSeconds`).";
    OpenAbandoned = 218, Passing, "A client closed its connection before it completed its request, or before the other gateway reached the target.", "Compare the client's connect time-out with the time that the other gateway needs to reach the target. If the time-out is shorter, raise the time-out.";
    CongestionControlRefused = 219, Passing, "The system does not permit the requested congestion control, so carriers keep the system's default.", "If the algorithm's kernel module is missing on the node, load the module. Then add the algorithm to `net.ipv4.tcp_allowed_congestion_control` on the node. Alternatively, set `carrier.congestionControl` to `Auto`.";
    ListenRefused = 220, Passing, "An exit does not listen on an address that an entry requested.", "The message names the cause. Free the port at the exit, or permit the address in the exit's `allowListen`. A MuxExit permits the addresses in `reversePorts` to the MuxPeers that name them. The entry retries.";
    MeetingRefused = 221, Passing, "A rendezvous did not join two gateways.", "Check that `members` of the rendezvous has the keys of both gateways, and that the exit is registered at the rendezvous. The message names the cause.";
    StreamDenied = 222, Passing, "A new rule denies the target or the peer of an open stream, so the gateway reset the stream.", "If the rule is intended, no action is needed. Otherwise remove the rule from `deny`. If a namespace no longer permits a target Service, the operator adds a rule that denies the Service. In this case, create the ReferenceGrant or MuxGrant again.";
    PeerStreamLimit = 223, Passing, "A peer has reached its limit of streams, so the exit refused a new stream.", "Find clients of the peer that open connections and do not close them. If all clients close their connections, raise `limits.streams` of the MuxPeer, or of the peer in the gateway's file.";
    PeerOpenLimit = 224, Passing, "A peer opened more streams in a second than its limit allows, so the exit refused the excess streams.", "Raise `limits.opensPerSecond` of the MuxPeer or of the peer in the gateway's file, or configure the peer's clients to reuse their connections.";
    PeerCarrierLimit = 225, Passing, "A peer has reached its limit of carriers, so the exit refused a new carrier of the peer.", "If the peer has this many gateways, raise `limits.carriers` of the MuxPeer, or of the peer in the gateway's file. An entry needs one carrier for each worker of each pod. Otherwise lower the entry's `carrier.pool.max`, or check whether somebody else has the peer's key.";
    StreamStalled = 226, Passing, "The gateway reset a stream because its client or target took no data while other streams of the session waited for receive memory.", "Check why the application does not read. If such pauses are expected, raise `memory.receive` or `memory.stallSeconds` in the gateway's configuration. For gateways with memory limits, raise the limits of the container `gateway` in the template of both ends.";
    SessionPanicked = 229, Passing, "A fault of the gateway ended a session and reset its streams.", "The entry starts another session, and other sessions continue. Report this bug of the gateway with the log line and the panic above that line.";
    CarrierRefused = 230, Passing, "The peer of a carrier did not prove a permitted identity.", "Compare the names in the peer's certificate, or the peer's public key, with the peers that this gateway permits. The permitted peers of an exit are its `peers` (MuxPeers), and an entry permits the keys and names in `connect`. The message describes the missing proof. The gateway also reports this code for a client that connects to the port and sends nothing. If the message names `trustedProxies`, configure the load balancer to send a PROXY header.";
    CredentialsInvalid = 231, Lasting, "A file with certificates or keys is not valid.", "Correct the file that the message names. Until then, a running gateway keeps its last good credentials.";
    PeerRevoked = 232, Passing, "A change of the configuration removed the identity or the authority of a connected peer. The gateway ends the peer's carriers and streams.", "If the removal is intended, no action is needed. Otherwise add the identity to the peers of the exit or to `connect` of the entry again, or add the authority to the file that `security.ca` names (`ca.crt` in the Secret of that end).";
    KeyUnknown = 233, Passing, "A gateway presented a public key that this gateway does not accept.", "The log line names the key. If the gateway may connect, add the key to `security.peers` (`--peer`) or to the file that `security.peersFile` (`--peers`) names. If the line says that the peer is suspended or has expired, change the peer's entry in this list.";
    NoPackets = 234, Passing, "A gateway does not carry IP packets, or does not carry the IP packets of one peer.", "Correct the part that the message names, for example the TUN interface, `network` of the other side, or the networks of the entry.";
    KeyRefused = 235, Passing, "The other gateway does not accept this gateway's public key.", "Add the key that the message names to the peers of the other gateway. The field `publicKeys` of `/status` has the key, too. Check that the key has not expired in the list of the other gateway.";
    ClientRequestInvalid = 240, Passing, "A client sent an invalid SOCKS request, HTTP request or PROXY header, or requested a feature that the gateway does not support.", "Compare the client's proxy settings with the `protocol` of the proxy. The log line names the fault of the client's request.";
    ClientUnknown = 241, Passing, "A client sent no user name and password, but the proxy requires both.", "Configure the client with a user name and a password of the proxy's users.";
    ClientRequestTimedOut = 242, Passing, "A client did not name its target in time.", "Find the client that connects to the forward but does not send a request in the `protocol` of the proxy.";
    TooManyGreetings = 243, Passing, "Too many clients have not named their target yet, so the gateway reset the oldest connection of the address with the most such connections.", "Find the clients that connect to the forward but do not send a request in the `protocol` of the proxy.";
    PasswordWrong = 246, Passing, "A client sent a wrong user name or password.", "Compare the client's user name and password with the proxy's users. Many failures from one address can be an attempt to guess a password.";
    PasswordsBusy = 247, Passing, "The gateway could not verify a client's password in time. The gateway verifies at most two passwords at the same time, and lets at most 64 more passwords wait.", "Find the clients that send wrong passwords (MT0246), or use bcrypt hashes with a lower cost. A client whose password the gateway has already verified does not have to wait.";
    OpenFilesExhausted = 260, Passing, "A gateway has no open files left for another stream. The gateway keeps a part of its limit of open files (RLIMIT_NOFILE) for its admin port, its carriers and its configuration.", "Find clients that open connections and do not close them. If all clients close their connections, raise the limit of open files of the process (`LimitNOFILE` of systemd, `ulimit -n`, or the default of the container runtime), or add replicas. `process.openFiles` of `/status` has the limit.";

    // 03xx: the operator's conditions.
    Reconciled = 301, Normal, "All objects match the spec.", "No action is needed.";
    GatewaysNotReady = 302, Normal, "Not all gateway pods are ready.", "If the message names a pod, run `kubectl describe` on the pod. Otherwise run `kubectl describe` on the tunnel's Deployments, because a quota or an admission policy may reject their pods.";
    ConfigPending = 303, Normal, "Not all gateways run the newest configuration yet.", "Wait. The kubelet updates the ConfigMap in running pods within a few seconds, or within about 90 seconds if the chart's `admissionPolicy.enabled` is false. If the message contains an error, a gateway does not apply the whole newest configuration: correct the cause that the error names.";
    CarrierUp = 304, Normal, "Every entry gateway has a carrier to an exit.", "No action is needed.";
    GatewayUnreachable = 305, Passing, "The operator cannot read a gateway's status.", "Check whether a NetworkPolicy blocks connections from the operator to TCP port 64001 of the gateway pods.";
    SysctlsApplied = 306, Normal, "The requested sysctls are in force in all gateways.", "No action is needed.";
    SysctlMismatch = 307, Passing, "A gateway reports a sysctl value that differs from the requested value.", "Compare both values in the message. If the kernel has limited the value to the range that it permits, request the value that the gateway reports.";
    SysctlForbidden = 308, Lasting, "The kubelet refused a sysctl.", "Remove the sysctl from `tuning.sysctls`. Alternatively, allow the sysctl on the nodes with the kubelet's flag `--allowed-unsafe-sysctls`. Then delete the Job that the message names, or wait up to 10 minutes for the operator's next attempt. The operator does not change running gateways.";
    SysctlsNotAdmitted = 309, Normal, "A node or the namespace did not admit gateway pods with the sysctls of `tuning.profile: Auto`. The gateways run with the kernel's defaults.", "No action is needed: the tunnel works, but one connection over a long path is slow. For more throughput, update the nodes to Kubernetes 1.32, or remove the label `pod-security.kubernetes.io/enforce-version` of the namespace. Then set `tuning.profile: WAN`. To accept the kernel's defaults, set `tuning.profile: None`.";
    NameTaken = 310, Lasting, "An object with the required name already exists and has another owner.", "Delete the object that the message names, or choose another name for the object or its Service.";
    KeysCreated = 320, Normal, "The keys of the gateways exist, and all answering gateways use them.", "No action is needed.";
    CertificatesProvided = 321, Normal, "The gateways' certificates are valid. The operator did not issue these certificates.", "Renew the certificates before they expire. The document `/status` of a gateway shows when its certificate expires.";
    CertificatePending = 322, Normal, "A gateway does not use the newest certificate yet.", "Wait. The kubelet updates the Secret in running pods within about 90 seconds. If the condition lasts, search the gateway's log for MT0231.";
    CertificateExpired = 323, Lasting, "A gateway's certificate has expired, so no carrier comes up.", "Renew the certificate in its Secret.";
    CertificateSecretTaken = 325, Lasting, "A Secret or Certificate with the required name already exists and has another owner.", "Delete the object that the message names, or create the tunnel with another name. The operator does not overwrite the object.";
    IssuerMissing = 326, Lasting, "The operator cannot request certificates from cert-manager.", "Install cert-manager and set the chart's value `certificates.certManager=true`, or remove `issuerRef` from `security.certificates`.";
    KeyPending = 327, Normal, "The public key of a gateway is not known yet.", "Wait until a gateway has started and reports its key. If no gateway starts, the condition Ready has the cause.";
    KeyLost = 328, Lasting, "A Secret with the key of gateways was deleted. Running gateways keep the key in memory, and new pods wait for the Secret.", "Restore the Secret, or set `key.generations` to the next number and give the new public key in the status to the other side.";
    KeyMismatch = 329, Lasting, "A gateway reports another public key than the key that the operator created.", "Find out who replaced the Secret that the message names. If that is intended, set `key.generations` to the next number, and give the new public key in the status to the other side.";
    KeySecretMissing = 330, Lasting, "A Secret of `key.secretRefs` does not exist. Running gateways keep the key in memory, and new pods wait for the Secret.", "Create the Secret that the message names, with a private key in its data key `key`, or correct `key.secretRefs`. `muxgate keygen` creates a private key.";
    KeysProvided = 331, Normal, "The Secrets of `key.secretRefs` exist, and all answering gateways use them.", "No action is needed.";
    CertificateExpiring = 332, Passing, "A certificate is about to expire, and the renewal is overdue.", "Renew the certificate that the message names.";
    ApiUnavailable = 335, Passing, "The API server did not answer the operator, or reported that it is overloaded or unavailable.", "If the fault is rare, no action is needed, because the operator retries. Otherwise check the API server, and the network between the operator and the API server.";
    ApiRefused = 336, Lasting, "The API server refused a request of the operator.", "Read the message. If the operator lacks a permission, apply the chart's roles. If a quota or an admission policy is the cause, contact the cluster's administrator.";
    WriteConflict = 337, Passing, "Another client wrote an object at the same time.", "If such conflicts are rare, no action is needed, because the operator retries. Otherwise find the other client that writes the object in the message.";
    LeaderLost = 338, Passing, "The operator lost its Lease during a reconciliation and stopped writing.", "No action is needed, because the replica that acquires the Lease continues. If the operator often loses its Lease, check the API server's latency.";
    Paused = 339, Normal, "The operator does not apply the newest settings. For an object, the field `paused` is true. For a MuxClass, the gateways of an object did not become ready in the roll-out of the class.", "To apply the spec of an object, remove its field `paused`; until then the operator only withdraws permissions. To continue the roll-out of a class, repair, pause or delete the objects that the message names, or change the MuxClass.";
    ImmutableField = 340, Lasting, "The change needs a new object, and the operator does not replace the existing object.", "When an interruption is acceptable, delete the object that the message names. The operator then creates the object again at once.";
    StaleRead = 341, Passing, "The object changed or was deleted during its reconciliation.", "No action is needed, because the operator reconciles the object again.";
    WatchUnanswered = 342, Passing, "The API server does not answer the watch of a kind of objects, so the operator does not receive changes of these objects.", "Read the error in the operator's log. If the operator lacks a permission, apply the chart's roles, which grant `list` and `watch`. If the API server does not know the kind, apply the chart's CustomResourceDefinitions.";
    BuildFailed = 343, Lasting, "The operator could not render the objects for a spec.", "Report this bug of the operator with the log line and the object's spec.";
    BenchmarkRunnerSilent = 344, Passing, "A benchmark's runner did not answer the operator correctly.", "If the fault is rare, no action is needed, because the operator repeats the request. Otherwise read the log of the Job's pod, and check whether the operator can reach port 64002 of that pod.";
    InterfaceFailed = 345, Lasting, "The init container `network` of a gateway's pod cannot create the interface for IP packets.", "Correct the fault that the message names. If the node has no TUN driver, load the module `tun` on the node (`modprobe tun`). If the container cannot enable forwarding, set the forwarding sysctl in `tuning.sysctls` and set `tuning.allowUnsafe: true`, or set `forwarding` of the network's ends to None.";
    NetworkReady = 346, Normal, "The gateways have the interface for IP packets. If the MuxTunnel has an entry, the entry has a session that carries IP packets.", "No action is needed.";
    SysctlProbing = 350, Normal, "A Job tries the sysctls in a separate pod before gateways get them.", "Wait. If the Job succeeds, the gateways get the sysctls within seconds. If the Job does not end, read the message, or run `kubectl describe` on the Job.";
    SandboxFailed = 351, Lasting, "The node could not create a pod with the sysctls, because the kernel does not know a name or does not accept a value.", "Correct the name or the value in `tuning.sysctls`. The operator does not change running gateways, and tries again within 10 minutes.";
    SysctlProbeFailed = 352, Lasting, "The Job that tries the sysctls ended without a result.", "Read the message, which describes the Job's pod. The cause can be the node, a quota or the image. The operator tries again after a minute, and does not change running gateways.";
    Accepted = 353, Normal, "The spec is valid, the objects that it names exist, and it conflicts with no other object.", "No action is needed.";
    Programmed = 354, Normal, "Every gateway has the newest spec, and the Services have addresses.", "No action is needed.";
    Connected = 355, Normal, "The peer has a carrier.", "No action is needed.";
    Idle = 356, Normal, "The peer has no carrier.", "No action is needed, unless the peer should be connected. Then read the status or the log of the peer.";
    Suspended = 357, Passing, "The peer is suspended: the exit refuses it.", "No action is needed.";
    Expired = 358, Passing, "The expiration time of the peer has passed: the exit refuses it.", "Set a later `expirationTime`, or delete the MuxPeer.";
    ExitNotFound = 359, Lasting, "The exit of a peer does not exist.", "Create the MuxExit that `exitRef` names, or delete the MuxPeer.";
    KeyInvalid = 360, Lasting, "A text in `publicKeys` is not the public key of an entry.", "Copy the key from `status.publicKeys` of the entry again, or from the output of `muxgate keygen`.";
    KeyConflict = 361, Lasting, "Two peers of an exit have the same key.", "Delete one of both MuxPeers. The exit accepts the older one.";
    ExitFull = 362, Lasting, "The exit has no room for the peer: it has the maximum number of peers, or the other peers leave too little of the gateways' configuration.", "Delete MuxPeers that are not in use. If the message has a number of bytes, use fewer or wider rules, names and networks.";
    ExitHasNoKeys = 363, Lasting, "The exit does not identify its peers by keys.", "Remove `security.mode` of the MuxExit, or delete the MuxPeer.";
    NetworkConflict = 364, Lasting, "The networks of two peers of an exit overlap, or a network has addresses of a pool.", "Correct `networkCIDRs` of the MuxPeer that the message names. Of two peers, the older one has the network.";
    TargetNotPermitted = 365, Lasting, "A forward or a rule of `allow` names a Service of another namespace, and that namespace does not permit the reference.", "Create a ReferenceGrant (Gateway API) or a MuxGrant in the namespace that the message names, or choose another target. In the grant, `from` has group muxtunnel.dev, the kind and the namespace of the object, and `to` has kind Service. If the rule of `allow` is a pattern, omit the name in `to`.";
    FailedOver = 366, Passing, "The exits of the lowest `order` do not answer, so entries use another exit.", "Check the exits of the lowest order in `connect`. The entries use them again as soon as they answer.";
    PortConflict = 367, Lasting, "Two peers of an exit name the same reverse port.", "Remove the port from `reversePorts` of one of both MuxPeers. The older one has the port, in all pods of the exit.";
    TargetNotReady = 368, Passing, "No pod behind the target Service of a forward is ready.", "Check the pods that the Service selects. Connections reach the target as soon as one pod is ready.";
    ClassNotFound = 370, Lasting, "No MuxClass has the name in `className`, or the object has no `className` and no MuxClass has `default: true`.", "Create the MuxClass, set `default: true` in one MuxClass, or correct `className`. `kubectl get muxclasses` lists the classes, and the chart creates the class `muxtunnel`. Running gateways stay unchanged.";
    ClassAmbiguous = 371, Lasting, "The object has no `className`, and several MuxClasses have `default: true`.", "Remove `default` from all MuxClasses but one, or set `className`. Running gateways stay unchanged.";
    ClassNotPermitted = 372, Lasting, "The MuxClass of the object does not permit the object's namespace, or a part of its spec.", "Remove the field that the message names, choose another MuxClass by `className`, or ask an administrator to change `namespaces` or `permitted` of the MuxClass. WAN emulation and `network` also need the Pod Security level `privileged` (MT0388). Running gateways stay unchanged.";
    RolledOut = 373, Normal, "All objects of the MuxClass have its images, its template and its tuning.", "No action is needed.";
    RollingOut = 374, Normal, "Objects of the MuxClass wait for the newest images, template or tuning, or their gateways start with them.", "Wait: `status.objects` has the number of objects. An object that is paused or not accepted gets the settings when that ends.";
    RollOutFailed = 375, Passing, "The gateways of an object did not become ready in the roll-out of its MuxClass, which goes on.", "Read the conditions of the objects that the message names. Repair the objects, or change the MuxClass.";

    // 0380 and up: findings of `muxtunnel check` that do not concern a tunnel. The operator also
    // reports PodSecurityTooStrict.
    ApiServerUnreachable = 380, Passing, "The API server does not answer.", "Check the kubeconfig, its context and its credentials. The message contains the address of the API server.";
    ServerTooOld = 381, Passing, "The API server's version is too old for MuxTunnel.", "Upgrade the cluster to Kubernetes 1.32 or newer.";
    RightsMissing = 382, Passing, "You do not have the right to read or create an object that MuxTunnel needs.", "Ask an administrator to run the command in the finding.";
    DefinitionsMissing = 383, Passing, "A CustomResourceDefinition of MuxTunnel is not installed, or the API server does not serve the definition yet.", "Install the chart with `crds.enabled=true`, or apply the definitions in `crds/yaml` by hand.";
    DefinitionsOutdated = 384, Passing, "A CustomResourceDefinition differs from the definition that the command line `muxtunnel` expects, or the operator has another version than the command line.", "Upgrade the chart, or use the command line in the operator's version.";
    OperatorNotAvailable = 385, Passing, "No operator is running, or not all pods of an operator are ready.", "Install the chart. If the chart is installed, run `kubectl describe` on the operator's pods.";
    LeaderMissing = 386, Passing, "No operator holds the leader's Lease, so no operator reconciles objects.", "Read the logs of the operator's pods. If the error `cannot read or renew the Lease` shows that the operator lacks the right, apply the chart's roles.";
    KubeletTooOld = 387, Passing, "A node's kubelet is too old to accept the sysctls of tuned gateways as safe.", "Upgrade the node to Kubernetes 1.32 or newer, or exclude the node with `nodeSelector` in the template of both ends.";
    PodSecurityTooStrict = 388, Lasting, "The Pod Security level of a namespace rejects pods that the tunnel needs there.", "Use another namespace, or set the level of this namespace to `privileged`. WAN emulation and `spec.network` need the capability NET_ADMIN, and the stricter levels forbid NET_ADMIN and unsafe sysctls.";
    ProbeInconclusive = 389, Passing, "A pod that checks whether a node can run gateways returned no result.", "Remove the cause that the message names, and run `muxtunnel check` again.";
    TunMissing = 390, Passing, "A node has no usable /dev/net/tun.", "Load the module `tun` on the node. Tunnels without `network` do not need the module.";
    StatusOutdated = 391, Passing, "The status of a tunnel does not describe the tunnel's newest spec yet.", "Check that the operator runs and serves the tunnel's namespace (the chart's value `watchNamespaces`).";
    UdpBuffersSmall = 392, Passing, "A node limits UDP socket buffers to fewer bytes than the gateways request.", "Set `net.core.rmem_max` and `net.core.wmem_max` on the node, with `sysctl -w` and a file in /etc/sysctl.d. Set each to at least 8388608 bytes for protocol QUIC or HTTP3, and to at least 4194304 bytes for transport KCP. A pod cannot set these sysctls. With smaller buffers, the node drops datagrams that arrive while a gateway is busy, and the peer has to send these datagrams again.";

    // 04xx: WAN emulation.
    WanEmulated = 401, Normal, "All gateways emulate the requested path.", "No action is needed.";
    WanPending = 403, Normal, "WAN emulation is starting.", "Wait. If WAN emulation does not start, read the log of the container `wan` in the gateway pods.";
    WanUnsupported = 404, Lasting, "None of the requested mechanisms of WAN emulation (kernel netem, NFQUEUE) works on the node.", "Use nodes with `sch_netem`, or with `xt_NFQUEUE` and `nfnetlink_queue`. With `wanEmulation.backend: Auto`, one of the two mechanisms is enough. The message contains the error of each attempt.";
    WanDelayOff = 405, Passing, "The measured delay, loss or rate differs from the requested value.", "Check whether the container `wan` gets enough CPU time. The message contains the measured value.";

    // 0410 and up: why gateways are not ready, or do not use what they were given.
    FileRejected = 410, Lasting, "A gateway cannot use the newest content of a file, so the last usable content stays in force. The gateway cannot start again with this file.", "Correct the Secret or file that the message names. The gateway reads the file again within a second after its content has changed, and the kubelet updates the files of a Secret within about 90 seconds.";
    AddressPending = 411, Normal, "The load balancer of a Service has no address yet.", "Wait. If the Service gets no address, run `kubectl describe service` on the Service: the cluster needs a controller that provides load balancers. Without such a controller, use `service.type: NodePort` or `ClusterIP`.";
    DeploymentPaused = 412, Lasting, "A Deployment of gateways is paused, so Kubernetes creates no pod with the newest template.", "Run `kubectl rollout resume` on the Deployment that the message names. To pause an object, set its field `paused` instead.";
    PodsRefused = 413, Lasting, "The API server refuses to create gateway pods.", "If the message names a quota, raise the ResourceQuota or lower `resources` in the end's template. If the message names a LimitRange, set `resources` within its bounds. If the message names an admission policy, a webhook or Pod Security, permit the pods there, or use another namespace. The operator applies no change to these objects.";
    Unschedulable = 414, Passing, "No node can run a gateway pod.", "Add nodes or free resources, or change `nodeSelector`, `tolerations`, `affinity` or `resources` in the end's template. The message has the scheduler's reason.";
    ImageNotPulled = 415, Passing, "A node cannot pull the image of a gateway pod.", "Check that the image exists and that the node reaches its registry. For a private registry, set the chart's value `imagePullSecrets`, and create these Secrets in the tunnel's namespace.";
    ContainerCrashing = 416, Passing, "A container of a gateway pod ends each time that it starts.", "Correct the fault that the message names. If the message names no fault, run `kubectl logs --previous` on the container.";
    OutOfMemory = 417, Lasting, "The kernel ended a container of a gateway pod, because the container exceeded its memory limit.", "Raise `resources.limits.memory` in the end's template. If the template has no limit, a LimitRange of the namespace sets one.";
    SecretNotMounted = 418, Passing, "A gateway pod has not started. It probably waits for a Secret.", "Create the Secrets and keys that the message names. If all of them exist, run `kubectl describe` on the pod, whose Events contain the reason.";
    VolumeNotMounted = 419, Passing, "The kubelet cannot mount a volume of a gateway pod.", "Remove the cause that the message names. If the cause is a CSI driver of `csi`, check that the driver runs on the pod's node and writes inline volumes, and that `csi.attributes` has the values that the driver needs.";

    // 043x: versions of the operator.
    UnknownValue = 430, Lasting, "This version of the operator cannot decode an object, for example because a newer version wrote it. The operator applies no spec that depends on the object. Running gateways keep their configuration, and the operator renews the certificates that it issued for them.", "Correct the value that the message names. If a newer version knows the value, upgrade the operator instead.";

    // 05xx: benchmarks.
    BenchmarkRunning = 501, Normal, "The benchmark is running.", "Wait. `kubectl logs` of the benchmark's Job shows the progress.";
    BenchmarkComplete = 502, Normal, "The benchmark has measured all its cells.", "Read the results in the Job's log, or in the ConfigMap that `status.resultsConfigMapName` names.";
    BenchmarkCellsFailed = 503, Passing, "Some cells of the benchmark failed, so these cells have no figures.", "Read the reason in the cell's row of the Job's log.";
    BenchmarkEnvironmentFailed = 504, Passing, "A benchmark environment did not become ready in time.", "If the message names a MuxTunnel, read the conditions of the MuxTunnel. If the message names a pod or an agent, run `kubectl describe` on the agent's pod, and read the pod's log. If the operator did not offer the environment, check that the operator runs.";
    BenchmarkRunnerLost = 505, Passing, "The benchmark's Job ended or was deleted without delivering its results.", "Read the log of the Job's pod if the pod still exists, and create the benchmark again.";
    BenchmarkDelayRefused = 506, Passing, "The runner did not measure a cell, because WAN emulation did not produce the requested delay.", "If the message has the code ClassNotPermitted (MT0372) or WanUnsupported (MT0404), follow the remedy of that code. If the message contains a measured RTT, follow the remedy of WanDelayOff (MT0405).";
    BenchmarkToolFailed = 507, Passing, "The measurement tool failed or printed no usable figures.", "Read the tool's last output in the message.";
}

impl Code {
    /// The code with this number, or `None` if no code has the number.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.number() == number)
    }

    /// The code with this reason, or `None` if no code has the reason.
    #[must_use]
    pub fn from_reason(reason: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.reason() == reason)
    }

    /// The address of this code's section in the documentation, relative to the repository.
    #[must_use]
    pub fn anchor(self) -> String {
        format!("docs/codes.md#mt{:04}", self.number())
    }
}

/// The code as users see it, for example `MT0204`.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MT{:04}", self.number())
    }
}

/// Renders the page `docs/codes.md`: one section per code, with the anchor of [`Code::anchor`].
#[must_use]
pub fn render_docs() -> String {
    let mut page = String::from(
        "# Codes\n\n\
         Each condition reason, refusal and error class has one code. The code is the same in\n\
         conditions, Events, logs, metric labels and exit messages. This page is generated from\n\
         `codes/src/lib.rs` (`UPDATE_DOCS=1 cargo test -p muxtunnel-codes`).\n",
    );
    for code in Code::ALL {
        page.push_str(&format!(
            "\n## MT{:04}\n**{}**: {}\n\nWhat to do: {}\n",
            code.number(),
            code.reason(),
            code.cause(),
            code.remedy()
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use muxtunnel_testkit::generated::compare;

    use super::*;

    #[test]
    fn numbers_are_unique_and_ascending() {
        assert!(
            Code::ALL
                .windows(2)
                .all(|pair| pair[0].number() < pair[1].number())
        );
    }

    #[test]
    fn a_code_is_found_by_its_number_and_its_reason() {
        for code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), Some(*code));
            assert_eq!(Code::from_reason(code.reason()), Some(*code));
        }
        assert_eq!(Code::from_number(0), None);
        assert_eq!(Code::from_reason("reconciled"), None);
    }

    #[test]
    fn every_code_has_its_section_in_the_docs() {
        let page = render_docs();
        compare("docs/codes.md", &page, "UPDATE_DOCS");
        for code in Code::ALL {
            let (_, anchor) = code
                .anchor()
                .split_once('#')
                .map(|(p, a)| (p.to_owned(), a.to_owned()))
                .unwrap();
            let heading = format!("## {}", anchor.to_uppercase());
            assert!(
                page.lines().any(|line| line == heading),
                "{heading} is missing in docs/codes.md"
            );
        }
    }

    #[test]
    fn texts_are_sentences() {
        for code in Code::ALL {
            for text in [code.cause(), code.remedy()] {
                assert!(text.ends_with('.') && text.len() > 7, "{code}: {text}");
            }
        }
    }
}
