//! Bulk over UDP: with iperf 2 through gateways, and from process to process over bare quinn.

use anyhow::Result;

use super::{Outcome, Run};
use crate::{
    bare_quinn,
    metric::{Figures, Metric},
    system::{Service, System},
    topology::Place,
};

impl Run<'_> {
    pub(super) fn bulk_udp(&self) -> Result<Outcome> {
        if self.running.system != System::Quinn {
            return self.bulk_iperf2();
        }
        let network = &self.bench.network;
        let sender = (self.running.system).address(Service::Load, &network.topology.addresses());
        let client = network.namespace(Place::Client);
        let order = || bare_quinn::order(sender, self.connections, self.window());
        let answer = client.enter(order)??;
        Ok(Outcome {
            bytes: answer.bytes,
            figures: Figures::from([(Metric::MbitS, answer.mbit_s)]),
        })
    }
}
