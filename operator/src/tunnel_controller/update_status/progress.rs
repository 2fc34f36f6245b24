//! The conditions Reconciling and Stalled, which tools for all kinds of objects read (kstatus). Pure.

use muxtunnel_codes::Code;
use muxtunnel_crds::condition::{RECONCILING, STALLED};

use crate::conditions::Verdict;

/// Whether only an administrator can remove the cause. The other causes can end without a change of
/// an object, such as a lost carrier, or are never a cause of an object that is not ready. The match
/// has no wildcard, so each new code needs a decision.
const fn needs_administrator(code: Code) -> bool {
    match code {
        Code::InvalidSpec
        | Code::TargetServiceNotFound
        | Code::CredentialsInvalid
        | Code::SysctlForbidden
        | Code::NameTaken
        | Code::CertificateExpired
        | Code::CertificateSecretTaken
        | Code::IssuerMissing
        | Code::KeyLost
        | Code::KeyMismatch
        | Code::ApiRefused
        | Code::ImmutableField
        | Code::BuildFailed
        | Code::InterfaceFailed
        | Code::SandboxFailed
        | Code::SysctlProbeFailed
        | Code::ExitNotFound
        | Code::KeyInvalid
        | Code::KeyConflict
        | Code::ExitFull
        | Code::ExitHasNoKeys
        | Code::NetworkConflict
        | Code::PortConflict
        | Code::TargetNotPermitted
        | Code::PodSecurityTooStrict
        | Code::WanUnsupported
        | Code::FileRejected
        | Code::DeploymentPaused
        | Code::PodsRefused
        | Code::OutOfMemory
        | Code::ClassAmbiguous
        | Code::ClassNotFound
        | Code::ClassNotPermitted
        | Code::KeySecretMissing
        | Code::UnknownValue => true,
        Code::PeerStreamLimit
        | Code::PeerOpenLimit
        | Code::PeerCarrierLimit
        | Code::KeyUnknown
        | Code::KeysProvided
        | Code::RolledOut
        | Code::RollingOut
        | Code::RollOutFailed
        | Code::ConfigInvalid
        | Code::ListenFailed
        | Code::CarrierConnecting
        | Code::CarrierLost
        | Code::ProtocolViolation
        | Code::OpenRefused
        | Code::OpenFailed
        | Code::OpenTimedOut
        | Code::TooManyStreams
        | Code::MemoryExhausted
        | Code::TooManyCarriers
        | Code::Draining
        | Code::ForwardStreamLimit
        | Code::ForwardOpenLimit
        | Code::IdleTimedOut
        | Code::HalfOpenTimedOut
        | Code::LocalReset
        | Code::PeerReset
        | Code::DrainDeadline
        | Code::OpenAbandoned
        | Code::CongestionControlRefused
        | Code::ListenRefused
        | Code::MeetingRefused
        | Code::StreamDenied
        | Code::StreamStalled
        | Code::SessionPanicked
        | Code::CarrierRefused
        | Code::PeerRevoked
        | Code::KeyRefused
        | Code::ClientRequestInvalid
        | Code::ClientUnknown
        | Code::ClientRequestTimedOut
        | Code::TooManyGreetings
        | Code::PasswordWrong
        | Code::PasswordsBusy
        | Code::OpenFilesExhausted
        | Code::Reconciled
        | Code::GatewaysNotReady
        | Code::ConfigPending
        | Code::CarrierUp
        | Code::GatewayUnreachable
        | Code::SysctlsApplied
        | Code::SysctlMismatch
        | Code::KeysCreated
        | Code::CertificatesProvided
        | Code::CertificatePending
        | Code::KeyPending
        | Code::CertificateExpiring
        | Code::ApiUnavailable
        | Code::WriteConflict
        | Code::LeaderLost
        | Code::Paused
        | Code::StaleRead
        | Code::WatchUnanswered
        | Code::BenchmarkRunnerSilent
        | Code::NetworkReady
        | Code::SysctlProbing
        | Code::Accepted
        | Code::Programmed
        | Code::Connected
        | Code::Idle
        | Code::Suspended
        | Code::Expired
        | Code::FailedOver
        | Code::TargetNotReady
        | Code::ApiServerUnreachable
        | Code::ServerTooOld
        | Code::RightsMissing
        | Code::DefinitionsMissing
        | Code::DefinitionsOutdated
        | Code::OperatorNotAvailable
        | Code::LeaderMissing
        | Code::KubeletTooOld
        | Code::ProbeInconclusive
        | Code::TunMissing
        | Code::StatusOutdated
        | Code::UdpBuffersSmall
        | Code::WanEmulated
        | Code::WanPending
        | Code::WanDelayOff
        | Code::AddressPending
        | Code::Unschedulable
        | Code::ImageNotPulled
        | Code::ContainerCrashing
        | Code::SecretNotMounted
        | Code::VolumeNotMounted
        | Code::BenchmarkRunning
        | Code::BenchmarkComplete
        | Code::BenchmarkCellsFailed
        | Code::BenchmarkEnvironmentFailed
        | Code::BenchmarkRunnerLost
        | Code::BenchmarkDelayRefused
        | Code::BenchmarkToolFailed
        | Code::ConfigNeedsRestart
        | Code::NoPackets => false,
    }
}

/// The condition Reconciling or Stalled. `None` if the object is ready, is paused, or the gateways
/// have the current spec and wait for something else.
pub(crate) fn progress(ready: &Verdict, is_programmed: bool) -> Option<Verdict> {
    let type_ = match ready.code {
        _ if ready.holds == Some(true) => return None,
        Code::Paused => return None,
        code if needs_administrator(code) => STALLED,
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
