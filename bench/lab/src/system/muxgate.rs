//! A pair of our gateways, each with one worker: one session.

use anyhow::Result;
use serde_json::json;

use super::{CARRIER_PORT, Launch, Service, Setup, entry_at, target_at};
use crate::topology::{Place, at};

/// `protocol`: as the configuration file names it; `carriers`: of the session; `resume`: whether streams
/// outlive them.
pub(super) fn launches(
    setup: &Setup<'_>,
    protocol: &str,
    carriers: u8,
    resume: bool,
) -> Result<Vec<Launch>> {
    let addresses = &setup.addresses;
    let common = json!({
        "protocol": protocol,
        "security": {"mode": "None"},
        "memory": {
            "receive": setup.limits.receive_bytes.to_string(),
            "retain": setup.limits.retain_bytes.to_string(),
        },
        "limits": {"streams": setup.limits.streams},
        "workers": 1,
        "resume": resume,
    });
    let carrier = at(addresses.carrier_exit, CARRIER_PORT);
    let allow = Service::ALL.map(|service| target_at(addresses.target, service));
    let exit = json!({"role": "Exit", "listen": carrier, "allow": allow});
    let forwards = Service::ALL.map(|service| {
        json!({
            "name": service.name(),
            "listen": entry_at(addresses.entry, service),
            "target": {"host": addresses.target, "port": service.port()},
        })
    });
    let entry = json!({
        "role": "Entry",
        "connect": carrier,
        "forwards": forwards,
        "pool": {"min": carriers, "max": carriers},
    });
    let program = setup.muxgate.display();
    let launch = |place, name: &str, own: serde_json::Value| {
        let mut config = common.clone();
        if let (Some(config), serde_json::Value::Object(own)) = (config.as_object_mut(), own) {
            config.extend(own);
        }
        // YAML takes JSON as it is.
        let path = setup.file(name, &serde_json::to_string_pretty(&config)?)?;
        Ok::<_, anyhow::Error>(Launch::new(
            place,
            &format!("{program} run --config {path}"),
        ))
    };
    Ok(vec![
        launch(Place::Exit, "muxgate-exit.yaml", exit)?.listening(CARRIER_PORT),
        launch(Place::Entry, "muxgate-entry.yaml", entry)?,
    ])
}
