//! Whether gateways carry the IP packets of `spec.network`.

use muxtunnel_codes::Code;
use muxtunnel_crds::condition;

use crate::conditions::Verdict;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::Seen;
use crate::tunnel_controller::validate::ValidatedObject;

/// `None`: the object has no networks.
pub(super) fn network_ready(object: &ValidatedObject, seen: &Seen) -> Option<Verdict> {
    let no = |code, detail| Some(Verdict::no(condition::NETWORK_READY, code, detail));
    object.network.as_ref()?;
    let mut problems = seen.pods.iter().filter_map(|pod| pod.problem.as_ref());
    if let Some(problem) = problems.find(|problem| problem.code == Code::InterfaceFailed) {
        return no(problem.code, problem.detail.clone());
    }
    let mut sessions = 0;
    for end in object.gateways.keys().copied() {
        let carried = seen
            .answers(end)
            .filter_map(|(_, status)| status.packets.as_ref());
        let carried = carried.map(|packets| packets.sessions);
        let Some(number) = carried.reduce(u32::saturating_add) else {
            let name = end.component();
            let detail = format!("no {name} gateway with an interface has reported its status yet");
            return no(Code::GatewaysNotReady, detail);
        };
        if number == 0 && end == End::Entry {
            let detail = "no session of the entry carries IP packets: read the log of its gateway";
            return no(Code::NoPackets, detail.to_owned());
        }
        sessions = sessions.max(number);
    }
    Some(
        Verdict::yes(condition::NETWORK_READY, Code::NetworkReady)
            .with(format!("sessions that carry IP packets: {sessions}")),
    )
}
