//! The ten services, one file each. None knows how its calls travel.

mod ad;
mod cart;
mod catalogue;
mod checkout;
mod currency;
mod email;
mod frontend;
mod payment;
mod recommendation;
mod shipping;

use clap::ValueEnum;

use crate::line::Peers;
use crate::words::{Problem, Request, Response};

/// A service; its name in lower case is its function's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Service {
    Ad,
    Cart,
    Checkout,
    Currency,
    Email,
    Frontend,
    Payment,
    Productcatalog,
    Recommendation,
    Shipping,
}

impl Service {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ad => "ad",
            Self::Cart => "cart",
            Self::Checkout => "checkout",
            Self::Currency => "currency",
            Self::Email => "email",
            Self::Frontend => "frontend",
            Self::Payment => "payment",
            Self::Productcatalog => "productcatalog",
            Self::Recommendation => "recommendation",
            Self::Shipping => "shipping",
        }
    }

    /// Customers come in here.
    pub(crate) fn is_the_door(self) -> bool {
        self == Self::Frontend
    }

    /// Answers one request. What makes calls is on the heap: else every service's futures were as large as the frontend's.
    pub(crate) async fn answer(
        self,
        request: &Request,
        peers: &Peers<'_>,
    ) -> Result<Response, Problem> {
        match self {
            Self::Ad => ad::answer(request),
            Self::Cart => cart::answer(request),
            Self::Checkout => Box::pin(checkout::answer(request, peers)).await,
            Self::Currency => currency::answer(request),
            Self::Email => email::answer(request),
            Self::Frontend => Box::pin(frontend::answer(request, peers)).await,
            Self::Payment => payment::answer(request),
            Self::Productcatalog => catalogue::answer(request),
            Self::Recommendation => recommendation::answer(request),
            Self::Shipping => shipping::answer(request),
        }
    }
}
