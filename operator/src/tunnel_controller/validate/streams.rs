//! The streams between clients and targets: forwards, reverse forwards, proxies and rules. Pure.

use std::collections::BTreeMap;

use muxtunnel_codes::Code;
use muxtunnel_crds::{Forward, Proxy, ReverseForward, Target, Timeouts};
use muxtunnel_gateway_config as config;

use super::target::{Missing, Scope};
use super::{DeniedTarget, Dereferenced, Finding, Findings, rules};
use crate::tunnel_controller::object::Object;

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
    pub proxies: Vec<ValidatedProxy>,
    /// Rules for targets, in addition to the targets of the forwards.
    pub rules: config::Policy,
    /// When idle streams are reset.
    pub timeouts: Timeouts,
}

/// A port whose clients name their targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedProxy {
    /// The port, without its users.
    pub listener: config::ProxyListener,
    /// The permitted users. `None` permits any client.
    pub users: Option<UsersFile>,
}

/// A key of a Secret with users. The gateways mount the Secret, and the operator never reads it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsersFile {
    /// Name of the Secret.
    pub secret: String,
    /// The key.
    pub key: String,
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
) -> Result<(Streams, Findings), String> {
    let mut found = Resolver {
        scope: Scope {
            kind: object.kind(),
            namespace,
            named,
            is_dialled_here: object.has_exit(),
        },
        findings: Findings::default(),
    };
    let forwards = object.forwards().iter();
    let forwards = forwards.filter_map(|asked| found.forward(asked)).collect();
    let proxies = object.proxies().iter();
    let proxies = proxies.map(|asked| found.proxy(asked)).collect();
    // An entry of the object always dials the targets of reverse forwards.
    found.scope.is_dialled_here = true;
    let reverse = object.reverse_forwards().iter();
    let reverse_forwards = reverse.filter_map(|asked| found.reverse(asked)).collect();
    let (rules, unpermitted) = rules::rules(object, namespace, named)?;
    found.findings.all.extend(unpermitted);
    let streams = Streams {
        forwards,
        reverse_forwards,
        proxies,
        rules,
        timeouts: object.timeouts().copied().unwrap_or_default(),
    };
    Ok((streams, found.findings))
}

struct Resolver<'a> {
    scope: Scope<'a>,
    findings: Findings,
}

impl Resolver<'_> {
    /// `None` without a usable target.
    fn forward(&mut self, asked: &Forward) -> Option<config::Forward> {
        let place = format!("forward {}", asked.name);
        Some(config::Forward {
            targets: self.targets(&place, &asked.targets, false)?,
            name: asked.name.clone(),
            listen: all_addresses(asked.port),
            proxy_protocol: asked.proxy_protocol.unwrap_or_default(),
            priority: asked.priority.unwrap_or_default(),
            limits: asked.limits.unwrap_or_default(),
        })
    }

    /// `None` without a usable target.
    fn reverse(&mut self, asked: &ReverseForward) -> Option<config::Forward> {
        let place = format!("reverse forward {}", asked.name);
        Some(config::Forward {
            targets: self.targets(&place, &asked.targets, true)?,
            name: asked.name.clone(),
            listen: all_addresses(asked.port),
            proxy_protocol: config::ProxyProtocol::default(),
            priority: asked.priority.unwrap_or_default(),
            limits: asked.limits.unwrap_or_default(),
        })
    }

    fn proxy(&mut self, asked: &Proxy) -> ValidatedProxy {
        let place = format!("proxy {}", asked.name);
        let users = asked.users_secret_ref.as_ref().map(|asked| UsersFile {
            secret: asked.name.clone(),
            key: asked.key.clone().unwrap_or_else(|| USERS_KEY.to_owned()),
        });
        let fallback_targets = self.targets(&place, &asked.fallback_targets, false);
        let listener = config::ProxyListener {
            name: asked.name.clone(),
            protocol: asked.protocol,
            listen: all_addresses(asked.port),
            fallback_targets: fallback_targets.unwrap_or_default(),
            users_file: None,
            user: None,
            password_file: None,
            accept_proxy_protocol: asked.accept_proxy_protocol,
            send_proxy_protocol: None,
            priority: asked.priority.unwrap_or_default(),
            limits: asked.limits.unwrap_or_default(),
        };
        ValidatedProxy { listener, users }
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
            let (target, missing) = self.scope.resolve(target);
            targets.extend(target);
            let (code, sentence) = match missing {
                None => {
                    works = true;
                    continue;
                }
                Some(Missing::Permission { sentence, host }) => {
                    let rule = config::Rule {
                        host: config::HostPattern::Name(host),
                        ports: config::Ports::ALL,
                        peer: None,
                    };
                    self.findings.denied.push(DeniedTarget { rule, reverse });
                    (Code::TargetNotPermitted, sentence)
                }
                Some(Missing::Service(sentence)) => (Code::TargetServiceNotFound, sentence),
                Some(Missing::Endpoint(sentence)) => (Code::TargetNotReady, sentence),
            };
            problems.entry(code).or_default().push(sentence);
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
