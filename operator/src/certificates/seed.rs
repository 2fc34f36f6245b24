//! The Secret that stores the seed. This module requires a client.
//!
//! The chart creates one Secret without data in the operator's namespace. The operator may get and
//! update this Secret by its name, and never creates it. The operator writes the seed once. If two
//! operators write at the same time, the API server refuses the second write, because its resource
//! version is old. The second operator then reads the first operator's seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::info;

use super::authority::{SEED_BYTES, Seed};
use crate::labels::MANAGER;

/// The Secret's key.
pub const KEY: &str = "seed";
/// Time after which the operator reads the Secret again, and so the longest time until it detects a
/// replaced seed.
const READ_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of attempts if another operator writes first.
const TRIES: usize = 3;

/// Why the seed is not available.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// A user has to act. The text describes how.
    #[error("{0}")]
    Unavailable(String),
    /// The API server does not answer, or answers with an error.
    #[error("cannot read or write the Secret of the authorities: {0}")]
    Api(#[from] kube::Error),
}

/// Reads the seed, and creates a seed if the Secret has no seed.
pub struct SeedKeeper {
    api: Api<Secret>,
    namespace: String,
    name: String,
    read: Mutex<Option<(Instant, Arc<Seed>)>>,
    made: AtomicBool,
}

impl SeedKeeper {
    /// The keeper of the Secret `name`.
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            read: Mutex::default(),
            made: AtomicBool::new(false),
        }
    }

    /// Returns the seed, from memory or from the Secret.
    ///
    /// # Errors
    /// [`SeedError`]. After the seed was read once, [`SeedError::Api`] does not occur.
    pub async fn seed(&self) -> Result<Arc<Seed>, SeedError> {
        let mut read = self.read.lock().await;
        let known = match &*read {
            Some((at, seed)) if at.elapsed() < READ_EVERY => return Ok(Arc::clone(seed)),
            Some((_, seed)) => Some(Arc::clone(seed)),
            None => None,
        };
        let seed = match (self.read().await, known) {
            (Ok(seed), _) => Arc::new(seed),
            (Err(SeedError::Api(_)), Some(known)) => known,
            (Err(error), _) => return Err(error),
        };
        *read = Some((Instant::now(), Arc::clone(&seed)));
        Ok(seed)
    }

    /// Whether this operator process created the seed. If so, certificates that an earlier process
    /// issued come from another seed, which is lost.
    #[must_use]
    pub fn is_made_here(&self) -> bool {
        self.made.load(Ordering::Relaxed)
    }

    async fn read(&self) -> Result<Seed, SeedError> {
        for _ in 0..TRIES {
            let mut secret = match self.api.get(&self.name).await {
                Ok(secret) => secret,
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                    return Err(self.unavailable(
                        "cannot be read; install the chart again, which creates the Secret and grants the \
                         operator the permission to get and update it",
                    ));
                }
                Err(error) => return Err(error.into()),
            };
            if let Some(ByteString(bytes)) = secret.data.as_ref().and_then(|data| data.get(KEY)) {
                return Seed::of(bytes).ok_or_else(|| {
                    self.unavailable(&format!(
                        "has a key {KEY} that is not {SEED_BYTES} bytes long; remove the key. The \
                         operator then issues all certificates again, and every join bundle becomes invalid"
                    ))
                });
            }
            let seed = Seed::random();
            let bytes = ByteString(seed.bytes().to_vec());
            secret
                .data
                .get_or_insert_default()
                .insert(KEY.to_owned(), bytes);
            let how = PostParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PostParams::default()
            };
            match self.api.replace(&self.name, &how, &secret).await {
                Ok(_) => {
                    self.made.store(true, Ordering::Relaxed);
                    info!(secret = self.name, "created the seed of all authorities");
                    return Ok(seed);
                }
                // Another operator has written the Secret first.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    return Err(self.unavailable(
                        "has no seed, and the operator may not update the Secret; install the chart again",
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.unavailable(
            "was changed by another client at each attempt to store the seed; find the client that \
             changes the Secret",
        ))
    }

    fn unavailable(&self, what: &str) -> SeedError {
        SeedError::Unavailable(format!(
            "Secret {} of namespace {} {what}",
            self.name, self.namespace
        ))
    }
}
