//! The peers of an exit and the members of a rendezvous in documents of earlier pods. Pure.

use std::collections::{BTreeMap, BTreeSet};

use muxtunnel_gateway_config::{Cidr, ListenRule, Member};
use serde_yaml::Value;

use super::retain;
use crate::tunnel_controller::document::{
    CIDRS, LISTENS, NETWORK_PEERS, PEERS, change_items, cidrs_of, items, lessened, set_items,
};
use crate::tunnel_controller::validate::NOBODY;

/// The place of a rendezvous's members.
const MEMBERS: [&str; 1] = ["members"];

/// What one MuxPeer names.
#[derive(Debug, Default)]
pub(in super::super) struct Asked {
    /// The ports.
    pub ports: BTreeSet<u16>,
    /// The networks.
    pub networks: Vec<Cidr>,
}

/// Removes the peers that are not in `present`. The others get their present rules.
pub(in super::super) fn withdraw_peers(document: &mut Value, present: &[Value]) {
    let name = |peer: &Value| peer.get("name").cloned();
    change_items(document, &PEERS, |own| {
        let mut same = present.iter();
        let same = same.find(|now| *now == own || name(own).is_some() && name(now) == name(own));
        same.cloned()
    });
}

/// Removes the listeners and networks that the peers no longer name.
pub(in super::super) fn withdraw_of_peers(document: &mut Value, asked: &BTreeMap<&str, Asked>) {
    retain(document, &LISTENS, |rule| {
        let rule = rule
            .as_str()
            .and_then(|text| text.parse::<ListenRule>().ok());
        let peer = rule.and_then(|rule| Some((rule.peer?, rule.ports.first)));
        peer.is_none_or(|(peer, port)| {
            asked
                .get(&*peer)
                .is_some_and(|asked| asked.ports.contains(&port))
        })
    });
    let own = items(document, &NETWORK_PEERS);
    let kept = own.iter().filter_map(|own| {
        let identity = own.get("identity")?.as_str()?;
        let (mut kept, networks) = (own.clone(), cidrs_of(own));
        if identity != NOBODY {
            let asked = asked.get(identity).map_or(&[][..], |asked| &asked.networks);
            let rest = lessened(&networks, asked);
            if rest.is_empty() {
                return None;
            }
            if rest != networks {
                let texts = rest.iter().map(|cidr| Value::from(format!("{cidr:#}")));
                set_items(&mut kept, &[CIDRS], texts.collect());
            }
        }
        Some(kept)
    });
    let mut kept: Vec<_> = kept.collect();
    if kept == own {
        return;
    }
    if kept.is_empty() && items(document, &["network", "pool"]).is_empty() {
        // Without peers and pools, a gateway gives all networks to the first entry.
        let mut nobody = own[0].clone();
        nobody["identity"] = NOBODY.into();
        let all = items(document, &["network", "entryCIDRs"]).to_vec();
        set_items(&mut nobody, &[CIDRS], all);
        kept.push(nobody);
    }
    set_items(document, &NETWORK_PEERS, kept);
}

/// Removes the members and the keys that are not in `present`, and suspends and expires the others as
/// `present` says.
pub(in super::super) fn withdraw_members(document: &mut Value, present: &[Member]) {
    change_items(document, &MEMBERS, |own| {
        let name = own.get("name")?.as_str()?;
        let mut present = present.iter();
        let now = present.find(|now| now.name.as_deref() == Some(name))?;
        let mut kept = own.clone();
        let listed: Vec<_> = now.public_keys.iter().map(ToString::to_string).collect();
        retain(&mut kept, &["publicKeys"], |key| {
            listed
                .iter()
                .any(|listed| key.as_str() == Some(listed.as_str()))
        });
        if items(&kept, &["publicKeys"]).is_empty() {
            return None;
        }
        if now.suspend {
            kept["suspend"] = true.into();
        }
        if let Some(time) = now.expiration_time {
            kept["expirationTime"] = time.to_string().into();
        }
        Some(kept)
    });
}
