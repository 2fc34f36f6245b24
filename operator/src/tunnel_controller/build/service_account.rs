//! The ServiceAccount of a gateway: a separate account without a token, because gateways do not use
//! the API server.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::{End, metadata};
use crate::tunnel_controller::validate::ValidatedTunnel;

pub(super) fn build(tunnel: &ValidatedTunnel, end: End) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(tunnel, end),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}
