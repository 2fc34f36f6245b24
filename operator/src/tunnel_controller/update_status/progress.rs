//! The conditions Reconciling and Stalled, which tools for all kinds of objects read (kstatus). Pure.

use muxtunnel_codes::{Code, Nature};
use muxtunnel_crds::condition::{RECONCILING, STALLED};

use crate::conditions::Verdict;

/// The condition Reconciling or Stalled. `None` if the object is ready, is paused, or the gateways
/// have the current spec and wait for something else.
pub(crate) fn progress(ready: &Verdict, is_programmed: bool) -> Option<Verdict> {
    let type_ = match ready.code {
        _ if ready.holds == Some(true) => return None,
        Code::Paused => return None,
        code if code.nature() == Nature::Lasting => STALLED,
        _ if is_programmed => return None,
        _ => RECONCILING,
    };
    Some(Verdict {
        type_,
        holds: Some(true),
        ..ready.clone()
    })
}

#[cfg(test)]
mod tests {
    use muxtunnel_crds::condition::READY;

    use super::*;

    #[test]
    fn an_object_that_is_not_ready_says_who_has_to_act() {
        let type_ = |code, is_programmed| {
            let ready = Verdict::no(READY, code, "");
            progress(&ready, is_programmed).map(|verdict| verdict.type_)
        };
        assert_eq!(type_(Code::ConfigPending, false), Some(RECONCILING));
        assert_eq!(type_(Code::InvalidSpec, false), Some(STALLED));
        for code in [
            Code::DeploymentPaused,
            Code::FileRejected,
            Code::KeyLost,
            Code::PodsRefused,
            Code::SysctlProbeFailed,
            Code::TargetServiceNotFound,
        ] {
            assert_eq!(type_(code, true), Some(STALLED), "{code}");
        }
        assert_eq!(type_(Code::CarrierConnecting, true), None);
        assert_eq!(type_(Code::Paused, false), None);
        let ready = Verdict::yes(READY, Code::Reconciled);
        assert_eq!(progress(&ready, true), None);
    }
}
