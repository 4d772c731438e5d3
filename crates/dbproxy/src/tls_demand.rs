//! Decides whether a client that asks for TLS gets it. Pure.
//!
//! Most drivers ask for TLS and continue without it (`sslmode=prefer`). They are cheaper without.
//! Others need it (`sslmode=require`), and the question is the same. So the node answers no until
//! the settings of the function, or a client that left after the answer, show the need.

/// Knowledge about the clients of one destination.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsDemand {
    /// All clients so far have continued without TLS.
    #[default]
    Unneeded,
    /// The last client left after the answer no. It may connect again without TLS.
    Refused,
    /// A client asked again after a refusal.
    Needed,
}

impl TlsDemand {
    /// Returns the state after a client has asked for TLS.
    pub(crate) fn after_request(self) -> Self {
        match self {
            Self::Unneeded => Self::Unneeded,
            // It stays: a function may have clients of both kinds, and TLS serves both.
            Self::Refused | Self::Needed => Self::Needed,
        }
    }

    /// Returns the state after a client has left because the node answered no.
    pub(crate) fn after_refusal(self) -> Self {
        match self {
            Self::Unneeded | Self::Refused => Self::Refused,
            Self::Needed => Self::Needed,
        }
    }

    /// Returns the state after a client has started without TLS.
    pub(crate) fn after_plain_start(self) -> Self {
        match self {
            Self::Unneeded | Self::Refused => Self::Unneeded,
            Self::Needed => Self::Needed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TlsDemand;

    #[test]
    fn a_client_that_comes_back_with_the_same_request_needs_tls() {
        let refused = TlsDemand::default().after_request().after_refusal();
        assert_eq!(refused.after_request(), TlsDemand::Needed);
        assert_eq!(
            refused.after_request().after_plain_start(),
            TlsDemand::Needed
        );
    }

    #[test]
    fn a_client_that_comes_back_without_it_does_not() {
        let refused = TlsDemand::default().after_request().after_refusal();
        assert_eq!(
            refused.after_plain_start().after_request(),
            TlsDemand::Unneeded
        );
    }
}
