//! Whether the requested delay is in force.

use muxtunnel_codes::Code;
use muxtunnel_crds::tunnel_condition as condition;

use super::answers;
use crate::conditions::Verdict;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::{Seen, Wan};
use crate::tunnel_controller::validate::ValidatedTunnel;

/// Smallest ratio of the measured round-trip time to the requested round-trip time at which the
/// delay counts as in force.
const RTT_PART_MIN: f64 = 0.97;

pub(super) fn wan_emulated(tunnel: &ValidatedTunnel, seen: &Seen) -> Verdict {
    let no = |code, detail| Verdict::no(condition::WAN_EMULATED, code, detail);
    if tunnel.wan_disabled {
        return no(Code::WanDisabled, String::new());
    }
    let Some(wan) = &tunnel.wan else {
        return no(Code::NotRequested, String::new());
    };
    let refused = seen.pods.iter().find_map(|pod| match &pod.wan {
        Wan::Refused(problem) => Some(problem),
        _ => None,
    });
    if let Some(problem) = refused {
        return no(problem.code, problem.detail.clone());
    }
    if let Some(pod) = seen.pods.iter().find(|pod| pod.wan != Wan::Proven) {
        return no(
            Code::WanPending,
            format!("pod {} is starting the emulation", pod.name),
        );
    }
    if seen.pods.is_empty() {
        return no(Code::WanPending, "no gateway runs yet".to_owned());
    }
    let delay = wan.one_way_delay;
    let least = delay
        .as_millis()
        .saturating_sub(wan.jitter.unwrap_or_default().as_millis());
    if tunnel.has_both_sides() {
        let Some(rtt) = least_rtt(seen) else {
            return no(Code::WanPending, "no carrier to measure yet".to_owned());
        };
        let asked = 2.0 * delay.as_millis() as f64;
        // The path itself can only make the round trip longer. Only jitter can make it shorter than
        // requested.
        if rtt < 2.0 * least as f64 * RTT_PART_MIN {
            let detail =
                format!("the round trip takes {rtt:.1} ms, requested {asked} ms (2 x {delay})");
            return no(Code::WanDelayOff, detail);
        }
    }
    Verdict {
        detail: format!("each direction is delayed by {delay}"),
        ..Verdict::yes(condition::WAN_EMULATED, Code::WanEmulated)
    }
}

/// The lowest round-trip time of all carriers of the entries, in milliseconds.
fn least_rtt(seen: &Seen) -> Option<f64> {
    answers(seen, End::Entry)
        .flat_map(|(_, status)| &status.carriers)
        .map(|carrier| carrier.rtt_min_milliseconds)
        .filter(|rtt| *rtt > 0.0)
        .min_by(f64::total_cmp)
}
