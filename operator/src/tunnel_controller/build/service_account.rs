//! The ServiceAccount of a gateway: a separate account without a token, because gateways do not use
//! the API server.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::{End, metadata};
use crate::tunnel_controller::validate::ValidatedObject;

pub(super) fn build(object: &ValidatedObject, end: End) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(object, end),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}
