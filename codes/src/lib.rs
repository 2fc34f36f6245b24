//! The `MT####` codes: one name for each condition reason, refusal and error class.
//!
//! Owns the closed list of codes. A code is the same in a condition, an Event, a log line, a metric
//! label, an exit message and the page `docs/codes.md`, which [`render_docs`] writes and a test
//! compares. Knows nothing of who reports a code. A new refusal starts here, in [`Code`].

use std::fmt;

/// Declares the closed list: `Variant = number, "cause", "remedy";`.
macro_rules! codes {
    ($($variant:ident = $number:literal, $cause:literal, $remedy:literal;)*) => {
        /// One class of refusal, error or condition reason. The variant's name is the `reason` that
        /// conditions and Events carry.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $cause] $variant,)*
        }

        impl Code {
            /// Every code, in ascending order of number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The number behind `MT`, four digits.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self { $(Self::$variant => $number,)* }
            }

            /// The condition reason (CamelCase, as `metav1.Condition` asks).
            #[must_use]
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }

            /// What has happened, one sentence.
            #[must_use]
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$variant => $cause,)* }
            }

            /// What a person does about it, one sentence.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)* }
            }
        }
    };
}

codes! {
    // 01xx: what was written is not what can be run.
    ConfigInvalid = 101, "The configuration file or the flags cannot be used.", "Correct the field or line that the message names; a running gateway keeps its last good configuration meanwhile.";
    ConfigNeedsRestart = 102, "The configuration changed in a part that a running gateway cannot take over.", "Restart the gateway to change the fields that the message names; `forwards`, `allow`, `policy`, `allowListen`, `offer`, `timeouts` and `security.peers` are in force already, unless the message says why not.";
    ListenFailed = 103, "A port could not be listened on.", "Free the port, or choose another; the message names the address and the system's error.";
    InvalidSpec = 104, "The object's spec is not valid.", "Correct the field that the message names and apply the object again.";
    TargetServiceNotFound = 105, "A forward's target Service, or its named port, does not exist.", "Create the Service in the tunnel's namespace, or correct `target.service`.";

    // 02xx: the mux and its gateways.
    CarrierConnecting = 201, "No carrier to the other side is up yet.", "Look at the exit pods and at the network between the sides; the entry retries with back-off by itself.";
    CarrierLost = 202, "A carrier ended; its streams were reset.", "Nothing, if it stays rare: the entry reconnects by itself. Otherwise look at the path and at restarts of the exit.";
    ProtocolViolation = 203, "The peer broke the mux protocol.", "Check that both ends speak the same protocol; the message names the frame and the rule.";
    OpenRefused = 204, "The exit refused to dial a target that its rules do not allow.", "Add the target to the forwards (or to `--allow`), or look for a rule that denies it; loopback, link-local and other guarded addresses must be written out literally.";
    OpenFailed = 205, "The exit could not reach the target.", "Check that the target resolves and listens where the message says.";
    OpenTimedOut = 206, "The other side did not answer an open in time.", "Check the carrier's path and whether the target's address drops packets.";
    TooManyStreams = 207, "A session is at its limit of streams.", "Raise `limits.streams`, or find what opens connections without closing them.";
    MemoryExhausted = 208, "A session's memory budget has no room for another stream.", "Raise `memory.receive`, or find the targets that do not read.";
    TooManyCarriers = 209, "An exit is at its limit of carriers: it refuses one more, or ends one of the peer that holds most.", "Raise `limits.carriers`, or find out who connects.";
    Draining = 210, "The gateway is shutting down and takes no new streams.", "No action is needed: another replica accepts new connections.";
    ForwardStreamLimit = 211, "A forward is at its own limit of streams; one more connection was reset.", "Raise `limits.streams` of the forward, add replicas, or find the clients that open connections without closing them.";
    ForwardOpenLimit = 212, "A forward got more new connections in a second than its limit; those beyond it were reset.", "Raise `limits.opensPerSecond` of the forward, or let its clients keep and share their connections.";
    IdleTimedOut = 213, "A stream was reset because no byte passed for the idle time-out.", "Raise `timeouts.idle`, or switch on keep-alive messages in the application.";
    HalfOpenTimedOut = 214, "A stream was reset because one half had ended and no byte passed in the other for the half-open time-out.", "Look why the application does not close its connection, or raise `timeouts.halfOpen`.";
    LocalReset = 215, "A client or target reset its connection, or its connection failed.", "Look at the application that the log line names: its `error` is what its connection ended with.";
    PeerReset = 216, "The other gateway reset a stream.", "Look for the stream's line in the other gateway's log, which says why.";
    DrainDeadline = 217, "A stream was still open at the deadline of a shutdown and was reset.", "Nothing, if streams may end with a roll-out. Otherwise let applications end them within `drain.deadlineSeconds`.";
    OpenAbandoned = 218, "A client closed its connection before the target was reached.", "Compare how long the target takes to be reached with how long the client is willing to wait.";
    CongestionControlRefused = 219, "The system does not give carriers the congestion control that was asked for; they keep its default.", "Add it to the node's `net.ipv4.tcp_allowed_congestion_control`, load its kernel module, or ask for `Auto`.";
    ListenRefused = 220, "An exit does not listen where an entry asked it to.", "Add the address to the exit's `allowListen`, or free the port there; the message says which. The entry asks again by itself.";
    MeetingRefused = 221, "A rendezvous did not bring two gateways together.", "Compare name and secret of both gateways with those of the rendezvous, and see whether the exit is registered there; the message says which it was.";
    StreamDenied = 222, "A new rule denies the target or the peer of an open stream, so the stream was reset.", "Nothing, if the rule is intended; otherwise take it out of the exit's `policy.deny`.";
    StreamStalled = 226, "A stream was reset because its client or target took no data while other streams of the session waited for receive memory.", "Find out why the application does not read, raise `memory.receive`, or change `memory.stallSeconds`.";
    SessionPanicked = 229, "A fault of the gateway ended a session; its streams were reset.", "Nothing: the entry begins another session by itself, and other sessions go on. Please report the log line, and the panic in front of it.";
    CarrierRefused = 230, "The other end of a carrier did not prove that it may be one.", "Compare the names in its certificate, or its public key, with `security.peers` of this end; the message says what was missing. A client that only connects to the port is refused, too. Where it names `trustedProxies`, have the load balancer send a PROXY header.";
    CredentialsInvalid = 231, "A file of certificates or keys cannot be used.", "Correct the file that the message names; a running gateway keeps its last good credentials meanwhile.";
    PeerRevoked = 232, "A peer that has a session may not connect any more: its identity or its authority was taken out of the configuration; its carriers and streams are cut.", "Nothing, if that was intended; otherwise put its identity back into `security.peers`, or its authority into the file of `ca`.";
    NoPackets = 234, "IP packets are not carried, or not those of a peer.", "Do what the message says: about the TUN interface, about `network` at the other side, or about the networks of the entry that it names.";
    ClientRequestInvalid = 240, "A client's SOCKS, HTTP or PROXY header cannot be read, or asks for what there is not.", "Compare the client's proxy settings with the forward's `protocol`; the log line says what it sent.";
    ClientUnknown = 241, "A client gave no user name and no password, and the forward asks for them.", "Give the client a user name and a password of the forward's `auth`.";
    ClientRequestTimedOut = 242, "A client did not say in time where it wants to go.", "Look what connects to the forward without speaking its `protocol`.";
    TooManyGreetings = 243, "Too many clients have not said yet where they want to go; the oldest was reset.", "Find out who connects to the forward without speaking its `protocol`.";
    PasswordWrong = 246, "A client gave a wrong user name or password.", "Compare the client's user name and password with the forward's `auth`. Many of these from one address are attempts to guess a password.";
    PasswordsBusy = 247, "A client's password could not be verified in time: two are verified at once, and at most 64 wait.", "Find out who sends wrong passwords (MT0246), or use hashes of a lower cost; clients whose password was verified before are not affected.";

    // 03xx: the operator's conditions.
    Reconciled = 301, "All is as asked.", "Nothing.";
    GatewaysNotReady = 302, "Not all gateway pods are ready.", "`kubectl describe` the pods that the message names.";
    ConfigPending = 303, "Gateways do not all run the newest configuration yet.", "Wait: the kubelet brings a changed ConfigMap to running pods within about 90 seconds.";
    CarrierUp = 304, "Every entry gateway has a carrier to the exit.", "Nothing.";
    GatewayUnreachable = 305, "The operator cannot read a gateway's status.", "Allow the operator to reach port 64001 of the gateway pods (NetworkPolicy).";
    SysctlsApplied = 306, "The sysctls asked for are in force in the gateways.", "Nothing.";
    SysctlMismatch = 307, "A gateway reports another value for a sysctl than the one asked for.", "Compare the message's values; the kernel may have clamped the value.";
    SysctlForbidden = 308, "The kubelet refused a sysctl.", "Remove it from `tuning.sysctls`; or allow it on the nodes with `--allowed-unsafe-sysctls`, and then delete the Job that the message names, or wait until the operator tries again, within 10 minutes. Gateways that run stay as they are.";
    NotRequested = 309, "The spec does not ask for it.", "Nothing.";
    OwnedByOther = 310, "An object with the required name already exists and has another owner.", "Rename the tunnel, or delete the object that the message names.";
    CertificatesIssued = 320, "The operator has issued the gateways' certificates, and they are good.", "Nothing: they are renewed once two thirds of their life are over.";
    CertificatesProvided = 321, "The gateways' certificates come from elsewhere, and they are good.", "Nothing, as long as somebody renews them: `status.certificates` says until when they are good.";
    CertificatePending = 322, "A gateway does not show the newest certificate yet.", "Wait: the kubelet brings a changed Secret to running pods within about 90 seconds. If it lasts, read the gateway's log for MT0231.";
    CertificateExpired = 323, "A gateway's certificate has expired; no carrier comes up.", "If the operator issues it, see why it does not: its log, and the right to patch Secrets. Else renew it in its Secret.";
    AuthorityUnavailable = 324, "The operator cannot read or write the Secret from which its certificate authorities come.", "Do what the message says; certificates that were issued stay good until they expire.";
    CertificateSecretTaken = 325, "A Secret, or a Certificate, of the needed name exists and is not the operator's.", "Delete what the message names, or rename the tunnel; nothing of it is written over.";
    IssuerMissing = 326, "cert-manager cannot be asked for certificates.", "Install cert-manager, and this chart with `certificates.certManager=true`; or leave `security.issuerRef` out.";
    JoinBundleMissing = 327, "The Secret with the join bundle does not exist.", "Copy the Secret NAME-join of the exit's namespace under the name that `carrier.joinFrom` says.";
    JoinBundleForbidden = 328, "The operator may not read the Secret with the join bundle.", "Run the command in the message, or name the namespace in the chart's value `join.namespaces`.";
    JoinBundleInvalid = 329, "The Secret with the join bundle is none, or is broken.", "Copy the Secret NAME-join of the exit's namespace again, with its type and all keys; the message says what is wrong.";
    JoinBundleExpired = 330, "The join bundle has expired, and no newer one came through the tunnel before.", "Copy the Secret NAME-join of the exit's namespace again: its operator has published a newer one.";
    JoinAddressMissing = 331, "The join bundle is not published: nobody knows under which address entries elsewhere reach the exit.", "Wait for the load balancer, or set `carrier.address` of the exit.";
    CertificateExpiring = 332, "A certificate, or the join bundle, is about to expire and has not been renewed.", "Renew what the message names; if the operator issues it, its log says why it does not.";
    ApiUnavailable = 335, "The API server did not answer the operator, or answered that it cannot now.", "Nothing, if it stays rare: the operator tries again by itself. Otherwise look at the API server and at the network between them.";
    ApiRefused = 336, "The API server refused a request of the operator.", "Read the message: a missing right is granted by the chart's roles; a quota or an admission policy is the cluster's.";
    WriteConflict = 337, "Somebody else wrote an object at the same time.", "Nothing, if it stays rare: the operator tries again by itself. Otherwise find out who writes the object that the message names.";
    LeaderLost = 338, "The operator lost its Lease while it was at work, and wrote nothing more.", "Nothing: another replica goes on. If it happens often, look at the API server's latency.";
    Paused = 339, "The annotation `muxtunnel.dev/paused` is `true`: everything stays as it is, whatever the spec says.", "Remove the annotation, and the tunnel is brought to what its spec says. Until then its certificates are renewed as they were issued.";
    ImmutableField = 340, "The requested change needs a new object, and the operator does not replace the present one by itself.", "Delete the object that the message names when its users can do without it; the operator makes it again at once.";
    StaleRead = 341, "The object changed or went while the operator was at work on it.", "Nothing: it is looked at again.";
    WatchUnanswered = 342, "The API server does not answer a watch, so the operator does not hear of changes of that kind.", "Look at the operator's log: the chart's roles grant the rights (`list`, `watch`), and its definitions the kinds.";
    BuildFailed = 343, "What an object needs could not be rendered.", "This is a fault of the operator: please report the log line with the object's spec.";
    BenchmarkRunnerSilent = 344, "A benchmark's runner did not answer the operator as it should.", "Nothing, if it stays rare: the operator asks again. Otherwise read the Job's pod log, and allow the operator to reach port 64002 of that pod.";
    InterfaceFailed = 345, "The init container `network` of a gateway's pod cannot make the interface for IP packets.", "Do what the message says. Where the node has no TUN driver, load the module `tun` there (`modprobe tun`); where forwarding cannot be set, have `tuning.sysctls` set it with `allowUnsafe`, or leave `network.forward` and `network.snat` out.";
    NetworkReady = 346, "The gateways have the interface for IP packets, and the entry a session that carries them.", "Nothing.";
    SysctlProbing = 350, "A Job tries the sysctls in a pod of its own before gateways get them.", "Wait: gateways follow within seconds of its end. If it lasts, see what the message says keeps it, or `kubectl describe` the Job.";
    SandboxFailed = 351, "A pod with the sysctls could not be set up: the kernel does not know one, or does not take its value.", "Correct the name or the value in `tuning.sysctls`. Gateways that run stay as they are, and the operator tries again within 10 minutes.";
    SysctlProbeFailed = 352, "The Job that tries the sysctls ended without saying whether the node takes them.", "See what the message says of its pod: the node, a quota or the image may be the cause. It is tried again a minute later; gateways that run stay as they are.";
    TargetNotPermitted = 365, "A forward, or a rule of `policy.allow`, names a Service of another namespace that does not permit it.", "Have a ReferenceGrant (Gateway API) or a MuxGrant made in the namespace that the message names, from kind MuxTunnel of group muxtunnel.dev and the tunnel's namespace, to kind Service (for a pattern without a name); or name another target.";
    TargetNotReady = 368, "No pod behind the target Service of a forward is ready.", "Look at the pods that the Service selects; connections reach the target once one of them is ready.";

    // 0380: what `muxtunnel check` finds outside of tunnels; the operator says one of them, too.
    ApiServerUnreachable = 380, "The API server does not answer.", "Look at the kubeconfig, its context and its credentials; the message names what was tried.";
    ServerTooOld = 381, "The API server is older than what tunnels need.", "Upgrade the cluster to Kubernetes 1.32 or newer.";
    RightsMissing = 382, "You have not the right to look at something, or to install it.", "Let an administrator run the command that stands beside the finding.";
    DefinitionsMissing = 383, "A definition of MuxTunnel's objects is not installed, or not served yet.", "Install the chart; `crds.enabled` must not be false, unless the definitions are applied by other means.";
    DefinitionsOutdated = 384, "A definition is not the one of this version.", "Upgrade the chart, or use the `muxtunnel` of the installed version.";
    OperatorNotAvailable = 385, "No operator runs.", "Install the chart; where it is installed, `kubectl describe` the operator's pods.";
    LeaderMissing = 386, "No operator holds the leader's Lease, so nothing is reconciled.", "Read the logs of the operator's pods; whether they may write the Lease is in the message of the first error.";
    KubeletTooOld = 387, "A node's kubelet is older than the safe sysctls that tuned gateways need.", "Upgrade the node to Kubernetes 1.32 or newer, or keep gateways off it by `template.nodeSelector`.";
    PodSecurityTooStrict = 388, "The Pod Security level of a namespace refuses pods that are asked for there.", "Use another namespace, or let its level be `privileged`: WAN emulation and networks need NET_ADMIN, and no other level allows unsafe sysctls.";
    ProbeInconclusive = 389, "A pod that tries out what a node lets gateways have came to no answer.", "Read the message, mend what kept the pod from running, and check again.";
    TunMissing = 390, "A node has no usable /dev/net/tun.", "Load the module `tun` on the node; tunnels without `spec.network` do without.";
    StatusOutdated = 391, "The operator has not reported on a tunnel's newest spec.", "Look whether the operator runs and serves the tunnel's namespace (`watchNamespaces` of the chart).";
    UdpBuffersSmall = 392, "A node gives UDP sockets smaller buffers than gateways ask for.", "Set `net.core.rmem_max` and `net.core.wmem_max` on the node, by `sysctl -w` and a file in /etc/sysctl.d: 8388608 each for protocols QUIC and HTTP3, 4194304 for KCP. No pod can set them. With smaller buffers, datagrams that come while a gateway is busy are lost, and sent again.";

    // 04xx: WAN emulation.
    WanEmulated = 401, "The asked delay is in force on all gateways.", "Nothing.";
    WanDisabled = 402, "WAN emulation was asked for and is switched off in this installation.", "Install the chart with `wanEmulation.enabled=true`; its containers need NET_ADMIN.";
    WanPending = 403, "WAN emulation is starting.", "Wait; if it lasts, read the log of the container `wan` of the gateway pods.";
    WanUnsupported = 404, "Neither kernel netem nor NFQUEUE works on the node.", "Run on nodes with `sch_netem`, or with `xt_NFQUEUE` and `nfnetlink_queue`; the message says what each attempt met.";
    WanDelayOff = 405, "The delay made is not the delay asked for.", "Look for CPU starvation of the container `wan`; the message gives both figures.";

    // 05xx: benchmarks.
    BenchmarkRunning = 501, "The benchmark is running.", "Wait; `kubectl logs` of its Job shows progress.";
    BenchmarkComplete = 502, "All cells of the benchmark were measured.", "Nothing: read the Job's log or the results ConfigMap.";
    BenchmarkCellsFailed = 503, "Some cells of the benchmark failed; the others were measured.", "Read the reason in the cell's row of the Job's log.";
    BenchmarkEnvironmentFailed = 504, "A benchmark environment did not become ready in time.", "Read the conditions of the child MuxTunnel that the message names.";
    BenchmarkRunnerLost = 505, "The benchmark's Job ended without delivering its results.", "Read the Job's pod log; create the benchmark again.";
    BenchmarkDelayRefused = 506, "A cell was not measured because its delay could not be emulated.", "See WanDisabled and WanUnsupported; a cell is never measured at another delay than its own.";
    BenchmarkToolFailed = 507, "The measuring tool failed or gave no usable figures.", "Read its last output in the message.";
}

impl Code {
    /// The code of that number.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.number() == number)
    }

    /// The code whose reason that is.
    #[must_use]
    pub fn from_reason(reason: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.reason() == reason)
    }

    /// The address of this code's paragraph in the documentation, relative to the repository.
    #[must_use]
    pub fn anchor(self) -> String {
        format!("docs/codes.md#mt{:04}", self.number())
    }
}

/// `MT0204`.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MT{:04}", self.number())
    }
}

/// Writes the page `docs/codes.md`: a paragraph a code, with the anchor that [`Code::anchor`] names.
#[must_use]
pub fn render_docs() -> String {
    let mut page = String::from(
        "# Codes\n\n\
         Each condition reason, refusal and error class has one code. It is the same in conditions, Events,\n\
         logs, metric labels and exit messages. This page is written from `codes/src/lib.rs`\n\
         (`UPDATE_DOCS=1 cargo test -p muxtunnel-codes`).\n",
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
    fn every_code_has_its_paragraph_in_the_docs() {
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
