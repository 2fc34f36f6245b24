//! The triggers of reconciliations of benchmarks, in addition to changes of the benchmarks.

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt};
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use muxtunnel_crds::MuxBenchmark;

use crate::classes::{Change, Classes};

/// The benchmarks that a changed class concerns.
pub(super) fn classed(
    classes: &Classes,
    store: Store<MuxBenchmark>,
) -> BoxStream<'static, ObjectRef<MuxBenchmark>> {
    let concerned = move |change: Change| {
        let concerns = |benchmark: &Arc<MuxBenchmark>| {
            let namespace = benchmark.namespace().unwrap_or_default();
            change.concerns(&namespace, benchmark.spec.class_name.as_deref())
        };
        let all = store.state().into_iter().filter(concerns);
        let all: Vec<_> = all.map(|one| ObjectRef::from_obj(one.as_ref())).collect();
        stream::iter(all)
    };
    classes.changes().flat_map(concerned).boxed()
}
