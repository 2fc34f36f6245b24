//! Creates the key pairs of gateways, and remembers them. This module requires a client.
//!
//! The operator may create Secrets in users' namespaces, but may neither read nor change them. So it
//! knows a public key only if it created the key pair, or if the gateways report it, as for own
//! Secrets of users. The status, or
//! the Deployments, have what was created. The memory covers the time until a watch delivers them.
//! A dry run of a creation shows whether a Secret exists.
//!
//! A Secret with the keys of both ends has a random name: nobody can create it first, and kubelets
//! cache immutable Secrets by name.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use muxtunnel_crds::{KeyOrigin, KeyStatus, SecretRef};
use muxtunnel_gateway_config::Role;
use parking_lot::Mutex;
use rand::RngExt;
use tracing::{info, warn};

use super::end::End;
use super::error::KeyError;
use super::holder::Holder;
use crate::key_pair::{KeyPair, Place, pair_secret};
use crate::labels::MANAGER;

/// How long a created key pair is remembered, in seconds. Within this time, the watches deliver the
/// status and the Deployments that name its Secret.
const REMEMBERED_SECONDS: i64 = 600;
/// Pause between two checks whether a Secret exists, in seconds.
const CHECKED_SECONDS: i64 = 3600;
/// Like [`CHECKED_SECONDS`], for a Secret that another client creates and deletes.
const CHECKED_SECONDS_PROVIDED: i64 = 600;
/// Like [`CHECKED_SECONDS`], while a pod may wait for the Secret.
const CHECKED_SECONDS_WAITING: i64 = 10;
/// The component in the labels of a Secret with the keys of both ends.
const PAIR: &str = "pair";
/// Length of the random part of a Secret's name.
const SUFFIX_LENGTH: usize = 5;
/// The letters and digits of names that Kubernetes generates: no vowels, so no words.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A key pair of an end whose other end belongs to another object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnKey {
    /// The key pair, for the status.
    pub status: KeyStatus,
    /// Whether its Secret is missing, although it existed or another client provides it.
    pub is_lost: bool,
}

/// State that outlasts reconciliations. The state has only objects whose key pairs were created in
/// the last [`REMEMBERED_SECONDS`], and Secrets of objects that were reconciled in the last two
/// [`CHECKED_SECONDS`].
pub struct Keyring {
    client: Client,
    /// By UID: when the memory was used last, and the name of the Secret.
    pairs: Mutex<BTreeMap<String, (i64, String)>>,
    own: Mutex<BTreeMap<(String, String), (i64, KeyStatus)>>,
    checked: Mutex<BTreeMap<(String, String), i64>>,
}

impl Keyring {
    /// An empty memory. `client` creates Secrets.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            pairs: Mutex::default(),
            own: Mutex::default(),
            checked: Mutex::default(),
        }
    }

    /// The Secret with the keys of both ends, in this generation. Creates a Secret if there is none.
    /// `mounted`: the Secret that the Deployments mount. `waits`: whether a pod may wait for it.
    ///
    /// # Errors
    /// [`KeyError`].
    pub async fn pair(
        &self,
        holder: &Holder,
        generation: i32,
        (mounted, waits): (Option<String>, bool),
        now: i64,
    ) -> Result<String, KeyError> {
        let prefix = format!("{}-{PAIR}-{generation}-", holder.name);
        let remembered = self.remembered_pair(holder, now);
        let known = remembered.or(mounted);
        if let Some(known) = known.filter(|known| known.starts_with(&prefix)) {
            let secret = (&*known, PAIR);
            if !self.is_lost(holder, secret, pause(waits), now).await {
                return Ok(known);
            }
            warn!(
                secret = known,
                "the keys of both ends were lost: the operator creates new keys, and restarts the gateways"
            );
        }
        let (entry, exit) = (KeyPair::random(Role::Entry)?, KeyPair::random(Role::Exit)?);
        loop {
            let name = format!("{prefix}{}", suffix());
            let place = place(holder, &name, PAIR);
            let secret = pair_secret(place, &holder.owner, (&entry, &exit));
            // A Secret of this name has keys that the operator does not know.
            if self.create(&secret).await? {
                info!(secret = name, "created the keys of both ends");
                let mut pairs = self.pairs.lock();
                pairs.insert(holder.owner.uid.clone(), (now, name.clone()));
                return Ok(name);
            }
        }
    }

    /// The Secret that was created last, and that the Deployments perhaps do not mount yet. Each use
    /// renews the memory.
    fn remembered_pair(&self, holder: &Holder, now: i64) -> Option<String> {
        let mut pairs = self.pairs.lock();
        pairs.retain(|_, (at, _)| now - *at < REMEMBERED_SECONDS);
        let (at, name) = pairs.get_mut(&holder.owner.uid)?;
        *at = now;
        Some(name.clone())
    }

    /// The key pairs of `end`, one for each of `generations`. Creates those of which neither `known`
    /// nor the memory has a record. `waits`: whether a pod of the end may wait for a Secret.
    ///
    /// # Errors
    /// [`KeyError`].
    pub async fn own(
        &self,
        holder: &Holder,
        end: End,
        (generations, known): (&[i32], &[KeyStatus]),
        (waits, now): (bool, i64),
    ) -> Result<Vec<OwnKey>, KeyError> {
        let mut keys = Vec::new();
        for generation in generations {
            let name = format!("{}-{}-key-{generation}", holder.name, end.component());
            let recorded = known
                .iter()
                .find(|known| known.secret_name == name && known.origin != KeyOrigin::Provided);
            let recorded = recorded
                .cloned()
                .or_else(|| self.remembered(holder, &name, now));
            let secret = (&*name, end.component());
            keys.push(match recorded {
                Some(status) => OwnKey {
                    is_lost: self.is_lost(holder, secret, pause(waits), now).await,
                    status,
                },
                None => OwnKey {
                    status: self.make(holder, end, (*generation, name), now).await?,
                    is_lost: false,
                },
            });
        }
        Ok(keys)
    }

    /// The key pairs of `end` in own Secrets, the newest last. `known`: the last public keys.
    /// `waits`: whether a pod of the end may wait for a Secret.
    pub async fn provided(
        &self,
        holder: &Holder,
        end: End,
        (secrets, known): (&[SecretRef], &[KeyStatus]),
        (waits, now): (bool, i64),
    ) -> Vec<OwnKey> {
        let mut keys = Vec::new();
        for SecretRef { name } in secrets {
            let mut known = known.iter();
            let known = known
                .find(|known| known.secret_name == *name && known.origin == KeyOrigin::Provided);
            let secret = (&**name, end.component());
            let pause = pause(waits).min(CHECKED_SECONDS_PROVIDED);
            keys.push(OwnKey {
                status: KeyStatus {
                    secret_name: name.clone(),
                    generation: None,
                    public_key: known.and_then(|known| known.public_key.clone()),
                    origin: KeyOrigin::Provided,
                },
                is_lost: self.is_lost(holder, secret, pause, now).await,
            });
        }
        keys
    }

    fn remembered(&self, holder: &Holder, name: &str, now: i64) -> Option<KeyStatus> {
        let mut own = self.own.lock();
        own.retain(|_, (at, _)| now - *at < REMEMBERED_SECONDS);
        let key = (holder.owner.uid.clone(), name.to_owned());
        own.get(&key).map(|(_, status)| status.clone())
    }

    async fn make(
        &self,
        holder: &Holder,
        end: End,
        (generation, name): (i32, String),
        now: i64,
    ) -> Result<KeyStatus, KeyError> {
        let pair = KeyPair::random(end)?;
        let secret = pair.secret(place(holder, &name, end.component()));
        let is_new = self.create(&secret).await?;
        let (public_key, origin) = match is_new {
            true => (Some(pair.public.to_string()), KeyOrigin::Created),
            false => (None, KeyOrigin::Found),
        };
        info!(secret = name, ?origin, public_key, "the end has a key pair");
        let status = KeyStatus {
            secret_name: name.clone(),
            generation: Some(generation),
            public_key,
            origin,
        };
        let key = (holder.owner.uid.clone(), name);
        self.own.lock().insert(key, (now, status.clone()));
        Ok(status)
    }

    /// Creates `secret`. Returns false if a Secret of this name exists.
    async fn create(&self, secret: &Secret) -> Result<bool, KeyError> {
        match self.post(secret, false).await {
            Ok(()) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
            Err(source) => Err(KeyError::Create {
                name: secret.name_any(),
                source: Box::new(source),
            }),
        }
    }

    /// Whether the Secret does not exist. If the API server does not answer, the Secret counts as
    /// existing.
    async fn is_lost(
        &self,
        holder: &Holder,
        (name, component): (&str, &str),
        pause: i64,
        now: i64,
    ) -> bool {
        if !self.is_due(holder, name, pause, now) {
            return false;
        }
        // The content does not matter, because nothing is stored.
        let Ok(pair) = KeyPair::random(Role::Entry) else {
            return false;
        };
        let mut secret = pair.secret(place(holder, name, component));
        if component == PAIR {
            // The chart's admission policy requires the owner.
            secret.metadata.owner_references = Some(vec![holder.owner.clone()]);
        }
        match self.post(&secret, true).await {
            Ok(()) => {
                // The next reconciliation checks again.
                let key = (holder.namespace.clone(), name.to_owned());
                let mut checked = self.checked.lock();
                checked.insert(key, now - CHECKED_SECONDS);
                true
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => false,
            Err(error) => {
                warn!(secret = name, %error, "cannot check whether a Secret exists");
                false
            }
        }
    }

    /// Whether `pause` has passed since the last check. The first call begins a pause of
    /// [`CHECKED_SECONDS`], because the operator has just created the Secret.
    fn is_due(&self, holder: &Holder, name: &str, pause: i64, now: i64) -> bool {
        let mut checked = self.checked.lock();
        checked.retain(|_, at| now - *at <= 2 * CHECKED_SECONDS);
        let key = (holder.namespace.clone(), name.to_owned());
        let is_due = match checked.get(&key) {
            Some(at) => now - at >= pause,
            None => pause < CHECKED_SECONDS,
        };
        if is_due || !checked.contains_key(&key) {
            checked.insert(key, now);
        }
        is_due
    }

    async fn post(&self, secret: &Secret, dry_run: bool) -> Result<(), kube::Error> {
        let namespace = secret.namespace().unwrap_or_default();
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
        let params = PostParams {
            dry_run,
            field_manager: Some(MANAGER.to_owned()),
        };
        api.create(&params, secret).await.map(drop)
    }
}

/// The pause between two checks. `waits`: whether a pod may wait for the Secret.
const fn pause(waits: bool) -> i64 {
    match waits {
        true => CHECKED_SECONDS_WAITING,
        false => CHECKED_SECONDS,
    }
}

fn place<'a>(holder: &'a Holder, name: &'a str, component: &'a str) -> Place<'a> {
    Place {
        namespace: holder.namespace.as_str(),
        owner: holder.labelled(),
        component,
        name,
    }
}

fn suffix() -> String {
    let mut random = rand::rng();
    let letters = (0..SUFFIX_LENGTH).map(|_| LETTERS[random.random_range(0..LETTERS.len())]);
    letters.map(char::from).collect()
}
