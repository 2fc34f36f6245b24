//! Whether the requested delay is in force.

use muxtunnel_codes::Code;
use muxtunnel_crds::condition;

use super::answers;
use crate::conditions::Verdict;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::{Seen, Wan};
use crate::tunnel_controller::validate::ValidatedObject;

/// Smallest ratio of the measured round-trip time to the requested round-trip time at which the
/// delay counts as in force.
const RTT_PART_MIN: f64 = 0.97;

/// `None`: the spec requests no emulation.
pub(super) fn wan_emulated(object: &ValidatedObject, seen: &Seen) -> Option<Verdict> {
    let no = |code, detail| Some(Verdict::no(condition::WAN_EMULATED, code, detail));
    let wan = object.pods.wan.as_ref()?;
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
    let delay = wan.delay_milliseconds;
    let least = delay.saturating_sub(wan.jitter_milliseconds.unwrap_or_default());
    if object.has_both_ends() {
        let Some(rtt) = least_rtt(seen) else {
            return no(Code::WanPending, "no carrier to measure yet".to_owned());
        };
        let asked = 2 * delay;
        // The path itself can only make the round trip longer. Only jitter can make it shorter than
        // requested.
        if rtt < 2.0 * f64::from(least) * RTT_PART_MIN {
            let detail =
                format!("the round trip takes {rtt:.1} ms, requested {asked} ms (2 x {delay} ms)");
            return no(Code::WanDelayOff, detail);
        }
    }
    Some(
        Verdict::yes(condition::WAN_EMULATED, Code::WanEmulated)
            .with(format!("each direction is delayed by {delay} ms")),
    )
}

/// The lowest round-trip time of all carriers of the entries, in milliseconds.
fn least_rtt(seen: &Seen) -> Option<f64> {
    answers(seen, End::Entry)
        .flat_map(|(_, status)| &status.carriers)
        .map(|carrier| carrier.rtt_min_milliseconds)
        .filter(|rtt| *rtt > 0.0)
        .min_by(f64::total_cmp)
}
