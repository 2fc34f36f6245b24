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
use futures::stream;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::{Action, Config};
use kube::{Resource, ResourceExt};
use muxtunnel_bench_api::result::{Cell, Summary};
use muxtunnel_bench_api::runner::{Offer, Phase, State, Unavailable};
use muxtunnel_codes::Code;
use muxtunnel_crds::{BenchmarkEnvironment, MuxBenchmark};
use tracing::{Instrument, info, info_span, warn};

use crate::apply::ApplyError;
use crate::backoff::Backoffs;
use crate::caches::{Cache, Caches, Cluster, Feed, NotKnown};
use crate::classes::{Classes, NoClass};
use crate::clock::{Clock, Now};
use crate::controller::{self, Reconciler};
use crate::events::Events;
use crate::failure::{self, Coded};
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::tunnel_controller::object::Kind;
use crate::undecoded;
use crate::watch_clock::WatchClock;
use crate::watches;
use next_step::{Step, is_over, next_step};
use operator_key::OperatorKey;
use readiness::Readiness;
use runner_client::{HttpRunner, RunnerApi, RunnerError};
use update_status::Outcome;
use validate::{Environment, Invalid, ValidatedBenchmark};

/// Interval between reconciliations of a running benchmark. The operator polls the runner, because
/// the runner sends no notifications.
const REQUEUE_RUNNING: Duration = Duration::from_secs(2);
/// All changes of an object within this time cause a single reconciliation.
const DEBOUNCE: Duration = Duration::from_millis(200);
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
    #[must_use]
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
    #[error(transparent)]
    UpdateStatus(#[from] update_status::UpdateStatusError),
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
    let classed = triggers::classed(&context.classes, store.clone());
    let triggers = stream::select_all([benchmarks, leadership.requeues(&store), classed]);
    let config = Config::default()
        .debounce(DEBOUNCE)
        .concurrency(CONCURRENCY);
    controller::run(
        Arc::new(context),
        store,
        triggers,
        config,
        leadership,
        metrics,
    )
    .await;
}

impl<R: RunnerApi + 'static> Reconciler for Context<R> {
    type Object = MuxBenchmark;
    type Error = Error;

    fn caches(&self) -> &Caches {
        &self.cluster.caches
    }

    fn cache(&self) -> &Cache<MuxBenchmark> {
        &self.cluster.caches.benchmarks
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
        Err(NoClass::Refused(code, detail)) => Err(Invalid::Class(code, detail)),
    };
    let now = context.clock.now();
    let outcome = match (
        undecoded::reason(benchmark),
        is_over(benchmark.status.as_ref()),
    ) {
        (Some(_), true) => return Ok(Action::await_change()),
        (Some(reason), false) => {
            let detail = format!("the object cannot be decoded: {reason}");
            Outcome::Blocked(Code::UnknownValue, detail)
        }
        (None, is_over) => match validate::validate(benchmark, class) {
            Ok(valid) if is_over => {
                context.clear(&valid).await?;
                return Ok(Action::await_change());
            }
            Ok(valid) => context.step(benchmark, &valid, now).await?,
            Err(_) if is_over => return Ok(Action::await_change()),
            Err(Invalid::Class(code, detail)) => Outcome::Blocked(code, detail),
            Err(invalid) => Outcome::Failed(Code::InvalidSpec, invalid.to_string()),
        },
    };
    let now = now.whole_second();
    let status = update_status::update_status(&context.cluster, benchmark, &outcome, &now).await?;
    let old = benchmark
        .status
        .as_ref()
        .map(|status| &status.conditions[..]);
    context
        .events
        .publish_transitions(
            &benchmark.object_ref(&()),
            old.unwrap_or_default(),
            &status.conditions,
        )
        .await;
    Ok(match outcome {
        Outcome::Running { .. } => Action::requeue(REQUEUE_RUNNING),
        Outcome::Ended(_) | Outcome::Failed(..) | Outcome::Blocked(..) => Action::await_change(),
    })
}

impl<R: RunnerApi> Context<R> {
    /// One step of an unfinished benchmark.
    async fn step(
        &self,
        benchmark: &MuxBenchmark,
        valid: &ValidatedBenchmark,
        now: Now,
    ) -> Result<Outcome, Error> {
        let seen = dereference::dereference(&self.cluster.caches, valid)?;
        match next_step(benchmark.status.as_ref(), seen.job.as_ref(), seen.runner()) {
            Step::Start => self.start(valid).await,
            Step::NoPod => {
                let reader = self.cluster.reader();
                Ok(waiting(dereference::why_no_pod(&reader, &seen).await))
            }
            Step::Wait(detail) => Ok(waiting(detail)),
            Step::Ask(host) => self.ask(valid, &seen, &host, now).await,
            Step::Ended(last_words) => self.conclude(valid, &seen, last_words).await,
            Step::Gone => self.conclude(valid, &seen, None).await,
        }
    }

    async fn start(&self, valid: &ValidatedBenchmark) -> Result<Outcome, Error> {
        let token = HEXLOWER.encode(&rand::random::<[u8; 32]>());
        let secret = build::runner::secret(valid, &token);
        let job = build::runner::job(valid);
        match apply::runner(&self.cluster, valid, &secret, self.published(valid), &job).await {
            Ok(()) => Ok(waiting("the runner is starting".to_owned())),
            Err(error @ ApplyError::OwnedByOther { .. }) => {
                Ok(Outcome::Failed(Code::NameTaken, error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn published(&self, valid: &ValidatedBenchmark) -> k8s_openapi::api::core::v1::ConfigMap {
        let token = self.key.token(&valid.owner.uid);
        build::runner::operator_key(valid, operator_key::published(&token))
    }

    /// Queries the runner's progress, and prepares the environment that the runner waits for.
    async fn ask(
        &self,
        valid: &ValidatedBenchmark,
        seen: &dereference::Seen,
        host: &str,
        now: Now,
    ) -> Result<Outcome, Error> {
        // The hash changes only with a restart of the operator, so this call rarely writes.
        apply::operator_key(&self.cluster, valid, self.published(valid)).await?;
        let token = &self.key.token(&valid.owner.uid);
        let mut state = match self.runner.state(host, token).await {
            Ok(state) => state,
            // Either the runner has just ended, as its Job will show, or the runner has not read
            // the hash of this operator's token yet.
            Err(error) => return Ok(waiting(error.to_string())),
        };
        self.save(valid, &state.cells, state.summary.as_ref())
            .await?;
        if let Some(summary) = state.summary {
            self.clear(valid).await?;
            if let Err(error) = self.runner.finish(host, token).await {
                // The error is only logged, because without this request the runner exits too, only
                // later.
                warn!(%error, "cannot tell the runner that its results are stored; the runner exits later");
            }
            return Ok(Outcome::Ended(summary));
        }
        let Some(current) = state.current() else {
            return Ok(running(
                valid,
                &state,
                None,
                "the runner is computing the summary".to_owned(),
            ));
        };
        let Some(environment) = valid.environments.get(current) else {
            let odd = format!(
                "the runner requests environment {current}, which the matrix does not have"
            );
            return self.give_up(valid, odd).await;
        };
        if state.environments.get(current) == Some(&Phase::Running) {
            return Ok(running(
                valid,
                &state,
                Some(environment),
                "measuring".to_owned(),
            ));
        }
        let detail = match self.prepare(valid, environment, seen, now).await? {
            Ok(offer) => {
                info!(
                    environment = names::environment(current),
                    ?offer,
                    "offering"
                );
                state = self.runner.offer(host, token, current, &offer).await?;
                "measuring".to_owned()
            }
            Err(pending) => pending,
        };
        Ok(running(valid, &state, Some(environment), detail))
    }

    /// Creates an environment. Returns the answer for the runner once the environment is ready or
    /// has failed. Until then, returns a description of the missing part.
    async fn prepare(
        &self,
        valid: &ValidatedBenchmark,
        environment: &Environment,
        seen: &dereference::Seen,
        now: Now,
    ) -> Result<Result<Offer, String>, Error> {
        if let Some(refusal) = readiness::refusal_beforehand(valid, environment) {
            self.clear(valid).await?;
            return Ok(Ok(Offer::Unavailable(refusal)));
        }
        let built = match build::environment(&self.settings, valid, environment) {
            Ok(built) => built,
            Err(error) => return Ok(Ok(unavailable(error.to_string()))),
        };
        let applied = match apply::environment(&self.cluster, valid, built).await {
            Ok(applied) => applied,
            Err(error @ ApplyError::OwnedByOther { .. }) => {
                return Ok(Ok(unavailable(error.to_string())));
            }
            Err(error) => return Err(error.into()),
        };
        let mut gateways = Vec::new();
        for tunnel in &applied.tunnels {
            let (tunnel, ends) = (tunnel.name_any(), names::GATEWAY_COMPONENTS);
            let caches = &self.cluster.caches;
            let owner = (Kind::Tunnel.name(), tunnel.as_str());
            gateways.extend(dereference::pods(caches, &valid.namespace, owner, &ends)?);
        }
        let seen = readiness::Seen {
            tunnels: applied.tunnels,
            pods: seen.pods.clone(),
            gateways,
            agents: applied.agents,
        };
        Ok(match readiness::judge(valid, environment, &seen) {
            Readiness::Ready(addresses) => Ok(Offer::Ready(addresses)),
            Readiness::Never(why) => Ok(Offer::Unavailable(why)),
            Readiness::Pending(why) if is_late(applied.created, now) => {
                let reason = format!(
                    "not ready within {ENVIRONMENT_DEADLINE_SECONDS} s: {}",
                    why.reason
                );
                Ok(Offer::Unavailable(Unavailable { reason, ..why }))
            }
            Readiness::Pending(why) => Err(why.reason),
        })
    }

    /// Finishes a benchmark whose runner has ended or no longer exists. Only the runner's earlier
    /// reports and the summary in its termination message remain.
    async fn conclude(
        &self,
        valid: &ValidatedBenchmark,
        seen: &dereference::Seen,
        last_words: Option<Box<Summary>>,
    ) -> Result<Outcome, Error> {
        let (cells, summary) = seen
            .results
            .as_ref()
            .map(build::results::read)
            .unwrap_or_default();
        match summary.or(last_words.map(|summary| *summary)) {
            Some(summary) => {
                self.save(valid, &cells, Some(&summary)).await?;
                self.clear(valid).await?;
                Ok(Outcome::Ended(summary))
            }
            None => {
                let lost = match seen.job {
                    Some(_) => "the Job ended without a summary; read the log of its pod",
                    None => "the Job was deleted before its end",
                };
                self.give_up(valid, lost.to_owned()).await
            }
        }
    }

    async fn give_up(&self, valid: &ValidatedBenchmark, why: String) -> Result<Outcome, Error> {
        self.clear(valid).await?;
        Ok(Outcome::Failed(Code::BenchmarkRunnerLost, why))
    }

    /// Deletes the objects of all environments.
    async fn clear(&self, valid: &ValidatedBenchmark) -> Result<(), Error> {
        let nothing = build::EnvironmentObjects::default();
        apply::environment(&self.cluster, valid, nothing).await?;
        Ok(())
    }

    async fn save(
        &self,
        valid: &ValidatedBenchmark,
        cells: &[Cell],
        summary: Option<&Summary>,
    ) -> Result<(), Error> {
        if !cells.is_empty() || summary.is_some() {
            let results = build::results::config_map(valid, cells, summary);
            apply::results(&self.cluster, valid, results).await?;
        }
        Ok(())
    }
}

fn is_late(created: Option<Timestamp>, now: Now) -> bool {
    created
        .is_some_and(|created| now.seconds() - created.as_second() > ENVIRONMENT_DEADLINE_SECONDS)
}

fn unavailable(reason: String) -> Offer {
    Offer::Unavailable(Unavailable {
        status: muxtunnel_bench_api::result::Status::Failed,
        code: Code::BenchmarkEnvironmentFailed.to_string(),
        reason,
    })
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
    let title = environment.map(|environment| {
        let key = &environment.key;
        format!("{} ms, {}", key.one_way_delay_ms, key.profile)
    });
    let detail = match (environment, &title) {
        (Some(environment), Some(title)) => {
            let (number, all) = (environment.key.index + 1, valid.environments.len());
            format!("environment {number}/{all} ({title}): {detail}")
        }
        _ => detail,
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
