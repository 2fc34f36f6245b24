//! The streams between clients and targets: forwards, reverse forwards, proxies and rules. Pure.

use std::collections::{BTreeMap, BTreeSet};

use muxtunnel_codes::Code;
use muxtunnel_crds::{Forward, Proxy, ReverseForward, Target, Timeouts};
use muxtunnel_gateway_config as config;

use super::target::Scope;
use super::{DeniedTarget, Dereferenced, Finding, Findings, rules};
use crate::tunnel_controller::object::Object;

/// Mount point of the files with users.
pub(in crate::tunnel_controller) const USERS_FOLDER: &str = "/etc/muxgate-users";
/// Default key of a Secret with users.
const USERS_KEY: &str = "users";

/// The streams between clients and targets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Streams {
    /// The forwards with a known target.
    pub forwards: Vec<config::Forward>,
    /// The reverse forwards with a known target: the exit listens, the entry dials.
    pub reverse_forwards: Vec<config::Forward>,
    /// The ports whose clients name their targets.
    pub proxies: Vec<config::ProxyListener>,
    /// The files with users of the proxies.
    pub users: BTreeSet<UsersFile>,
    /// Rules for targets, in addition to the targets of the forwards.
    pub rules: config::Policy,
    /// When idle streams are reset.
    pub timeouts: Timeouts,
}

/// A key of a Secret with users. The gateways mount the Secret, and the operator never reads it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsersFile {
    /// Name of the Secret.
    pub secret: String,
    /// The key.
    pub key: String,
}

impl UsersFile {
    /// The path of the file in [`USERS_FOLDER`].
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}", self.secret, self.key)
    }
}

/// All addresses of the pod in both families. If the kernel has no IPv6, the gateway listens on the
/// IPv4 addresses.
pub(in crate::tunnel_controller) fn all_addresses(port: u16) -> String {
    format!("[::]:{port}")
}

/// The streams of `object`, and the problems of their targets.
pub(super) fn resolved(
    object: &Object,
    namespace: &str,
    named: &Dereferenced,
) -> (Streams, Findings) {
    let mut found = Resolver {
        scope: Scope {
            kind: object.kind(),
            namespace,
            named,
            is_dialled_here: object.has_exit(),
        },
        findings: Findings::default(),
        users: BTreeSet::new(),
    };
    let forwards = object.forwards().iter();
    let forwards = forwards.filter_map(|asked| found.forward(asked)).collect();
    let proxies = object.proxies().iter();
    let proxies = proxies.map(|asked| found.proxy(asked)).collect();
    // An entry of the object always dials the targets of reverse forwards.
    found.scope.is_dialled_here = true;
    let reverse = object.reverse_forwards().iter();
    let reverse_forwards = reverse.filter_map(|asked| found.reverse(asked)).collect();
    let (rules, unpermitted) = rules::rules(object, namespace, named);
    found.findings.all.extend(unpermitted);
    let streams = Streams {
        forwards,
        reverse_forwards,
        proxies,
        users: found.users,
        rules,
        timeouts: object.timeouts().copied().unwrap_or_default(),
    };
    (streams, found.findings)
}

struct Resolver<'a> {
    scope: Scope<'a>,
    findings: Findings,
    users: BTreeSet<UsersFile>,
}

impl Resolver<'_> {
    /// `None` without a usable target.
    fn forward(&mut self, asked: &Forward) -> Option<config::Forward> {
        let place = format!("forward {}", asked.listen.name);
        Some(config::Forward {
            targets: self.targets(&place, &asked.targets, false)?,
            name: asked.listen.name.clone(),
            listen: all_addresses(asked.listen.port),
            proxy_protocol: asked.proxy_protocol.unwrap_or_default(),
            priority: asked.priority.unwrap_or_default(),
            limits: asked.limits.unwrap_or_default(),
        })
    }

    /// `None` without a usable target.
    fn reverse(&mut self, asked: &ReverseForward) -> Option<config::Forward> {
        let place = format!("reverse forward {}", asked.listen.name);
        Some(config::Forward {
            targets: self.targets(&place, &asked.targets, true)?,
            name: asked.listen.name.clone(),
            listen: all_addresses(asked.listen.port),
            proxy_protocol: config::ProxyProtocol::default(),
            priority: asked.priority.unwrap_or_default(),
            limits: asked.limits.unwrap_or_default(),
        })
    }

    fn proxy(&mut self, asked: &Proxy) -> config::ProxyListener {
        let place = format!("proxy {}", asked.listen.name);
        let users = asked.users_secret_ref.as_ref().map(|asked| UsersFile {
            secret: asked.name.clone(),
            key: asked.key.clone().unwrap_or_else(|| USERS_KEY.to_owned()),
        });
        let users_file = users.as_ref();
        let users_file = users_file.map(|users| format!("{USERS_FOLDER}/{}", users.path()));
        self.users.extend(users);
        let fallback_targets = self.targets(&place, &asked.fallback_targets, false);
        config::ProxyListener {
            name: asked.listen.name.clone(),
            protocol: asked.protocol,
            listen: all_addresses(asked.listen.port),
            fallback_targets: fallback_targets.unwrap_or_default(),
            users_file,
            user: None,
            password_file: None,
            accept_proxy_protocol: asked.accept_proxy_protocol,
            send_proxy_protocol: None,
            priority: asked.priority.unwrap_or_default(),
            limits: asked.limits.unwrap_or_default(),
        }
    }

    /// The usable targets of `asked`, in their order. `None` if there are none. Adds a finding for
    /// each kind of problem.
    fn targets(
        &mut self,
        place: &str,
        asked: &[Target],
        reverse: bool,
    ) -> Option<Vec<config::Target>> {
        let mut targets = Vec::new();
        let mut problems: BTreeMap<Code, Vec<String>> = BTreeMap::new();
        let mut works = false;
        for target in asked {
            let found = self.scope.resolve(target);
            targets.extend(found.target);
            let denied = found.denied.map(|host| config::Rule {
                host: config::HostPattern::Name(host),
                ports: config::Ports::ALL,
                peer: None,
            });
            let denied = denied.map(|rule| DeniedTarget { rule, reverse });
            self.findings.denied.extend(denied);
            match found.problem {
                Some((code, sentence)) => problems.entry(code).or_default().push(sentence),
                None => works = true,
            }
        }
        if works {
            // The pods of a target come and go, and another target has the connections meanwhile.
            problems.remove(&Code::TargetNotReady);
        }
        let mut is_lost = !works;
        for (code, sentences) in problems {
            self.findings.all.push(Finding {
                code,
                place: place.to_owned(),
                detail: sentences.join("; "),
                is_lost: std::mem::take(&mut is_lost),
            });
        }
        (!targets.is_empty()).then_some(targets)
    }
}
