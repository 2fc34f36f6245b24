//! The addresses of the API server behind its Service. Gateways dial such an address for a client
//! only if a rule names the address literally.
//!
//! Gateways read the Service's address from their environment (`KUBERNETES_SERVICE_HOST`). Gateways
//! cannot read the addresses behind the Service. In most clusters, these are addresses of nodes.
//! The operator therefore reads the EndpointSlice `kubernetes` once per minute.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use muxtunnel_gateway_config::PROTECTED_MAX;
use parking_lot::Mutex;
use tracing::{info, warn};

/// The name of the EndpointSlice with the API servers' own addresses.
const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";
/// Interval of the reads.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// Pause between attempts before the first answer.
const FIRST_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of attempts before the operator starts without the addresses.
const FIRST_ATTEMPTS: usize = 10;

/// The addresses of the API server. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ApiServer(Arc<Mutex<BTreeSet<IpAddr>>>);

impl ApiServer {
    /// The known addresses, sorted, at most [`PROTECTED_MAX`].
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.0.lock().iter().copied().take(PROTECTED_MAX).collect()
    }

    /// Waits for the first answer, so that a restart of the operator does not drop the addresses
    /// from the gateways' configurations. Gives up after [`FIRST_ATTEMPTS`], and at once if the
    /// EndpointSlice does not exist or the operator may not read it.
    pub async fn first_refresh(&self, client: &Client) {
        for _ in 0..FIRST_ATTEMPTS {
            match self.refresh(client).await {
                Ok(()) => return,
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => return,
                Err(_) => tokio::time::sleep(FIRST_RETRY_PAUSE).await,
            }
        }
    }

    /// Reads the addresses every [`REFRESH_INTERVAL`] while this future is polled.
    pub async fn follow(self, client: Client) {
        loop {
            tokio::time::sleep(REFRESH_INTERVAL).await;
            // `refresh` has logged the error and has kept the known addresses.
            self.refresh(&client).await.ok();
        }
    }

    async fn refresh(&self, client: &Client) -> Result<(), kube::Error> {
        let api: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
        let slice = api.get(NAME).await.inspect_err(|error| {
            warn!(%error, "cannot read the API server's addresses, so exits may dial an address that was added since the last read");
        })?;
        let endpoints = slice.endpoints.iter();
        let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
        let found: BTreeSet<IpAddr> = addresses.filter_map(|text| text.parse().ok()).collect();
        let mut known = self.0.lock();
        // While an API server starts, the EndpointSlice may be empty. In this case, the known
        // addresses stay.
        if !found.is_empty() && *known != found {
            info!(addresses = ?found, "read the API server's addresses, which exits must not dial");
            *known = found;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::FakeApi;
    use serde_json::{Value, json};

    /// Stores the slice of an API server with these addresses.
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
