//! HTTP/1.1 upgrades, such as WebSocket: after the tenant's 101, bytes pass both ways until a side
//! closes.

use http::header::{CONNECTION, UPGRADE};
use http::{Request, Response, Version};
use hyper::upgrade::{OnUpgrade, on};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::completion::CallCompletion;

/// Both halves of a connection that is about to be upgraded.
#[derive(Debug)]
pub(crate) struct UpgradeTunnel {
    pub(crate) caller: OnUpgrade,
    pub(crate) tenant: OnUpgrade,
}

/// Returns the caller's half, if the request asks for an upgrade.
pub(crate) fn requested_upgrade<B>(request: &mut Request<B>) -> Option<OnUpgrade> {
    let headers = request.headers();
    let options = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','));
    let names_upgrade = options
        .map(str::trim)
        .any(|word| word.eq_ignore_ascii_case("upgrade"));
    // Only HTTP/1.1 has upgrades, and only `Connection` makes one valid (RFC 9110 section 7.8).
    let possible =
        request.version() == Version::HTTP_11 && headers.contains_key(UPGRADE) && names_upgrade;
    possible.then(|| on(request))
}

impl UpgradeTunnel {
    /// Creates the tunnel of a response with status 101.
    pub(crate) fn from_response<B>(caller: OnUpgrade, response: &mut Response<B>) -> Self {
        Self {
            caller,
            tenant: on(response),
        }
    }

    /// Copies bytes. The call counts as in progress meanwhile; a tunnel has no time limit, only a
    /// drain ends it.
    pub(crate) async fn run(self, completion: CallCompletion) {
        self.copy_bytes().await;
        drop(completion);
    }

    /// Copies bytes until a side closes.
    pub(crate) async fn copy_bytes(self) {
        if let Ok((caller, tenant)) = tokio::try_join!(self.caller, self.tenant) {
            // An error is an end like any other: either side may leave at any time.
            let _ = copy_bidirectional(&mut TokioIo::new(caller), &mut TokioIo::new(tenant)).await;
        }
    }
}
