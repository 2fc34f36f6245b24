//! Whether connections reach the fixed targets of forwards, as the gateways count them. Pure.
//!
//! Only dials of a target that the spec names count. A client of a proxy may name any target, so
//! its failures say nothing about the tunnel.

use std::collections::BTreeMap;

use muxtunnel_gateway_config::status::{DIALS_SECONDS, Dials};

use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::Seen;

/// Minimum number of dials in the window. Fewer dials do not change a condition.
const DIALS_MIN: u64 = 5;

/// The item of the spec and a sentence for each forward all of whose recent dials failed, in all
/// gateways of `end` together. The sentences have no numbers, so that an unchanged state does not
/// change the status.
pub(super) fn failing(seen: &Seen, end: End) -> Vec<(String, String)> {
    let mut sums: BTreeMap<(&str, &str), Dials> = BTreeMap::new();
    for forward in seen.answers(end).flat_map(|(_, status)| &status.forwards) {
        if let Some(dials) = forward.dials {
            let sum = sums.entry((&forward.name, &forward.target)).or_default();
            sum.connected = sum.connected.saturating_add(dials.connected);
            sum.failed = sum.failed.saturating_add(dials.failed);
        }
    }
    sums.retain(|_, dials| dials.connected == 0 && dials.failed >= DIALS_MIN);
    let sentence = |(name, target)| {
        let minutes = DIALS_SECONDS / 60;
        let sentence = format!(
            "no connection of the last {minutes} minutes reached the target {target}. Check that the target listens on \
             this port, and check the targetPort of its Service"
        );
        (format!("forward {name}"), sentence)
    };
    sums.into_keys().map(sentence).collect()
}
