//! The users of `examples/boutique`: their requests, weights and order.
//!
//! [`customer`] chooses the requests without sockets. [`session`] makes them and checks the
//! responses, [`closed_loop`] makes as many as possible, and [`report`] prints.

pub(crate) mod closed_loop;
pub(crate) mod customer;
pub(crate) mod report;
pub(crate) mod rng;
pub(crate) mod session;

/// The six kinds of request, by their page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestKind {
    Index,
    SetCurrency,
    Product,
    AddToCart,
    ViewCart,
    Checkout,
}

impl RequestKind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Index,
        Self::SetCurrency,
        Self::Product,
        Self::AddToCart,
        Self::ViewCart,
        Self::Checkout,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::SetCurrency => "setCurrency",
            Self::Product => "product",
            Self::AddToCart => "addToCart",
            Self::ViewCart => "viewCart",
            Self::Checkout => "checkout",
        }
    }

    /// Text that every correct response of this kind contains; a status alone proves little.
    pub(crate) fn expected_text(self) -> &'static str {
        match self {
            Self::Index => "\"products\"",
            Self::SetCurrency => "\"currency\"",
            Self::Product => "\"recommendations\"",
            Self::AddToCart | Self::ViewCart => "\"items\"",
            Self::Checkout => "\"orderId\"",
        }
    }
}
