//! Properties of this module's parsers of peer input. The library parses all other input.

use http::uri::Authority;
use http::{HeaderValue, Response, StatusCode};

use super::listeners;
use crate::session::connect::{answer, connect_to, target_of};

/// Panics if a property does not hold for the input.
pub(crate) fn oracle(input: &[u8]) {
    listeners::message::oracle(input);
    authority(input);
    proxy_status(input);
}

/// An authority that specifies a target yields a request for the same target.
fn authority(input: &[u8]) {
    let Ok(authority) = Authority::try_from(input) else {
        return;
    };
    let Some(target) = target_of(&authority) else {
        return;
    };
    if let Ok(request) = connect_to(&target) {
        let again = request.uri().authority().and_then(target_of);
        assert_eq!(again, Some(target));
    }
}

/// A decoded refusal keeps its reason when it is encoded and decoded again.
fn proxy_status(input: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(input) else {
        return;
    };
    for status in [
        StatusCode::OK,
        StatusCode::BAD_GATEWAY,
        StatusCode::FORBIDDEN,
    ] {
        let mut response = Response::new(());
        *response.status_mut() = status;
        response.headers_mut().insert("proxy-status", value.clone());
        let head = response.into_parts().0;
        let _ = answer::address(&head);
        let Err(refusal) = answer::read(&head) else {
            assert!(status.is_success());
            continue;
        };
        let passed_on = answer::refused(&refusal).into_parts().0;
        let understood = answer::read(&passed_on).map_err(|refusal| refusal.reason);
        assert_eq!(understood, Err(refusal.reason));
    }
}
