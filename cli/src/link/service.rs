//! The Service of a link. Pure.

use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube::ResourceExt;
use muxtunnel_crds::Rule;
use muxtunnel_gateway_config as config;

/// Maximum length of the name of a forward.
const FORWARD_NAME_MAX: usize = 15;

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) service: String,
    pub(super) namespace: String,
    pub(super) port: u16,
    /// The name of the port.
    pub(super) port_name: Option<String>,
}

impl Target {
    /// The name of the Service, as the exit resolves it.
    pub(super) fn host(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    /// All names of the Service, as the rules of an exit can have them.
    pub(super) fn hosts(&self) -> [String; 4] {
        let (service, namespace) = (&self.service, &self.namespace);
        [
            self.host(),
            service.clone(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc.cluster.local"),
        ]
    }

    /// The rule that permits the target under the name `host`.
    pub(super) fn rule(&self, host: &str) -> Rule {
        Rule::of_target(&config::Target::Tcp {
            host: host.to_owned(),
            port: self.port,
        })
    }

    /// The name of the entry's forward: the name of the port, or `port-NUMBER`.
    pub(super) fn forward(&self) -> String {
        let is_name = |name: &&String| {
            let mut letters = name.chars();
            name.len() <= FORWARD_NAME_MAX
                && letters
                    .next()
                    .is_some_and(|first| first.is_ascii_lowercase())
        };
        let name = self.port_name.as_ref().filter(is_name).cloned();
        name.unwrap_or_else(|| format!("port-{}", self.port))
    }
}

/// The port `asked` of the Service, by number or name. `None`: its only port.
pub(super) fn target(service: &Service, asked: Option<&str>) -> Result<Target, String> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let is_tcp = |port: &&ServicePort| port.protocol.as_deref().is_none_or(|name| name == "TCP");
    let ports: Vec<_> = ports.into_iter().flatten().filter(is_tcp).collect();
    let shown: Vec<_> = ports
        .iter()
        .map(|port| match &port.name {
            Some(name) => format!("{} ({name})", port.port),
            None => port.port.to_string(),
        })
        .collect();
    let shown = shown.join(", ");
    let number = asked.and_then(|asked| asked.parse::<u16>().ok());
    let chosen = match (asked, ports.as_slice()) {
        (None, [port]) => Some((port.port, port.name.clone())),
        (None, []) => {
            return Err(
                "it has no TCP port, or you may not read it: give the port as svc/NAME:PORT".into(),
            );
        }
        (None, _) => {
            return Err(format!(
                "it has several ports: {shown}. Give one as svc/NAME:PORT"
            ));
        }
        // A Service that cannot be read has no ports.
        (Some(_), []) if service.spec.is_none() => number.map(|number| (number.into(), None)),
        (Some(asked), ports) => {
            let is_it = |port: &&&ServicePort| {
                number.is_some_and(|number| port.port == i32::from(number))
                    || port.name.as_deref() == Some(asked)
            };
            ports
                .iter()
                .find(is_it)
                .map(|port| (port.port, port.name.clone()))
        }
    };
    let asked = asked.unwrap_or_default();
    let (port, port_name) = chosen.ok_or_else(|| match shown.as_str() {
        "" => format!("give its port as a number instead of {asked}"),
        shown => format!("it has no TCP port {asked}; its ports are {shown}"),
    })?;
    Ok(Target {
        service: service.name_any(),
        namespace: service.namespace().unwrap_or_default(),
        port: u16::try_from(port).map_err(|_| format!("the port {port} is not valid"))?,
        port_name,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(ports: Value) -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "backend"}, "spec": {"ports": ports},
        }))
        .unwrap()
    }

    #[test]
    fn a_port_is_the_only_one_or_the_one_that_is_asked_for() {
        let one = service(json!([{"port": 80}, {"port": 53, "protocol": "UDP"}]));
        let two = service(json!([{"port": 80, "name": "http"}, {"port": 443, "name": "https"}]));
        for (service, asked, wanted) in [
            (&one, None, (80, "port-80")),
            (&two, Some("443"), (443, "https")),
            (&two, Some("http"), (80, "http")),
        ] {
            let target = target(service, asked).unwrap();
            assert_eq!((target.port, target.forward().as_str()), wanted);
            assert_eq!(target.host(), "web.backend.svc");
        }
        for (service, asked, said) in [
            (&two, None, "several ports: 80 (http), 443 (https)"),
            (
                &two,
                Some("8080"),
                "no TCP port 8080; its ports are 80 (http)",
            ),
            (&service(json!([])), None, "no TCP port"),
        ] {
            let error = target(service, asked).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn the_port_of_a_service_that_cannot_be_read_is_a_number() {
        let mut hidden = service(json!([]));
        hidden.spec = None;
        assert_eq!(target(&hidden, Some("80")).unwrap().port, 80);
        assert!(
            target(&hidden, Some("http"))
                .unwrap_err()
                .contains("as a number")
        );
        assert!(target(&hidden, None).is_err());
    }
}
