//! The controller of `MuxClass`: the roll-out of each class in steps, and its status.
//!
//! Whenever an object is reconciled, the controller plans the next steps of all classes from the
//! caches ([`crate::upgrades::plan`]), and permits objects to take the revision of their class. The
//! reconciliations of these objects do the rest. The condition `RolledOut` is written when it
//! changes, and the counts at most every 30 s.

mod members;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::{Api, Client, ResourceExt};
use muxtunnel_crds::{ClassObjects, MuxClass, MuxClassStatus};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::caches::{Caches, NotKnown};
use crate::class::Class;
use crate::classes::Classes;
use crate::clock::{Clock, Now};
use crate::failure;
use crate::leader::Leadership;
use crate::metrics::classes::Figures;
use crate::status_patch::write_status;
use crate::tunnel_controller::update_status::CountClock;
use crate::undecoded;
use crate::upgrades::plan::{Plan, Policy, plan};
use crate::upgrades::turns::Turns;
use crate::upgrades::{Member, Revision};
use crate::watches::ObjectId;

/// All changes of objects within this time cause one plan.
const BATCH: Duration = Duration::from_millis(300);
/// The longest pause between two plans. Nothing triggers a plan when a permission ends.
const PLANNED_EVERY: Duration = Duration::from_secs(10);

/// The controller of all classes that this operator serves.
pub struct Planner {
    /// The client that writes statuses.
    pub client: Client,
    /// The caches of each scope.
    pub scopes: Vec<Caches>,
    /// The classes.
    pub classes: Classes,
    /// The permissions.
    pub turns: Turns,
    /// The exported figures.
    pub figures: Figures,
    /// The operator's clock.
    pub clock: Clock,
}

/// Why a step failed. The controller retries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A cache is not filled yet.
    #[error(transparent)]
    NotKnown(#[from] NotKnown),
    /// A status could not be written.
    #[error("cannot write the status of MuxClass {0}")]
    Write(String, #[source] kube::Error),
}

/// A class, and the plan for its objects.
type Planned = (Arc<MuxClass>, Plan);

/// Plans the next steps of all classes while this operator leads, until the process ends.
pub async fn run(planner: Planner, leadership: Leadership) {
    let (mut won, counts) = (leadership.won(), CountClock::default());
    loop {
        tokio::select! {
            // The earlier leader's Deployments are known, and the permissions of this process are old.
            Some(()) = won.next() => planner.turns.clear(),
            _changed_or_late = timeout(PLANNED_EVERY, planner.turns.changed()) => {}
        }
        sleep(BATCH).await;
        if !leadership.is_held() {
            continue;
        }
        match planner.step(&counts).await {
            // The first lists of the watches trigger the next step.
            Ok(()) | Err(Error::NotKnown(_)) => {}
            Err(error) => warn!(error = %failure::chain(&error), "a step of a roll-out failed"),
        }
    }
}

impl Planner {
    /// Plans the next steps of all classes, and writes the statuses that have changed.
    ///
    /// # Errors
    /// [`Error`]. A retry is safe.
    pub async fn step(&self, counts: &CountClock) -> Result<(), Error> {
        let now = self.clock.now();
        let planned = self.plan(now)?;
        self.figures
            .set(planned.iter().map(|(class, plan)| (class.name_any(), plan)));
        let still = |status: &MuxClassStatus| MuxClassStatus {
            objects: status.objects.map(|_| ClassObjects::default()),
            ..status.clone()
        };
        for (class, plan) in &planned {
            let (name, uid) = (class.name_any(), class.uid().unwrap_or_default());
            let new = status::status(class, plan, now);
            if counts.writes(&uid, (class.status.as_ref(), &new), still, now.instant) {
                let api = Api::all(self.client.clone());
                let written = write_status(&api, self.classes.cache(), &name, &new).await;
                written.map_err(|error| Error::Write(name, error))?;
            }
        }
        Ok(())
    }

    /// Plans the next steps of all classes, and permits objects to take them.
    ///
    /// # Errors
    /// [`NotKnown`] before the first lists.
    pub fn plan(&self, now: Now) -> Result<Vec<Planned>, NotKnown> {
        let classes = self.classes.cache().all()?;
        let own = |class: &Arc<MuxClass>| {
            self.classes.is_own(class)
                && class.metadata.deletion_timestamp.is_none()
                && undecoded::reason(class.as_ref()).is_none()
        };
        let own: BTreeMap<_, _> = classes
            .into_iter()
            .filter(own)
            .map(|class| (class.name_any(), self.classes.cache().newest(class)))
            .collect();
        let texts: BTreeMap<_, _> = own
            .iter()
            .map(|(name, class)| {
                let images = self.classes.images();
                let revision = Revision::of(&Class::of(class, images), images);
                (name.clone(), Arc::<str>::from(revision.text()))
            })
            .collect();
        let mut members = self.members(&texts)?;
        let planned = own.into_iter().map(|(name, class)| {
            let members = members.remove(&name).unwrap_or_default();
            let plan = self.next(&class, &members, &texts[&name], now);
            (class, plan)
        });
        Ok(planned.collect())
    }

    /// The objects of each class, whose revision has the text in `texts`.
    fn members(
        &self,
        texts: &BTreeMap<String, Arc<str>>,
    ) -> Result<BTreeMap<String, BTreeMap<ObjectId, Member>>, NotKnown> {
        let mut members: BTreeMap<String, BTreeMap<_, _>> = BTreeMap::new();
        for caches in &self.scopes {
            for object in members::objects(caches)? {
                let namespace = object.namespace().unwrap_or_default();
                let class = self.classes.find(&namespace, object.class_name()).ok();
                let Some((class, text)) = class.and_then(|one| texts.get_key_value(&one.name))
                else {
                    continue;
                };
                if let Some(member) = members::member(caches, &object, text)? {
                    let class = members.entry(class.clone()).or_default();
                    class.insert(object.id(), member);
                }
            }
        }
        Ok(members)
    }

    /// Plans the next steps of one class, and permits objects to take them.
    fn next(
        &self,
        class: &MuxClass,
        members: &BTreeMap<ObjectId, Member>,
        text: &Arc<str>,
        now: Now,
    ) -> Plan {
        let asked = class.spec.rollout.unwrap_or_default();
        let max_concurrent = asked.max_concurrent.unwrap_or(MAX_CONCURRENT);
        let policy = Policy {
            max_concurrent: usize::try_from(max_concurrent).unwrap_or(usize::MAX),
            on_failure: asked.on_failure.unwrap_or_default(),
        };
        let waits = |id: &ObjectId| members.get(id).map(|member| !member.is_current);
        let permits = self.turns.unused(waits, text, now.instant);
        let plan = plan(members, policy, &permits);
        for object in &plan.next {
            info!(
                class = class.name_any(),
                namespace = object.namespace,
                kind = object.kind,
                name = object.name,
                "an object takes the revision of its class"
            );
        }
        self.turns.give(&plan.next, text, now.instant);
        plan
    }
}

/// The number of objects that roll at the same time, if the class has none.
const MAX_CONCURRENT: u32 = 3;
