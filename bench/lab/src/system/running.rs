//! A system that is up.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use muxtunnel_gateway_config::status::Splice;

use super::{Interface, Muxgate, START_PATIENCE, System, muxgate};
use crate::{
    network::Network,
    process::{Process, wait_until},
    topology::{Place, TUNNEL},
};

/// The processes of a system, which end when this value is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) system: System,
    pub(super) processes: Vec<(Place, Process)>,
    pub(super) client_prefix: Vec<String>,
}

impl Running {
    /// The command line that runs `program` as a client of the system.
    pub(crate) fn client(
        &self,
        program: &Path,
        mut arguments: Vec<String>,
    ) -> (PathBuf, Vec<String>) {
        let Some((wrapper, prefix)) = self.client_prefix.split_first() else {
            return (program.to_owned(), arguments);
        };
        arguments.insert(0, program.display().to_string());
        arguments.splice(0..0, prefix.iter().cloned());
        (wrapper.into(), arguments)
    }

    /// The ids of the system's processes at one place.
    pub(crate) fn pids_at(&self, at: Place) -> Vec<u32> {
        self.processes
            .iter()
            .filter(|(place, _)| *place == at)
            .flat_map(|(_, process)| process.pids())
            .collect()
    }

    /// What the gateways of muxgate at entry and exit spliced so far; `None`: the system does not
    /// splice, or its configuration files are those of another lab.
    ///
    /// # Errors
    /// `muxgate status` fails.
    pub(crate) fn spliced(
        &self,
        network: &Network,
        muxgate: Muxgate<'_>,
    ) -> Result<Option<[Splice; 2]>> {
        if !self.system.splices() || muxgate.files.is_some() {
            return Ok(None);
        }
        let ask = |place| muxgate::spliced(muxgate.program, network.namespace(place), place);
        Ok(Some([ask(Place::Entry)?, ask(Place::Exit)?]))
    }

    /// Whether a process of the system has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        let mut processes = self.processes.iter_mut();
        processes.any(|(_, process)| process.has_ended())
    }

    pub(super) fn still_runs(&mut self) -> Result<()> {
        ensure!(!self.has_ended(), "a process of the system has ended");
        Ok(())
    }

    /// Waits for the interface of the gateway at `place`. Then moves the interface to the namespace
    /// of the applications on that side. Applications have their own sysctls, as on hosts behind a
    /// gateway.
    pub(super) fn move_interface(
        &mut self,
        network: &Network,
        place: Place,
        interface: Interface,
    ) -> Result<()> {
        let [client, server] = TUNNEL;
        let (to, address) = match place {
            Place::Exit => (Place::Server, server),
            _ => (Place::Client, client),
        };
        let (name, settings) = (Interface::NAME, interface.settings());
        wait_until(START_PATIENCE, "the TUN interface", || {
            self.still_runs()?;
            let is_there = network.has_interface(name, place, interface.queues)?;
            if is_there {
                network.move_interface(name, [place, to], address, &settings)?;
            }
            Ok(is_there)
        })
    }

    /// The ids of the system's processes at both gateways.
    pub(crate) fn pids(&self) -> Vec<u32> {
        [Place::Entry, Place::Exit]
            .map(|place| self.pids_at(place))
            .concat()
    }
}
