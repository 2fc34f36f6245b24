//! The access of the steps of a reconciliation to the world outside of their arguments. All
//! reconciliations of an operator share the access.
//!
//! Each step receives only the access that its work needs. The first step receives [`Access`],
//! which can change nothing in the
//! cluster except missing key pairs. Pure steps receive [`Data`], and
//! steps that write receive [`Outputs`].

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use kube::Client;

use super::keyring::Keyring;
use super::rollouts::Rollouts;
use crate::api_server::ApiServer;
use crate::caches::{Caches, Cluster, Targets};
use crate::classes::Classes;
use crate::grants::Grants;
use crate::metrics::tunnels::Tunnels;
use crate::reader::Reader;
use crate::settings::Settings;
use crate::upgrades::turns::Turns;
use crate::watch_clock::WatchClock;

/// The inputs of the first step.
pub struct Access {
    /// The objects of the watches.
    pub caches: Caches,
    /// Reads of objects without a watch.
    pub reader: Reader,
    /// The Services that forwards target.
    pub targets: Targets,
    /// The grants of other namespaces.
    pub grants: Grants,
    /// The classes of objects.
    pub classes: Classes,
    /// The permissions to take the revision of a class.
    pub turns: Turns,
    /// The API server's addresses.
    pub api_server: ApiServer,
    /// The operator's memory.
    pub memory: Arc<Memory>,
    /// The age of each watch.
    pub watches: Arc<WatchClock>,
    /// The settings of the installation.
    pub settings: Arc<Settings>,
}

/// The outputs of the steps that write.
pub struct Outputs {
    /// The cluster.
    pub cluster: Cluster,
    /// The operator's memory.
    pub memory: Arc<Memory>,
    /// The sums of the gateways' figures, for the metrics.
    pub figures: Tunnels,
    /// Whether the operator may patch the annotation that refreshes a pod's volumes.
    pub refreshes_volumes: bool,
}

/// The operator's memory. The first step reads the memory, and later steps add to it.
pub struct Memory {
    /// The key pairs of gateways.
    pub keyring: Keyring,
    /// The ends whose pods nodes have refused.
    pub rollouts: Rollouts,
}

impl Memory {
    /// An empty memory. `client` creates key pairs.
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            keyring: Keyring::new(client),
            rollouts: Rollouts::default(),
        })
    }
}

/// A value without access to the world: none of the operator's clients, caches and clocks, whose
/// types do not have these two traits of the standard library (a test asserts it). The traits do not
/// exclude every type with interior mutability: the locks of the standard library have them.
pub trait Data: UnwindSafe + RefUnwindSafe {}

impl<T: UnwindSafe + RefUnwindSafe> Data for T {}

/// Runs a pure step. All captured inputs of `step` are data, so the step has no access to the
/// cluster, to the caches or to the time.
pub(super) fn pure<O>(step: impl FnOnce() -> O + Data) -> O {
    step()
}

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use k8s_openapi::api::core::v1::Pod;
    use kube::{Api, Client};

    use super::*;
    use crate::caches::Cache;
    use crate::clock::{Clock, Now};
    use crate::tunnel_controller::dereference::Dereferenced;
    use crate::tunnel_controller::validate::{ValidatedObject, ValidatedState};

    struct Of<T>(PhantomData<T>);

    /// For a type that is data, the constant of the type hides this constant of the trait.
    trait Otherwise {
        const IS_DATA: bool = false;
    }

    impl<T> Otherwise for Of<T> {}

    impl<T: Data> Of<T> {
        const IS_DATA: bool = true;
    }

    #[test]
    fn neither_clients_nor_caches_nor_clocks_are_data() {
        for (name, is_data) in [
            ("Dereferenced", Of::<Dereferenced>::IS_DATA),
            ("ValidatedState", Of::<ValidatedState>::IS_DATA),
            ("ValidatedObject", Of::<ValidatedObject>::IS_DATA),
            ("Now", Of::<Now>::IS_DATA),
        ] {
            assert!(is_data, "{name}");
        }
        for (name, is_data) in [
            ("Api", Of::<Api<Pod>>::IS_DATA),
            ("Cache", Of::<Cache<Pod>>::IS_DATA),
            ("Caches", Of::<Caches>::IS_DATA),
            ("Client", Of::<Client>::IS_DATA),
            ("Clock", Of::<Clock>::IS_DATA),
            ("Cluster", Of::<Cluster>::IS_DATA),
            ("Grants", Of::<Grants>::IS_DATA),
            ("Classes", Of::<Classes>::IS_DATA),
            ("Reader", Of::<Reader>::IS_DATA),
            ("Targets", Of::<Targets>::IS_DATA),
            ("a reference to a Client", Of::<&Client>::IS_DATA),
            ("Access", Of::<Access>::IS_DATA),
            ("Outputs", Of::<Outputs>::IS_DATA),
        ] {
            assert!(!is_data, "{name}");
        }
    }
}
