//! The controller of `MuxBenchmark`.
//!
//! [`reconcile`] handles one object in these steps: validate (pure) -> dereference (client: Job,
//! pods, results) -> [`mod@next_step`] (pure) -> act -> results -> update_status (client). The step
//! "act" either creates the runner once, or queries the runner and prepares the environment for
//! which the runner waits (build, apply, [`readiness`]). The operator keeps no state between
//! reconciliations. The runner stores its progress, so a restarted operator resumes the benchmark.

pub mod apply;
pub mod build;
pub mod dereference;
pub mod names;
pub mod next_step;
pub mod operator_key;
pub mod readiness;
pub mod runner_client;
mod triggers;
pub mod update_status;
pub mod validate;

#[cfg(test)]
mod scenarios;
#[cfg(test)]
pub(crate) mod test_support;

use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use muxtunnel_bench_api::result::{Cell, Summary};
use muxtunnel_bench_api::runner::{Environment as Addresses, Offer, Phase, State};
use muxtunnel_codes::Code;
use muxtunnel_crds::{BenchmarkEnvironment, MuxBenchmark, MuxBenchmarkStatus};
use tracing::{Instrument, info, info_span, warn};

use crate::apply::ApplyError;
use crate::backoff::Backoffs;
use crate::caches::{Caches, Cluster, Feed, NotKnown};
use crate::classes::{Classes, NoClass};
use crate::clock::{Clock, Now};
use crate::controller::{self, Reconciler};
use crate::events::Events;
use crate::failure::{self, Coded};
use crate::labels::RUNNER;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::tunnel_controller::object::Kind;
use crate::undecoded;
use crate::watch_clock::WatchClock;
use crate::watches;
use dereference::Seen;
use names::RESULTS;
use next_step::{Step, is_over, next_step};
use operator_key::OperatorKey;
use readiness::{NotReady, failed};
use runner_client::{Ask, HttpRunner, RunnerApi, RunnerError};
use update_status::Outcome;
use validate::{Environment, Invalid, ValidatedBenchmark};

/// Interval between reconciliations of a running benchmark. The operator polls the runner, because
/// the runner sends no notifications.
const REQUEUE_RUNNING: Duration = Duration::from_secs(2);
/// Maximum number of concurrent reconciliations.
const CONCURRENCY: u16 = 4;
/// Time limit for an environment to become ready, from the creation of its first object. Eight pods
/// on two busy cores take half a minute.
const ENVIRONMENT_DEADLINE_SECONDS: i64 = 180;

/// The shared state of all reconciliations.
pub struct Context<R = HttpRunner> {
    cluster: Cluster,
    classes: Classes,
    settings: Arc<Settings>,
    events: Events,
    runner: R,
    key: OperatorKey,
    backoffs: Backoffs,
    clock: Clock,
}

impl Context {
    /// Creates the context of one controller. Requests to runners need the `leadership`.
    pub fn new(
        (cluster, classes): (Cluster, Classes),
        settings: Arc<Settings>,
        events: Events,
        leadership: Leadership,
        clock: Clock,
    ) -> Self {
        Self {
            cluster,
            classes,
            settings,
            events,
            runner: HttpRunner::new(leadership),
            key: OperatorKey::random(),
            backoffs: Backoffs::default(),
            clock,
        }
    }
}

/// Why a reconciliation failed. The controller retries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A cache is not filled yet.
    #[error(transparent)]
    NotKnown(#[from] NotKnown),
    /// The children could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The runner did not answer, or answered with an error.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// The benchmark cannot be decoded, and could not be read again.
    #[error("cannot read the benchmark: {0}")]
    Undecoded(#[from] kube::Error),
    /// The status could not be written.
    #[error("cannot write the status: {0}")]
    UpdateStatus(#[source] kube::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::NotKnown(error) => error.code(),
            Self::Apply(error) => error.code(),
            Self::Runner(RunnerError::NotLeader(_)) => Code::LeaderLost,
            Self::Runner(_) => Code::BenchmarkRunnerSilent,
            Self::Undecoded(_) | Self::UpdateStatus(_) => failure::code(self),
        }
    }
}

/// Runs the controller for `namespace`, or for all namespaces, until the process ends.
pub async fn run(
    context: Context,
    namespace: Option<String>,
    feed: Feed<MuxBenchmark>,
    leadership: Leadership,
    metrics: Metrics,
    watched: Arc<WatchClock>,
) {
    let store = feed.cache().store();
    // The operator polls the runner every two seconds, so a watch of the runner's Job would bring
    // no benefit.
    let benchmarks = controller::api(&context.cluster.client, namespace.as_deref());
    let benchmarks = watches::objects(benchmarks, feed, &watched);
    let triggers = [benchmarks, triggers::classed(&context.classes, store)];
    let context = Arc::new(context);
    controller::run(context, triggers, CONCURRENCY, leadership, metrics).await;
}

impl<R: RunnerApi + 'static> Reconciler for Context<R> {
    type Object = MuxBenchmark;
    type Error = Error;

    fn caches(&self) -> &Caches {
        &self.cluster.caches
    }

    fn backoffs(&self) -> &Backoffs {
        &self.backoffs
    }

    async fn reconcile(self: Arc<Self>, benchmark: Arc<MuxBenchmark>) -> Result<Action, Error> {
        reconcile(benchmark, self).await
    }
}

/// Performs the next step of one benchmark, and writes the progress to the status.
///
/// # Errors
/// [`Error`]. A retry is safe.
pub async fn reconcile<R: RunnerApi>(
    benchmark: Arc<MuxBenchmark>,
    context: Arc<Context<R>>,
) -> Result<Action, Error> {
    let span = info_span!(
        "benchmark",
        namespace = benchmark.namespace().unwrap_or_default(),
        name = benchmark.name_any()
    );
    // The future is on the heap. It holds the objects of all steps, so it could overflow the
    // caller's stack.
    Box::pin(reconcile_in_span(&benchmark, &context))
        .instrument(span)
        .await
}

async fn reconcile_in_span<R: RunnerApi>(
    mut benchmark: &MuxBenchmark,
    context: &Context<R>,
) -> Result<Action, Error> {
    if benchmark.meta().deletion_timestamp.is_some() {
        // The garbage collector removes the children. Creating children again would delay the
        // deletion.
        return Ok(Action::await_change());
    }
    let decodable;
    if undecoded::reason(benchmark).is_some() {
        let found = undecoded::read(&context.cluster.reader(), benchmark).await?;
        let Some(found) = found.filter(|found| found.meta().uid == benchmark.meta().uid) else {
            return Ok(Action::await_change());
        };
        decodable = found;
        benchmark = &decodable;
    }
    context.classes.first_list().await;
    let namespace = benchmark.namespace().unwrap_or_default();
    let asked = benchmark.spec.class_name.as_deref();
    let class = match context.classes.find(&namespace, asked) {
        Ok(class) => Ok(class),
        // Another operator serves the benchmark.
        Err(NoClass::Foreign) => return Ok(Action::await_change()),
        Err(NoClass::NotKnown(error)) => return Err(error.into()),
        Err(NoClass::Refused(code, detail)) => Err(Invalid::Blocked(code, detail)),
    };
    let valid = match undecoded::reason(benchmark) {
        Some(reason) => {
            let detail = format!("the object cannot be decoded: {reason}");
            Err(Invalid::Blocked(Code::UnknownValue, detail))
        }
        None => validate::validate(benchmark, class),
    };
    if is_over(benchmark.status.as_ref()) {
        if let Ok(valid) = &valid {
            context.clear(valid).await?;
        }
        return Ok(Action::await_change());
    }
    let now = context.clock.now();
    let outcome = match valid {
        Ok(valid) => {
            let seen = dereference::dereference(&context.cluster.caches, &valid)?;
            let valid = &valid;
            let pass = Pass {
                context,
                valid,
                seen,
                now,
            };
            pass.step(benchmark.status.as_ref()).await?
        }
        Err(Invalid::Blocked(code, detail)) => Outcome::Blocked(code, detail),
        Err(invalid) => Outcome::Failed(Code::InvalidSpec, invalid.to_string()),
    };
    let now = now.whole_second();
    let written = update_status::update_status(&context.cluster, benchmark, &outcome, &now).await;
    let status = written.map_err(Error::UpdateStatus)?;
    let (reference, old) = (benchmark.object_ref(&()), benchmark.status.as_ref());
    let old = old.map_or(&[][..], |status| &status.conditions);
    let events = &context.events;
    events
        .publish_transitions(&reference, old, &status.conditions)
        .await;
    Ok(match outcome {
        Outcome::Running { .. } => Action::requeue(REQUEUE_RUNNING),
        Outcome::Ended(_) | Outcome::Failed(..) | Outcome::Blocked(..) => Action::await_change(),
    })
}

/// One step of an unfinished benchmark.
struct Pass<'a, R> {
    context: &'a Context<R>,
    valid: &'a ValidatedBenchmark,
    seen: Seen,
    now: Now,
}

impl<R: RunnerApi> Pass<'_, R> {
    async fn step(&self, status: Option<&MuxBenchmarkStatus>) -> Result<Outcome, Error> {
        let seen = &self.seen;
        match next_step(status, seen.job.as_deref(), seen.runner()) {
            Step::Start => self.start().await,
            Step::NoPod => {
                let reader = self.context.cluster.reader();
                Ok(waiting(dereference::why_no_pod(&reader, seen).await))
            }
            Step::Wait(detail) => Ok(waiting(detail)),
            Step::Ask(host) => self.ask(&host).await,
            Step::Ended(last_words) => self.conclude(last_words).await,
            Step::Gone => self.conclude(None).await,
        }
    }

    async fn start(&self) -> Result<Outcome, Error> {
        let token = HEXLOWER.encode(&rand::random::<[u8; 32]>());
        let secret = build::runner::secret(self.valid, &token);
        let (cluster, job) = (&self.context.cluster, build::runner::job(self.valid));
        match apply::runner(cluster, self.valid, &secret, self.published(), &job).await {
            Ok(()) => Ok(waiting("the runner is starting".to_owned())),
            Err(error @ ApplyError::OwnedByOther(_)) => {
                Ok(Outcome::Failed(Code::NameTaken, error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn token(&self) -> String {
        self.context.key.token(&self.valid.owner.uid)
    }

    fn published(&self) -> ConfigMap {
        build::runner::operator_key(self.valid, operator_key::published(&self.token()))
    }

    /// Queries the runner's progress, and prepares the environment that the runner waits for.
    async fn ask(&self, host: &str) -> Result<Outcome, Error> {
        let (valid, runner, token) = (self.valid, &self.context.runner, &self.token());
        // The hash changes only with a restart of the operator, so this call rarely writes.
        apply::config_map(&self.context.cluster, valid, RUNNER, self.published()).await?;
        let state = match runner.ask(host, token, Ask::State).await {
            Ok(state) => state,
            // Either the runner has just ended, as its Job will show, or the runner has not read
            // the hash of this operator's token yet.
            Err(error) => return Ok(waiting(error.to_string())),
        };
        self.save(&state.cells, state.summary.as_ref()).await?;
        if let Some(summary) = state.summary {
            self.context.clear(valid).await?;
            if let Err(error) = runner.ask(host, token, Ask::Finish).await {
                // The error is only logged, because without this request the runner exits too, only
                // later.
                warn!(%error, "cannot tell the runner that its results are stored; the runner exits later");
            }
            return Ok(Outcome::Ended(summary));
        }
        let Some(current) = state.current() else {
            let detail = "the runner is computing the summary".to_owned();
            return Ok(running(valid, &state, None, detail));
        };
        let Some(environment) = valid.environments.get(current) else {
            let odd = format!(
                "the runner requests environment {current}, which the matrix does not have"
            );
            return self.give_up(odd).await;
        };
        let measuring = "measuring".to_owned();
        if state.environments.get(current) == Some(&Phase::Running) {
            return Ok(running(valid, &state, Some(environment), measuring));
        }
        let offer = match self.prepare(environment).await? {
            Ok(addresses) => Offer::Ready(addresses),
            Err(NotReady::Never(why)) => Offer::Unavailable(why),
            Err(NotReady::Pending(why)) => {
                return Ok(running(valid, &state, Some(environment), why.reason));
            }
        };
        info!(
            environment = names::environment(current),
            ?offer,
            "offering"
        );
        let state = runner.ask(host, token, Ask::Offer(current, &offer)).await?;
        Ok(running(valid, &state, Some(environment), measuring))
    }

    /// Creates an environment. Returns its addresses once it is ready.
    async fn prepare(
        &self,
        environment: &Environment,
    ) -> Result<Result<Addresses, NotReady>, Error> {
        let (valid, context) = (self.valid, self.context);
        let failed = |error: String| Ok(Err(NotReady::Never(failed(error))));
        if let Some(refusal) = readiness::refusal_beforehand(valid, environment) {
            context.clear(valid).await?;
            return Ok(Err(NotReady::Never(refusal)));
        }
        let built = match build::environment(&context.settings, valid, environment) {
            Ok(built) => built,
            Err(error) => return failed(error.to_string()),
        };
        let objects = match apply::environment(&context.cluster, valid, built).await {
            Ok(applied) => applied,
            Err(error @ ApplyError::OwnedByOther(_)) => return failed(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        let (known, mut gateways) = (&context.cluster.caches.pods, Vec::new());
        for tunnel in &objects.tunnels {
            let (tunnel, ends) = (tunnel.name_any(), names::GATEWAY_COMPONENTS);
            let owner = (Kind::Tunnel.name(), &*tunnel);
            gateways.extend(known.children(&valid.namespace, owner, &ends)?);
        }
        let created = objects.created();
        let seen = readiness::Seen {
            objects,
            pods: self.seen.pods.clone(),
            gateways,
        };
        let addresses = readiness::addresses(valid, environment, &seen);
        Ok(addresses.map_err(|not_ready| match not_ready {
            NotReady::Pending(mut why) if is_late(created, self.now) => {
                let limit = ENVIRONMENT_DEADLINE_SECONDS;
                why.reason = format!("not ready within {limit} s: {}", why.reason);
                NotReady::Never(why)
            }
            other => other,
        }))
    }

    /// Finishes a benchmark whose runner has ended or no longer exists. Only the runner's earlier
    /// reports and the summary in its termination message remain.
    async fn conclude(&self, last_words: Option<Box<Summary>>) -> Result<Outcome, Error> {
        let results = self.seen.results.as_deref().map(build::results::read);
        let (cells, summary) = results.unwrap_or_default();
        let Some(summary) = summary.or(last_words.map(|summary| *summary)) else {
            let lost = match self.seen.job {
                Some(_) => "the Job ended without a summary; read the log of its pod",
                None => "the Job was deleted before its end",
            };
            return self.give_up(lost.to_owned()).await;
        };
        self.save(&cells, Some(&summary)).await?;
        self.context.clear(self.valid).await?;
        Ok(Outcome::Ended(summary))
    }

    async fn give_up(&self, why: String) -> Result<Outcome, Error> {
        self.context.clear(self.valid).await?;
        Ok(Outcome::Failed(Code::BenchmarkRunnerLost, why))
    }

    async fn save(&self, cells: &[Cell], summary: Option<&Summary>) -> Result<(), Error> {
        if !cells.is_empty() || summary.is_some() {
            let results = build::results::config_map(self.valid, cells, summary);
            apply::config_map(&self.context.cluster, self.valid, RESULTS, results).await?;
        }
        Ok(())
    }
}

impl<R> Context<R> {
    /// Deletes the objects of all environments.
    async fn clear(&self, valid: &ValidatedBenchmark) -> Result<(), Error> {
        let nothing = build::EnvironmentObjects::default();
        apply::environment(&self.cluster, valid, nothing).await?;
        Ok(())
    }
}

fn is_late(created: Option<Timestamp>, now: Now) -> bool {
    let age = created.map(|created| now.seconds() - created.as_second());
    age.is_some_and(|age| age > ENVIRONMENT_DEADLINE_SECONDS)
}

fn waiting(detail: String) -> Outcome {
    Outcome::Running {
        detail,
        environment: None,
        cells: None,
    }
}

fn running(
    valid: &ValidatedBenchmark,
    state: &State,
    environment: Option<&Environment>,
    detail: String,
) -> Outcome {
    let detail = match environment.map(|environment| &environment.key) {
        Some(key) => {
            let (number, all) = (key.index + 1, valid.environments.len());
            let (delay, profile) = (key.one_way_delay_ms, &key.profile);
            format!("environment {number}/{all} ({delay} ms, {profile}): {detail}")
        }
        None => detail,
    };
    Outcome::Running {
        detail,
        environment: environment.map(|environment| BenchmarkEnvironment {
            delay_milliseconds: environment.key.one_way_delay_ms,
            profile: environment.profile,
        }),
        cells: Some(update_status::cells_so_far(state)),
    }
}
