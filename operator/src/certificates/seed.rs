//! Where the seed is kept. Client required.
//!
//! One Secret of the operator's own namespace, which the chart makes empty: the operator may get and update that one
//! Secret by its name, and make none. It writes the seed once. Of two that do so at the same time one is refused, for
//! what it read is no longer the newest, and reads the other's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Mutex;
use tracing::info;

use super::authority::{SEED_BYTES, Seed};
use crate::labels::MANAGER;

/// The Secret's key.
pub const KEY: &str = "seed";
/// How long a seed counts without being read again: within this a seed that was exchanged is found.
const READ_EVERY: Duration = Duration::from_secs(60);
/// How often it is tried again where another operator was faster.
const TRIES: usize = 3;

/// Why there is no seed.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// Somebody has to do something about it; the sentence says what.
    #[error("{0}")]
    Unavailable(String),
    /// The API server does not answer, or not as it should.
    #[error("cannot read or write the Secret of the authorities: {0}")]
    Api(#[from] kube::Error),
}

/// Reads the seed, and makes it where there is none.
pub struct SeedKeeper {
    api: Api<Secret>,
    namespace: String,
    name: String,
    read: Mutex<Option<(Instant, Arc<Seed>)>>,
    made: AtomicBool,
}

impl SeedKeeper {
    /// That of the Secret `name`.
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

    /// The seed.
    ///
    /// # Errors
    /// [`SeedError`]; where it was read before, the API server's silence is none.
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

    /// Whether the seed was made here, by this very operator. What stands in a status of another one is of a seed that is
    /// lost.
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
                        "cannot be read; install the chart again, which makes it and gives the operator the \
                         right to get and update it",
                    ));
                }
                Err(error) => return Err(error.into()),
            };
            if let Some(ByteString(bytes)) = secret.data.as_ref().and_then(|data| data.get(KEY)) {
                return Seed::of(bytes).ok_or_else(|| {
                    self.unavailable(&format!(
                        "has a key {KEY} that is not {SEED_BYTES} bytes long; remove the key, and all certificates \
                         are issued again"
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
                    info!(secret = self.name, "the seed of all authorities is made");
                    return Ok(seed);
                }
                // Another operator was faster.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    return Err(self.unavailable("has no seed, and the operator may not update it"));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.unavailable("is changed by somebody else all the time"))
    }

    fn unavailable(&self, what: &str) -> SeedError {
        SeedError::Unavailable(format!(
            "Secret {} of namespace {} {what}",
            self.name, self.namespace
        ))
    }
}
