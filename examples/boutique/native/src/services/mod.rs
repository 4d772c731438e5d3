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

use crate::client::PeerServices;
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};

/// A service; its name in lower case is its function's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum ShopService {
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

impl ShopService {
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
    pub(crate) fn is_entry(self) -> bool {
        self == Self::Frontend
    }

    /// Answers one request. What makes calls is on the heap: else every service's futures were as
    /// large as the frontend's.
    pub(crate) async fn answer_request(
        self,
        request: &ServiceRequest,
        peers: &PeerServices<'_>,
    ) -> Result<ServiceResponse, ServiceError> {
        match self {
            Self::Ad => ad::answer_request(request),
            Self::Cart => cart::answer_request(request),
            Self::Checkout => Box::pin(checkout::answer_request(request, peers)).await,
            Self::Currency => currency::answer_request(request),
            Self::Email => email::answer_request(request),
            Self::Frontend => Box::pin(frontend::answer_request(request, peers)).await,
            Self::Payment => payment::answer_request(request),
            Self::Productcatalog => catalogue::answer_request(request),
            Self::Recommendation => recommendation::answer_request(request),
            Self::Shipping => shipping::answer_request(request),
        }
    }
}
