//! Where the API server listens behind its Service: what no exit dials unless a rule names it literally.
//!
//! Gateways know the Service's address by themselves (`KUBERNETES_SERVICE_HOST`); those behind it, which are nodes'
//! addresses in most clusters, they cannot know. One small object is read once a minute.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use muxtunnel_gateway_config::PROTECTED_MAX;
use parking_lot::{Mutex, MutexGuard};
use tracing::{info, warn};

/// The EndpointSlice that every API server keeps of itself.
const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";
/// How often it is read.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// Pause between attempts before anything is known.
const FIRST_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Attempts before the operator begins without an answer.
const FIRST_ATTEMPTS: usize = 10;

/// The addresses of the API server. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ApiServer(Arc<Mutex<BTreeSet<IpAddr>>>);

impl ApiServer {
    /// What is known, in order, at most [`PROTECTED_MAX`]; empty: nothing.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.lock().iter().copied().take(PROTECTED_MAX).collect()
    }

    /// Waits for a first answer, so that a restart forgets no address for a moment; not for ever, since the operator may
    /// have no right to ask.
    pub async fn first_refresh(&self, client: &Client) {
        for _ in 0..FIRST_ATTEMPTS {
            match self.refresh(client).await {
                Ok(()) => return,
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => return,
                Err(_) => tokio::time::sleep(FIRST_RETRY_PAUSE).await,
            }
        }
    }

    /// Follows changes for as long as it is polled.
    pub async fn follow(self, client: Client) {
        loop {
            tokio::time::sleep(REFRESH_INTERVAL).await;
            // What cannot be read is in the log, and what was known stays.
            self.refresh(&client).await.ok();
        }
    }

    async fn refresh(&self, client: &Client) -> Result<(), kube::Error> {
        let api: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
        let slice = api.get(NAME).await.inspect_err(|error| {
            warn!(%error, "cannot read the API server's addresses, which exits are kept from");
        })?;
        let endpoints = slice.endpoints.iter();
        let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
        let found: BTreeSet<IpAddr> = addresses.filter_map(|text| text.parse().ok()).collect();
        let mut known = self.lock();
        // A slice without endpoints is a server that is starting, not one that is nowhere.
        if !found.is_empty() && *known != found {
            info!(addresses = ?found, "exits are kept from the API server");
            *known = found;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<IpAddr>> {
        self.0.lock()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::FakeApi;
    use serde_json::{Value, json};

    /// Puts the slice of an API server with these addresses there.
    pub(crate) fn listens_at(api: &FakeApi, addresses: &[&str]) {
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|own| json!({"addresses": [own]}))
            .collect();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": NAME, "namespace": NAMESPACE}, "endpoints": endpoints,
        });
        api.put("endpointslices/kubernetes", slice);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_stays_until_there_are_others() {
        let (api, server) = (FakeApi::default(), ApiServer::default());
        server.first_refresh(&api.client()).await;
        assert!(server.addresses().is_empty());
        listens_at(&api, &["10.0.0.2", "10.0.0.1"]);
        server.first_refresh(&api.client()).await;
        let both: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(server.addresses(), both);
        listens_at(&api, &[]);
        server.refresh(&api.client()).await.unwrap();
        api.remove("endpointslices/kubernetes@default");
        server.refresh(&api.client()).await.unwrap_err();
        assert_eq!(server.addresses(), both);
        listens_at(&api, &["fd00::1"]);
        server.refresh(&api.client()).await.unwrap();
        let other: Vec<IpAddr> = vec!["fd00::1".parse().unwrap()];
        assert_eq!(server.addresses(), other);
    }
}
